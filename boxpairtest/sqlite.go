package boxpairtest

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/sqlite"
)

// busyTimeout is how long a write past the handler's transaction waits for the lock of the
// transaction. The wait is in vain: the handler waits for the write.
const busyTimeout = time.Second

// SQLite returns a new database with the library's tables, and a store in it. The database is a file
// that lasts as long as the test. A writer waits for the lock of the database for a second at most.
func SQLite(t testing.TB) (*sql.DB, *sqlite.Store) {
	t.Helper()
	connector, err := sqlite.NewConnector(filepath.Join(t.TempDir(), "test.db"), sqlite.ConnectorConfig{BusyTimeout: busyTimeout})
	if err != nil {
		t.Fatalf("boxpairtest: %v", err)
	}
	db := sql.OpenDB(connector)
	t.Cleanup(func() { _ = db.Close() })
	if _, err := sqlite.Migrate(t.Context(), db, sqlite.Config{}); err != nil {
		t.Fatalf("boxpairtest: %v", err)
	}
	store, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		t.Fatalf("boxpairtest: %v", err)
	}
	return db, store
}

var errRollback = errors.New("the test ends here")

// Rollback runs fn in a transaction of outbox, and rolls the transaction back, so tests can share a
// database. fn uses the writer, or publishers with the context, which carries the transaction. Code
// that calls Transact commits, and has no place in fn. Rollback returns the events that fn has
// written: a Recorder of the test does not record uncommitted events. An error of fn fails the test.
func Rollback[TX any](t testing.TB, outbox *producer.Outbox[TX], fn func(ctx context.Context, w *producer.Writer[TX]) error) *Recorder {
	t.Helper()
	r := &Recorder{uncommitted: true}
	var failed error
	err := outbox.Transact(r.Context(t.Context()), func(ctx context.Context, w *producer.Writer[TX]) error {
		r.Reset() // of an attempt that met a conflict
		if failed = fn(ctx, w); failed != nil {
			return failed
		}
		if failed = w.Flush(ctx); failed != nil {
			return failed
		}
		return errRollback
	})
	if failed != nil || !errors.Is(err, errRollback) {
		t.Fatalf("boxpairtest: the transaction has failed: %v", err)
	}
	return r
}
