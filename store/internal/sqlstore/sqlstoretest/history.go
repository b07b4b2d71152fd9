package sqlstoretest

import (
	"database/sql"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/storetest"
)

// ConfirmedAttempt tests that a store with AllAttempts keeps a confirmed attempt. It returns the
// event.
func ConfirmedAttempt(t *testing.T, store interface {
	Store
	writer
},
) outbox.Record {
	t.Helper()
	r := Record("key", 1, "payload")
	Write(t, store, r)
	grants, err := store.Acquire(t.Context(), "relay", time.Hour, idgen.Shards)
	if err != nil {
		t.Fatal(err)
	}
	queued, err := store.Fetch(t.Context(), []outbox.Range{{Shard: r.Shard, Limit: 1}})
	if err != nil {
		t.Fatal(err)
	}
	mark := outbox.Mark{Lease: grants[r.Shard].Lease, Seq: queued[0].Seq, Round: queued[0].Round}
	if _, err := store.Mark(t.Context(), "relay", []outbox.Mark{mark}); err != nil {
		t.Fatal(err)
	}
	attempts, err := store.Attempts(t.Context(), r.ID, 10)
	if err != nil || len(attempts) != 1 || attempts[0].Outcome != "confirmed" || attempts[0].Relay != "relay" {
		t.Errorf("attempts are %+v, %v", attempts, err)
	}
	return r
}

// InboxStatus tests the view of the inbox; arg converts a dispatch ID for a query.
func (c *Contract) InboxStatus(t *testing.T, arg func(id uuid.UUID) any) {
	t.Parallel()
	db, store := c.Open(t)
	storetest.InboxStatus(t, c.Inbox(t, db, store), func(id uuid.UUID) (state, why string, attempts int, err error) {
		err = db.QueryRowContext(t.Context(), `SELECT state, why, attempts FROM boxpair_inbox_status WHERE dispatch_id = ?`, arg(id)).
			Scan(&state, &why, &attempts)
		return state, why, attempts, err
	})
}

// RouteStatus tests how the view of the outbox shows events on a stalled route; arg converts a
// dispatch ID for a query.
func (c *Contract) RouteStatus(t *testing.T, arg func(id uuid.UUID) any) {
	t.Parallel()
	db, store := c.Open(t)
	storetest.RouteStatus(t, c.outbox(t, db, store), func(id uuid.UUID) (state, why string, err error) {
		err = db.QueryRowContext(t.Context(), `SELECT state, why FROM boxpair_outbox_status WHERE dispatch_id = ?`, arg(id)).Scan(&state, &why)
		return state, why, err
	})
}

// AllAttempts tests that a store with AllAttempts keeps applied messages in the history.
func (c *Contract) AllAttempts(t *testing.T, open func(db *sql.DB) (Store, error)) {
	t.Parallel()
	db, _ := c.Open(t)
	store, err := open(db)
	if err != nil {
		t.Fatal(err)
	}
	storetest.AllAttempts(t, c.Inbox(t, db, store))
}
