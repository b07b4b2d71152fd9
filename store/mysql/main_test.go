package mysql_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/mysql"
	"github.com/boxpair/boxpair/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// database returns a migrated database of the test's own, and its DSN.
func database(t testing.TB) (*sql.DB, string) {
	t.Helper()
	dsn := testenv.MySQL(t)
	db := open(t, dsn)
	if _, err := mysql.Migrate(t.Context(), db, mysql.Config{}); err != nil {
		t.Fatal(err)
	}
	return db, dsn
}

func open(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	db, err := mysql.Open(dsn)
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

func newStore(t testing.TB, db *sql.DB) *mysql.Store {
	t.Helper()
	s, err := mysql.New(db, mysql.Config{})
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
func write(t testing.TB, s *mysql.Store, records ...producer.Record) {
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

func uuidOf(n byte) uuid.UUID { return uuid.UUID{15: n} }

// records returns one event with a payload.
func records(payload string) []producer.Record {
	return []producer.Record{record("key", 1, payload)}
}
