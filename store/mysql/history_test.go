package mysql_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/mysql"
	"github.com/boxpair/boxpair/store/storetest"
)

func TestAllAttemptsAreKeptOnRequest(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	store, err := mysql.New(db, mysql.Config{AllAttempts: true})
	if err != nil {
		t.Fatal(err)
	}
	r := record("key", 1, "payload")
	write(t, store, r)
	grants, err := store.Acquire(t.Context(), "relay", time.Hour, 64)
	if err != nil {
		t.Fatal(err)
	}
	queued, err := store.Fetch(t.Context(), []producer.Range{{Shard: r.Shard, Limit: 1}})
	if err != nil {
		t.Fatal(err)
	}
	mark := producer.Mark{Lease: grants[r.Shard].Lease, Seq: queued[0].Seq}
	if _, err := store.Mark(t.Context(), "relay", []producer.Mark{mark}); err != nil {
		t.Fatal(err)
	}
	attempts, err := store.Attempts(t.Context(), r.ID, 10)
	if err != nil || len(attempts) != 1 || attempts[0].Outcome != "confirmed" || attempts[0].Relay != "relay" {
		t.Errorf("attempts are %+v, %v", attempts, err)
	}
	var state, key, at string
	err = db.QueryRowContext(t.Context(), "SELECT state, `key`, delivered_at FROM boxpair_outbox_status WHERE dispatch_id = ?", r.ID.String()).
		Scan(&state, &key, &at)
	if err != nil || state != "delivered" || key != "key" || at == "" {
		t.Errorf("state is %q of key %q, delivered at %q, %v", state, key, at, err)
	}
}

func TestAppliedMessagesAreInTheHistoryOnRequest(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	store, err := mysql.New(db, mysql.Config{AllAttempts: true})
	if err != nil {
		t.Fatal(err)
	}
	storetest.AllAttempts(t, inbox(t, db, store))
}

func TestStatusSaysWhatBecameOfAMessage(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	storetest.InboxStatus(t, inbox(t, db, newStore(t, db)), func(id uuid.UUID) (state, why string, attempts int, err error) {
		err = db.QueryRowContext(t.Context(), `SELECT state, why, attempts FROM boxpair_inbox_status WHERE dispatch_id = ?`, id.String()).
			Scan(&state, &why, &attempts)
		return state, why, attempts, err
	})
}
