package sqlstoretest

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// Opened checks the results of a function that opens a database, and closes db at the end of the
// test.
func Opened(t testing.TB, db *sql.DB, err error) *sql.DB {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// Record returns an event of key with payload.
func Record(key string, version int64, payload string) outbox.Record {
	id := idgen.Of("test", key, version, 0)
	e := transport.Event{ID: id, Topic: "topic", Key: key, Producer: "test", Source: key, Version: version, Payload: []byte(payload)}
	e.Digest = transport.ContentDigest(&e)
	return outbox.Record{Event: e, Shard: idgen.Shard(key, id), OccurredAt: time.Now()}
}

// writer is a store with the methods that write events.
type writer interface {
	Append(ctx context.Context, tx *sql.Tx, writer uuid.UUID, records []outbox.Record) ([]bool, error)
	Transact(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error
}

// Write appends records in a transaction of their own.
func Write(t testing.TB, s writer, records ...outbox.Record) {
	t.Helper()
	err := s.Transact(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		_, err := s.Append(ctx, tx, uuid.New(), records)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Run runs a statement.
func Run(t testing.TB, db interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, query string, args ...any,
) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// Number reads one number.
func Number(t testing.TB, db *sql.DB, query string, args ...any) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}
