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

// words are what SQLite says in its own way. Nothing locks rows: a transaction that writes is
// alone.
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

	"of_events":  "$.id IN (SELECT id FROM {outbox_events} WHERE dispatch_id IN ?)",
	"in_receipt": "e.id IN (SELECT value FROM json_each(r.event_ids))",
	"by_newest":  "NOT INDEXED", // the index on stamps would have all rows sorted
	"newest":     "seq",
	"be_newest":  ", seq = (SELECT max(seq) + 1 FROM {inbox})",
}

// statsStmt counts through indexes only, and no further than the cap. There is none for followers
// alone: they are the live ones that are not retrying. The oldest event is found by one look into
// the queue per shard; replayed ones were delivered in their time. Deferred ones count from when
// they are due, also where no relay has moved them.
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

// dialect returns what is SQLite's own in a store.
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

// now is the database's clock. SQLite runs in this process, so it is the
// machine's, which all processes that may share a database file have in common; SQLite's own
// functions would only round it to milliseconds.
func now() int64 { return time.Now().UnixMicro() }

// arrays gives a list to json_each, through which a statement takes any number of values by one.
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
