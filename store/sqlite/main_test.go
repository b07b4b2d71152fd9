package sqlite_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/store/internal/sqlstore/sqlstoretest"
	"github.com/boxpair/boxpair/store/sqlite"
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

// open opens and migrates the database at path. It is as from [sqlite.Open], but waits for longer: a
// test on a slow machine may hold the write lock beyond the default timeout.
func open(t testing.TB, path string) *sql.DB {
	t.Helper()
	c, err := sqlite.NewConnector(path, sqlite.ConnectorConfig{BusyTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	db := sqlstoretest.Opened(t, sql.OpenDB(c), nil)
	db.SetMaxIdleConns(16)
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

var (
	record = sqlstoretest.Record
	write  = sqlstoretest.Write
	run    = sqlstoretest.Run
	number = sqlstoretest.Number
)
