package mysql

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/internal/sqlstore"
)

// words are the texts for the words of statements in MySQL and MariaDB. Columns have names that are
// no keywords.
var words = map[string]string{
	// The clock in UTC, regardless of the time zone of the session.
	"now":       `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))`,
	"event_key": "event_key", "message_key": "message_key", "request_key": "request_key",
	"greatest": "GREATEST", "least": "LEAST",
	"lock": "FOR UPDATE", "lock_free": "FOR UPDATE SKIP LOCKED", "by": "FORCE INDEX ($)",
	"then_join": "STRAIGHT_JOIN",
	"again":     "ON DUPLICATE KEY UPDATE",
	// INSERT IGNORE would share the lock of an existing row, and two copies that wait for a third
	// would deadlock. The upsert changes an existing row, so that the number of affected rows is 1
	// for a new row only, however the connection counts.
	"once":  "ON DUPLICATE KEY UPDATE copies = copies + 1",
	"live":  "$.live = 1",
	"first": "$.live = 1",
	"waits": "$.live = 1",

	"user_or": "COALESCE(NULLIF($, ''), CURRENT_USER())",

	"of_events":  "e.dispatch_id IN ?",
	"in_receipt": "JSON_CONTAINS(r.event_ids, CAST(e.id AS CHAR))",
	"by_newest":  "FORCE INDEX (applied)",
	"newest":     "applied_at",
	"be_newest":  "",
}

// statsStmt counts through indexes only, up to the cap. It finds the oldest event by one look into
// the queue per shard. Replayed events, which were delivered before, do not count. Deferred events
// count from their due time, even if no relay has moved them.
const statsStmt = `
SELECT (SELECT COUNT(*) FROM (SELECT 1 FROM {outbox_queue} LIMIT ?) a),
       (SELECT COUNT(*) FROM (SELECT 1 FROM {outbox_parked} WHERE state = 'retrying' LIMIT ?) b),
       (SELECT COUNT(*) FROM (SELECT 1 FROM {outbox_parked} WHERE state = 'following' LIMIT ?) c),
       (SELECT COUNT(*) FROM (SELECT 1 FROM {outbox_parked} WHERE state = 'dead' LIMIT ?) d),
       (SELECT COUNT(*) FROM {outbox_shards} WHERE owner IS NOT NULL AND lease_until > {now}),
       (SELECT COUNT(*) FROM {outbox_relays} WHERE seen_until > {now}),
       (SELECT COUNT(*) FROM (SELECT 1 FROM {outbox_deferred} LIMIT ?) f),
       (SELECT GREATEST(0, {now} - MIN(t.at)) FROM (
           SELECT ` + sqlstore.StampOf + ` AS at FROM (
               SELECT (SELECT q.id FROM {outbox_queue} q WHERE q.shard = s.shard AND q.round <= 0 ORDER BY q.id LIMIT 1) AS id FROM {outbox_shards} s
               UNION ALL SELECT MIN(id) FROM {outbox_parked} WHERE live = 1) o JOIN {outbox_events} e ON e.id = o.id
           UNION ALL
           SELECT (SELECT MIN(d.due_at) FROM {outbox_deferred} d WHERE d.shard = s.shard AND d.due_at <= {now}) FROM {outbox_shards} s) t)`

// dialect returns the differences of MySQL. Statements end with their contexts.
func (s *Store) dialect() sqlstore.Dialect {
	return sqlstore.Dialect{
		Names: s.names, Words: words, List: literals, Text: func(text string) any { return []byte(text) }, DeleteLimit: true, RowLocks: true,
		Write: s.write, Read: s.read, Claiming: s.claiming, Missing: missing, Lost: ErrTransactionLost, EndLockTimeout: endLockTimeout, LockKeys: s.lockMessageKeys,
		StatementContext: func(ctx context.Context) context.Context { return ctx },
		TakeWriteLock:    func(context.Context, *sql.Tx) error { return nil },
		Stats:            statsStmt, Dequeue: s.dequeue, Receipt: s.receipt, Heal: s.heal,
		RemoveEvents: s.removeEvents, ClaimToPark: s.claimToPark, ForgetIDs: s.forgetIDs,
	}
}

// literals writes a list in parentheses. The server plans by the values in the text, and
// InterpolateParams would put them there anyway. Only texts need the quoting of the driver.
func literals(list any) (text string, args []any) {
	switch of := list.(type) {
	case []int:
		return parenthesised(of, func(n int) string { return strconv.Itoa(n) }), nil
	case []int64:
		return parenthesised(of, func(n int64) string { return strconv.FormatInt(n, 10) }), nil
	case []uuid.UUID:
		return parenthesised(of, func(id uuid.UUID) string { return "0x" + hex.EncodeToString(id[:]) }), nil
	case []string:
		for _, s := range of {
			args = append(args, s)
		}
		return parenthesised(of, func(string) string { return "?" }), args
	}
	array, err := json.Marshal(list)
	if err != nil {
		panic(err) // numbers can be encoded
	}
	return `JSON_TABLE('` + string(array) + `', '$[*]' COLUMNS (value BIGINT PATH '$'))`, nil
}

func parenthesised[T any](list []T, write func(T) string) string {
	if len(list) == 0 {
		return "(NULL)"
	}
	var out strings.Builder
	for i := range list {
		out.WriteByte("(,"[min(i, 1)])
		out.WriteString(write(list[i]))
	}
	out.WriteByte(')')
	return out.String()
}

// endLockTimeout ends the lock timeout of a claim.
func endLockTimeout(ctx context.Context, tx *sql.Tx, c *inbox.Claim) error {
	if c.LockTimeout <= 0 {
		return nil
	}
	_, err := tx.ExecContext(ctx, restoreLock)
	return err
}

// numbers returns a list of numbers or IDs in parentheses, for IN.
func numbers(list any) string {
	text, _ := literals(list)
	return text
}
