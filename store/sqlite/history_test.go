package sqlite_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/store/storetest"
	"github.com/boxpair/boxpair/transport"
)

func TestAllAttemptsAreKeptOnRequest(t *testing.T) {
	t.Parallel()
	db, err := sqlite.Open(filepath.Join(t.TempDir(), "outbox.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if _, err := sqlite.Migrate(t.Context(), db, sqlite.Config{}); err != nil {
		t.Fatal(err)
	}
	store, err := sqlite.New(db, sqlite.Config{AllAttempts: true})
	if err != nil {
		t.Fatal(err)
	}
	e := transport.Event{ID: uuid.New(), Topic: "topic", Payload: []byte("payload")}
	e.Digest = transport.ContentDigest(&e)
	shard := idgen.Shard("", e.ID)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Append(t.Context(), tx, uuid.New(), []producer.Record{{Event: e, Shard: shard}}); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	grants, err := store.Acquire(t.Context(), "relay", time.Hour, idgen.Shards)
	if err != nil {
		t.Fatal(err)
	}
	queued, err := store.Fetch(t.Context(), []producer.Range{{Shard: shard, Limit: 1}})
	if err != nil {
		t.Fatal(err)
	}
	mark := producer.Mark{Lease: grants[shard].Lease, Seq: queued[0].Seq}
	if _, err := store.Mark(t.Context(), "relay", []producer.Mark{mark}); err != nil {
		t.Fatal(err)
	}
	attempts, err := store.Attempts(t.Context(), e.ID, 10)
	if err != nil || len(attempts) != 1 || attempts[0].Outcome != "confirmed" || attempts[0].Relay != "relay" {
		t.Errorf("attempts are %+v, %v", attempts, err)
	}
	var state, at string
	err = db.QueryRowContext(t.Context(), `SELECT state, delivered_at FROM boxpair_outbox_status WHERE dispatch_id = ?`, e.ID.String()).Scan(&state, &at)
	if err != nil || state != "delivered" || at == "" {
		t.Errorf("state is %q, delivered at %q, %v", state, at, err)
	}
}

func TestAppliedMessagesAreInTheHistoryOnRequest(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	newStore(t, db)
	store, err := sqlite.New(db, sqlite.Config{AllAttempts: true})
	if err != nil {
		t.Fatal(err)
	}
	storetest.AllAttempts(t, inbox(t, db, store))
}

func TestStatusSaysWhatBecameOfAMessage(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	storetest.InboxStatus(t, inbox(t, db, newStore(t, db)), func(id uuid.UUID) (state, why string, attempts int, err error) {
		err = db.QueryRow(`SELECT state, why, attempts FROM boxpair_inbox_status WHERE dispatch_id = ?`, id[:]).Scan(&state, &why, &attempts)
		return state, why, attempts, err
	})
}
