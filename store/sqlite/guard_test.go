package sqlite_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	driver "modernc.org/sqlite"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/internal/sqlstore/sqlstoretest"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/sqlite"
)

// endless is a writing statement that runs until it is interrupted. Its function tells the test
// that the statement runs.
const endless = `INSERT INTO effects WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT test_runs(?) FROM n`

// running has the function to call when an endless statement runs, by the statement's argument.
var running sync.Map

func init() {
	driver.MustRegisterScalarFunction("test_runs", 1, func(_ *driver.FunctionContext, args []sqldriver.Value) (sqldriver.Value, error) {
		if runs, ok := running.Load(args[0]); ok {
			runs.(func())()
		}
		return args[0], nil
	})
}

// interrupt runs a writing statement in tx and interrupts the statement: SQLite rolls the whole
// transaction back. A statement whose context ends before it runs would lose nothing.
func interrupt(ctx context.Context, tx *sql.Tx) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	name := uuid.NewString()
	running.Store(name, func() { cancel() })
	defer running.Delete(name)
	_, err := tx.ExecContext(ctx, endless, name)
	return err
}

func TestStatementsAfterALostTransactionAreRefused(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	s := newStore(t, db)
	run(t, db, `CREATE TABLE effects (x)`)
	err := s.Transact(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		run(t, tx, `INSERT INTO effects VALUES ('before')`)
		if err := interrupt(ctx, tx); err == nil {
			t.Error("the endless statement ended")
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES ('after')`); !errors.Is(err, sqlite.ErrTransactionLost) {
			t.Errorf("Exec() = %v, want ErrTransactionLost", err)
		}
		if err := tx.QueryRowContext(ctx, `SELECT 1`).Scan(new(int)); !errors.Is(err, sqlite.ErrTransactionLost) {
			t.Errorf("Query() = %v, want ErrTransactionLost", err)
		}
		if _, err := s.Append(ctx, tx, uuid.New(), []outbox.Record{record("a", 1, "x")}); err == nil {
			t.Error("an event was accepted")
		}
		return nil
	})
	if err == nil {
		t.Error("the transaction was committed")
	}
	if n := number(t, db, `SELECT count(*) FROM effects`); n != 0 {
		t.Errorf("%d effects were committed", n)
	}
	write(t, s, record("a", 2, "x")) // the lock is free, the connection fit for use
}

func TestLostTransactionOfTheCallersFailsItsCommit(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	run(t, db, `CREATE TABLE effects (x)`)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = interrupt(t.Context(), tx)
	_, _ = tx.ExecContext(t.Context(), `INSERT INTO effects VALUES ('after')`)
	if err := tx.Commit(); !errors.Is(err, sqlite.ErrTransactionLost) {
		t.Errorf("Commit() = %v, want ErrTransactionLost", err)
	}
	if n := number(t, db, `SELECT count(*) FROM effects`); n != 0 {
		t.Errorf("%d effects were committed", n)
	}
}

func TestHandlerThatSwallowsALostTransactionAppliesNothing(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(ctx context.Context, tx *sql.Tx) error{
		"interrupted": interrupt,
		"disk full": func(ctx context.Context, tx *sql.Tx) error {
			pages := 0
			if err := tx.QueryRowContext(ctx, `PRAGMA page_count`).Scan(&pages); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, fmt.Sprintf(`PRAGMA max_page_count = %d`, pages+1)); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES (?)`, strings.Repeat("x", 1<<20))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, _ := database(t)
			s := newStore(t, db)
			run(t, db, `CREATE TABLE effects (x)`)
			c := claim(t, s)
			verdict, err := s.Apply(t.Context(), c, func(ctx context.Context, tx *sql.Tx) error {
				run(t, tx, `INSERT INTO effects VALUES ('before')`)
				if lose(ctx, tx) == nil {
					t.Error("the statement was to fail")
				}
				_, _ = tx.ExecContext(ctx, `INSERT INTO effects VALUES ('after')`)
				return nil
			})
			// A full disk rolls back the statement only, if SQLite can.
			if lost := err != nil; lost != (verdict != inbox.Applied) {
				t.Errorf("Apply() = %v, %v", verdict, err)
			}
			if err != nil && !errors.Is(err, inbox.ErrRolledBack) {
				t.Errorf("Apply() = %v, want ErrRolledBack", err)
			}
			effects, claims := number(t, db, `SELECT count(*) FROM effects`), number(t, db, `SELECT count(*) FROM boxpair_inbox`)
			if effects != 2*claims {
				t.Errorf("%d effects and %d claims are committed", effects, claims)
			}
		})
	}
}

