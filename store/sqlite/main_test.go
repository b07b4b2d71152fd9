package sqlite_test

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/transport"
)

func TestMain(m *testing.M) {
	if child := os.Getenv(childEnv); child != "" {
		runChild(child)
		return
	}
	goleak.VerifyTestMain(m)
}

// database returns a migrated database in a file of its own, and the file.
func database(t testing.TB) (*sql.DB, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test.db")
	return open(t, path), path
}

// open opens and migrates the database at path.
func open(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := sqlite.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := sqlite.Migrate(t.Context(), db, sqlite.Config{}); err != nil {
		t.Fatal(err)
	}
	return db
}

func newStore(t testing.TB, db *sql.DB) *sqlite.Store {
	t.Helper()
	s, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// record returns an event of key with the payload that is asked for.
func record(key string, version int64, payload string) producer.Record {
	id := idgen.Of("test", key, version, 0)
	e := transport.Event{ID: id, Topic: "topic", Key: key, Producer: "test", Source: key, Version: version, Payload: []byte(payload)}
	e.Digest = transport.ContentDigest(&e)
	return producer.Record{Event: e, Shard: idgen.Shard(key, id), OccurredAt: time.Now()}
}

// write appends records in a transaction of their own.
func write(t testing.TB, s *sqlite.Store, records ...producer.Record) {
	t.Helper()
	err := s.Transact(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		_, err := s.Append(ctx, tx, uuid.New(), records)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func run(t testing.TB, db interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func number(t testing.TB, db *sql.DB, query string, args ...any) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}
