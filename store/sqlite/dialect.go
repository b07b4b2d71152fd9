package sqlite

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/internal/sqlstore"
)

// words are the texts for the words of statements in SQLite. Rows need no locks: only one
// transaction writes at a time.
var words = map[string]string{
	"event_key": "key", "message_key": "key", "request_key": "key",
	"greatest": "max", "least": "min",
	"lock": "", "lock_free": "", "by": "",
	"then_join": "CROSS JOIN",
	"again":     "ON CONFLICT ($) DO UPDATE SET",
	"once":      "ON CONFLICT ($) DO NOTHING",
	// The conditions of the partial indexes.
	"live":  "$.state IN ('retrying', 'following')",
	"first": "$.ordered AND $.state IN ('retrying', 'following')",
	"waits": "$.ordered AND $.state IN ('pending', 'doing', 'answered', 'uncertain')",

	"user_or": "$",

	"of_events":  "$.id IN (SELECT id FROM {outbox_events} WHERE dispatch_id IN ?)",
	"in_receipt": "e.id IN (SELECT value FROM json_each(r.event_ids))",
	"by_newest":  "NOT INDEXED", // the index on stamps would need a sort of all rows
	"newest":     "seq",
	"be_newest":  ", seq = (SELECT max(seq) + 1 FROM {inbox})",
}

// statsStmt counts through indexes only, up to the cap. No index has followers alone: their number
// is the number of live events minus the retrying events. It finds the oldest event by one look
// into the queue per shard. Replayed events, which were delivered before, do not count. Deferred
// events count from their due time, even if no relay has moved them.
const statsStmt = `
SELECT n.pending, n.retrying, max(0, n.live - n.retrying), n.dead, n.owned, n.relays, n.deferred, {now} - n.oldest FROM (SELECT
       (SELECT count(*) FROM (SELECT 1 FROM {outbox_queue} LIMIT ?)) AS pending,
       (SELECT count(*) FROM (SELECT 1 FROM {outbox_parked} WHERE state = 'retrying' LIMIT ?)) AS retrying,
       (SELECT count(*) FROM (SELECT 1 FROM {outbox_parked} WHERE state IN ('retrying', 'following') LIMIT ?)) AS live,
       (SELECT count(*) FROM (SELECT 1 FROM {outbox_parked} WHERE state = 'dead' LIMIT ?)) AS dead,
       (SELECT count(*) FROM {outbox_shards} WHERE owner IS NOT NULL AND lease_until > {now}) AS owned,
       (SELECT count(*) FROM {outbox_relays} WHERE seen_until > {now}) AS relays,
       (SELECT count(*) FROM (SELECT 1 FROM {outbox_deferred} LIMIT ?)) AS deferred,
       (SELECT min(at) FROM (
           SELECT ` + sqlstore.StampOf + ` AS at FROM {outbox_events} e WHERE e.id IN (
               SELECT (SELECT min(q.id) FROM {outbox_queue} q WHERE q.shard = s.shard AND q.round <= 0) FROM {outbox_shards} s
               UNION ALL SELECT min(id) FROM {outbox_parked} WHERE state IN ('retrying', 'following'))
           UNION ALL
           SELECT (SELECT min(d.due_at) FROM {outbox_deferred} d WHERE d.shard = s.shard AND d.due_at <= {now}) FROM {outbox_shards} s)) AS oldest) n`

// dialect returns the differences of SQLite.
func (s *Store) dialect() sqlstore.Dialect {
	return sqlstore.Dialect{
		Names: s.names, Words: words, Clock: now, Fixed: true, List: arrays,
		Write: s.write, Read: s.read, Claiming: s.claiming, Missing: missing, Lost: ErrTransactionLost, StatementContext: context.WithoutCancel, TakeWriteLock: s.takeLock,
		EndLockTimeout: func(context.Context, *sql.Tx, *inbox.Claim) error { return nil },
		LockKeys:       func(context.Context, *sql.Tx, int, ...string) error { return nil },
		Stats:          statsStmt, Dequeue: s.dequeue, Receipt: s.receipt, Heal: s.heal,
		RemoveEvents: s.removeEvents, ClaimToPark: s.claimToPark, ForgetIDs: s.forgetIDs,
	}
}

// now is the database's clock: the clock of the machine, which all processes on a database file
// share. SQLite's own functions read the same clock, rounded to milliseconds.
func now() int64 { return time.Now().UnixMicro() }

// arrays passes a list to json_each, so that one argument holds any number of values.
func arrays(values any) (text string, args []any) {
	text = "(SELECT value FROM json_each(?))"
	switch of := values.(type) {
	case sqlstore.Rows:
		text = "json_each(?)"
	case []uuid.UUID:
		text = "(SELECT unhex(value) FROM json_each(?))"
		ids := make([]string, len(of))
		for i := range of {
			ids[i] = hex.EncodeToString(of[i][:])
		}
		values = ids
	}
	array, err := json.Marshal(values)
	if err != nil {
		panic(err) // numbers and strings can be encoded
	}
	if string(array) == "null" {
		array = []byte("[]")
	}
	return text, []any{string(array)}
}
