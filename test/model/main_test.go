package modeltest

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/boxpair/boxpair/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const createEffects = `CREATE TABLE effects (id TEXT NOT NULL)`

// template returns a SQLite file with all tables, to be copied: migrating each time
// would take most of the time of a test.
func template(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "template.db")
	db, err := sqlite.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = sqlite.Migrate(t.Context(), db, sqlite.Config{})
	if err == nil {
		_, err = db.ExecContext(t.Context(), createEffects)
	}
	if err == nil {
		err = db.Close() // with its last connection goes the write-ahead log
	}
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// openCopy opens a new database with the content of a template.
func openCopy(t *testing.T, content []byte) (*sql.DB, *sqlite.Store) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return openFile(t, path)
}

func openFile(t *testing.T, path string) (*sql.DB, *sqlite.Store) {
	t.Helper()
	db, err := sqlite.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	store, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return db, store
}

// inBubble runs one sequence that rapid draws in a bubble of its own, so that time is the test's.
// Rapid itself stays outside: its time limits are the real ones. It ends a sequence by a panic,
// which is carried over: one that means invalid data on a way of its own, since rapid tells
// failures apart by where they come from.
func inBubble(t *testing.T, rt *rapid.T, run func(t *testing.T)) {
	t.Helper()
	var stopped any
	synctest.Test(t, func(t *testing.T) {
		defer func() { stopped = recover() }()
		run(t)
	})
	switch kind := fmt.Sprintf("%T", stopped); {
	case kind == "rapid.invalidData":
		rt.Skip(stopped)
	case stopped != nil:
		panic(stopped)
	case t.Failed():
		rt.FailNow()
	}
}