// claim registers a consumer and returns a claim of a new message.
func claim(t testing.TB, s *sqlite.Store) inbox.Claim {
	t.Helper()
	r, err := s.Register(t.Context(), "test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	id := uuid.New()
	return inbox.Claim{Consumer: r.Consumer, ID: id, Message: &inbox.Message{ID: id, Topic: "topic"}}
}

func TestTransactionWithinATransactionIsRefused(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	s := newStore(t, db)
	var within context.Context
	err := s.Transact(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		within = ctx
		nested := s.Transact(ctx, func(context.Context, *sql.Tx) error { return nil })
		if !errors.Is(nested, sqlite.ErrNested) || s.Classify(nested) != inbox.HandlerError {
			t.Errorf("Transact() = %v, want ErrNested", nested)
		}
		if _, err := db.BeginTx(ctx, nil); !errors.Is(err, sqlite.ErrNested) {
			t.Errorf("BeginTx() = %v, want ErrNested", err)
		}
		if _, err := s.Failed(ctx, 1, uuid.New(), ""); !errors.Is(err, sqlite.ErrNested) {
			t.Errorf("Failed() = %v, want ErrNested", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// Work with the context of the transaction, but after its end, is not nested.
	if err := s.Transact(within, func(context.Context, *sql.Tx) error { return nil }); err != nil {
		t.Errorf("Transact() after the end = %v", err)
	}
}

func TestHandlerReadsOutsideOfItsTransactionWhileManyWait(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	s := newStore(t, db)
	run(t, db, `CREATE TABLE effects (x)`)
	const n = 50
	errs := make(chan error, n)
	for range n {
		go func() {
			errs <- s.Transact(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
				run(t, tx, `INSERT INTO effects VALUES (1)`)
				var committed int
				return db.QueryRowContext(ctx, `SELECT count(*) FROM effects`).Scan(&committed)
			})
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if got := number(t, db, `SELECT count(*) FROM effects`); got != n {
		t.Errorf("%d effects, want %d", got, n)
	}
}

func TestIdleTransactionIsRolledBack(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	s := newStore(t, db)
	run(t, db, `CREATE TABLE effects (x)`)
	c := claim(t, s)
	c.IdleTimeout = 50 * time.Millisecond
	var verdict inbox.Verdict
	var err error
	for written := false; !written; {
		begun := time.Now()
		verdict, err = s.Apply(t.Context(), c, func(ctx context.Context, tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES ('before')`); err != nil {
				return err
			}
			written = true
			write(t, s, record("a", 1, "another writer")) // waits until the lock is free
			_, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES ('after')`)
			if !errors.Is(err, sqlite.ErrTransactionLost) {
				t.Errorf("Exec() = %v, want ErrTransactionLost", err)
			}
			return nil
		})
		// On a slow machine the transaction may be lost before its first statement.
		if !written && (time.Since(begun) < c.IdleTimeout || !errors.Is(err, sqlite.ErrTransactionLost)) {
			t.Fatalf("Apply() = %v, %v before the first statement", verdict, err)
		}
	}
	if verdict != inbox.None || !errors.Is(err, sqlite.ErrTransactionLost) || s.Classify(err) != inbox.HandlerError {
		t.Errorf("Apply() = %v, %v of class %v", verdict, err, s.Classify(err))
	}
	if n := number(t, db, `SELECT count(*) FROM effects`); n != 0 {
		t.Errorf("%d effects were committed", n)
	}
	if n := number(t, db, `SELECT count(*) FROM boxpair_inbox`); n != 0 {
		t.Errorf("%d claims were committed", n)
	}
}

func TestBusyHandlerIsNotIdle(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	s := newStore(t, db)
	run(t, db, `CREATE TABLE effects (x)`)
	c := claim(t, s)
	c.IdleTimeout = 200 * time.Millisecond
	for done := false; !done; {
		last, longest := time.Now(), time.Duration(0)
		pass := func() { longest, last = max(longest, time.Since(last)), time.Now() }
		verdict, err := s.Apply(t.Context(), c, func(ctx context.Context, tx *sql.Tx) error {
			for begun := time.Now(); time.Since(begun) < 2*c.IdleTimeout; {
				_, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES (1)`)
				pass()
				if err != nil {
					return err
				}
			}
			return nil
		})
		pass()
		applied := verdict == inbox.Applied && err == nil
		if done = applied || longest < c.IdleTimeout; done && !applied { // else the machine was too slow to tell
			t.Errorf("Apply() = %v, %v", verdict, err)
		}
	}
}

// second returns another database object over the file, as another process would.
func second(t *testing.T, path string, busy time.Duration) *sql.DB {
	t.Helper()
	c, err := sqlite.NewConnector(path, sqlite.ConnectorConfig{BusyTimeout: busy})
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(c)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func TestWaitForAnotherProcessEndsWithItsContextAndItsTimeout(t *testing.T) {
	t.Parallel()
	db, path := database(t)
	held := newStore(t, db)
	other := newStore(t, second(t, path, 100*time.Millisecond))
	patient := newStore(t, second(t, path, time.Minute))
	nothing := func(context.Context, *sql.Tx) error { return nil }
	waited := make(chan error, 1)
	err := held.Transact(t.Context(), func(context.Context, *sql.Tx) error {
		begun := time.Now()
		if err := other.Transact(t.Context(), nothing); !other.Retryable(err) || other.Classify(err) != inbox.Conflict {
			t.Errorf("Transact() = %v, want a busy error", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := patient.Transact(ctx, nothing); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Transact() = %v, want the context's error", err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := patient.Heartbeat(ctx, "relay", time.Second); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Heartbeat() = %v, want the context's error", err)
		}
		c := inbox.Claim{Consumer: 1, ID: uuid.New(), LockTimeout: 100 * time.Millisecond}
		if _, err := patient.Apply(t.Context(), c, nothing); patient.Classify(err) != inbox.Conflict {
			t.Errorf("Apply() = %v, want a conflict", err)
		}
		if took := time.Since(begun); took > time.Minute {
			t.Errorf("all that took %v", took)
		}
		go func() { waited <- patient.Transact(t.Context(), nothing) }()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Errorf("Transact() after the wait = %v", err)
	}
}

func TestWaitForThisProcessEndsWithItsContextAndItsTimeout(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "test.db")
	open(t, path)
	s := newStore(t, second(t, path, 100*time.Millisecond))
	nothing := func(context.Context, *sql.Tx) error { return nil }
	err := s.Transact(t.Context(), func(context.Context, *sql.Tx) error {
		if err := s.Transact(t.Context(), nothing); !s.Retryable(err) || s.Classify(err) != inbox.Conflict {
			t.Errorf("Transact() = %v, want a busy error", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Transact(ctx, nothing); !errors.Is(err, context.Canceled) {
			t.Errorf("Transact() = %v, want the context's error", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestOneStatementMayBeOpenTwice(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	run(t, db, `CREATE TABLE effects (x)`)
	run(t, db, `INSERT INTO effects VALUES (1), (2), (3)`)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	pairs := 0
	each(t, tx, `SELECT x FROM effects ORDER BY x`, func() {
		each(t, tx, `SELECT x FROM effects ORDER BY x`, func() { pairs++ })
	})
	if pairs != 9 {
		t.Errorf("read %d pairs, want 9", pairs)
	}
}

func each(t *testing.T, tx *sql.Tx, query string, fn func()) {
	t.Helper()
	rows, err := tx.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		fn()
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}

func TestRepeatedPragmaTakesEffectEveryTime(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for range 2 {
		for _, want := range []int{0, 1} {
			run(t, conn, fmt.Sprintf(`PRAGMA foreign_keys = %d`, want))
			var got int
			if err := conn.QueryRowContext(t.Context(), `PRAGMA foreign_keys`).Scan(&got); err != nil || got != want {
				t.Errorf("foreign_keys = %d, %v, want %d", got, err, want)
			}
		}
	}
}

func TestOpenedDatabaseIsConfiguredForDurability(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "with space, 100% #1 and ?.db")
	db, err := sqlite.Open(path)
	db = sqlstoretest.Opened(t, db, err)
	for pragma, want := range map[string]string{
		"journal_mode": "wal", "synchronous": "2", "fullfsync": "1", "foreign_keys": "1", "busy_timeout": "0",
	} {
		var got string
		if err := db.QueryRowContext(t.Context(), `PRAGMA `+pragma).Scan(&got); err != nil || got != want {
			t.Errorf("%s = %s, %v, want %s", pragma, got, err, want)
		}
	}
	if files, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*.db")); err != nil || len(files) != 1 || files[0] != path {
		t.Errorf("files are %v, %v, want %s", files, err, path)
	}
}

func TestOpenRefusesWhatCannotBeShared(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"", ":memory:", "file:x.db", "a\x00b"} {
		if _, err := sqlite.Open(path); err == nil || !strings.Contains(err.Error(), "path") {
			t.Errorf("Open(%q) = %v, want an error about the path", path, err)
		}
	}
	if _, err := sqlite.NewConnector("x.db", sqlite.ConnectorConfig{BusyTimeout: -1}); err == nil || !strings.Contains(err.Error(), "BusyTimeout") {
		t.Errorf("NewConnector() = %v, want an error about BusyTimeout", err)
	}
}

func TestNewRefusesADatabaseWithoutAGuard(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "test.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := sqlite.New(db, sqlite.Config{}); err == nil || !strings.Contains(err.Error(), "Unguarded") {
		t.Errorf("New() = %v, want an error that names Unguarded", err)
	}
	if _, err := sqlite.New(nil, sqlite.Config{Prefix: "sqlite_"}); err == nil ||
		!strings.Contains(err.Error(), "db") || !strings.Contains(err.Error(), "prefix") {
		t.Errorf("New() = %v, want an error about db and prefix", err)
	}
	if _, err := sqlite.New(db, sqlite.Config{Unguarded: true}); err != nil {
		t.Error(err)
	}
}
