package mysql_test

import (
	"database/sql"
	"testing"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/store/internal/sqlstore/sqlstoretest"
	"github.com/boxpair/boxpair/store/mysql"
	"github.com/boxpair/boxpair/store/outbox"
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
	return sqlstoretest.Opened(t, db, err)
}

func newStore(t testing.TB, db *sql.DB) *mysql.Store {
	t.Helper()
	s, err := mysql.New(db, mysql.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var (
	record = sqlstoretest.Record
	write  = sqlstoretest.Write
	run    = sqlstoretest.Run
	number = sqlstoretest.Number
)

func uuidOf(n byte) uuid.UUID { return uuid.UUID{15: n} }

// records returns one event with a payload.
func records(payload string) []outbox.Record {
	return []outbox.Record{record("key", 1, payload)}
}
