package consumer_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/sqlite"
)

// database is a real one, with a table of effects.
type database[TX any] struct {
	store  inbox.Store[TX]
	outbox *producer.Outbox[TX]
	// exec runs a statement in a transaction of a handler.
	exec func(ctx context.Context, tx TX, statement string) error
	// number reads one number.
	number func(query string) int
	// snapshots tells whether transactions run side by side.
	snapshots bool
}

// levels are the isolation levels that differ.
func (d *database[TX]) levels() []inbox.Isolation {
	if d.snapshots {
		return []inbox.Isolation{inbox.ReadCommitted, inbox.RepeatableRead, inbox.Serializable}
	}
	return []inbox.Isolation{inbox.ReadCommitted}
}

const createEffects = `CREATE TABLE effects (seq INTEGER NOT NULL, id TEXT NOT NULL)`

// do is the effect of handling a dispatch.
func (d *database[TX]) do(ctx context.Context, w *consumer.Work[TX]) error {
	return d.exec(ctx, w.DB(), fmt.Sprintf(
		`INSERT INTO effects (seq, id) SELECT count(*), '%s' FROM effects`, w.Event().ID))
}

// wantEffects checks that each of n dispatches had its effect once.
func (d *database[TX]) wantEffects(t *testing.T, n int) {
	t.Helper()
	all, different := d.number(`SELECT count(*) FROM effects`), d.number(`SELECT count(DISTINCT id) FROM effects`)
	if all != n || different != n {
		t.Errorf("%d effects of %d dispatches, want %d of %d", all, different, n, n)
	}
}

func openPostgres(t *testing.T, url string) *database[pgx.Tx] {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	store, err := postgres.New(pool, postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	outbox, err := producer.New(store, producer.Config{Name: "stock"})
	if err != nil {
		t.Fatal(err)
	}
	return &database[pgx.Tx]{
		store: store, outbox: outbox, snapshots: true,
		exec: func(ctx context.Context, tx pgx.Tx, statement string) error {
			_, err := tx.Exec(ctx, statement)
			return err
		},
		number: func(query string) (n int) {
			t.Helper()
			if err := pool.QueryRow(context.Background(), query).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		},
	}
}

// newPostgres returns a database of this test's own, and its URL.
func newPostgres(t *testing.T) (*database[pgx.Tx], string) {
	t.Helper()
	url := testenv.Postgres(t)
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := postgres.Migrate(t.Context(), pool, postgres.Config{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), createEffects); err != nil {
		t.Fatal(err)
	}
	return openPostgres(t, url), url
}

// migrated returns the store of a database of this test's own, whose pool configure may change.
func migrated(tb testing.TB, configure func(*pgxpool.Config)) *postgres.Store {
	tb.Helper()
	cfg, err := pgxpool.ParseConfig(testenv.Postgres(tb))
	if err != nil {
		tb.Fatal(err)
	}
	if configure != nil {
		configure(cfg)
	}
	pool, err := pgxpool.NewWithConfig(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	if _, err := postgres.Migrate(tb.Context(), pool, postgres.Config{}); err != nil {
		tb.Fatal(err)
	}
	store, err := postgres.New(pool, postgres.Config{})
	if err != nil {
		tb.Fatal(err)
	}
	return store
}

func openSQLite(t *testing.T, path string) *database[*sql.Tx] {
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
	outbox, err := producer.New(store, producer.Config{Name: "stock"})
	if err != nil {
		t.Fatal(err)
	}
	return &database[*sql.Tx]{
		store: store, outbox: outbox,
		exec: func(ctx context.Context, tx *sql.Tx, statement string) error {
			_, err := tx.ExecContext(ctx, statement)
			return err
		},
		number: func(query string) (n int) {
			t.Helper()
			if err := db.QueryRow(query).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		},
	}
}

// newSQLite returns a database in a file of this test's own, and the file.
func newSQLite(t *testing.T) (*database[*sql.Tx], string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "stock.db")
	db, err := sqlite.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := sqlite.Migrate(t.Context(), db, sqlite.Config{}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(createEffects); err != nil {
		t.Fatal(err)
	}
	return openSQLite(t, path), path
}

// onEach runs a test on both databases.
func onEach(t *testing.T, pg func(*testing.T, *database[pgx.Tx]), lite func(*testing.T, *database[*sql.Tx])) {
	t.Helper()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		db, _ := newPostgres(t)
		pg(t, db)
	})
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		db, _ := newSQLite(t)
		lite(t, db)
	})
}

// handle returns a handler under the name "reserve" of a new inbox on db.
func handle[TX any](t *testing.T, db *database[TX], cfg consumer.Config, hc consumer.HandlerConfig, fn consumer.HandlerFunc[TX]) (*consumer.Inbox[TX], *consumer.Handler[TX]) {
	t.Helper()
	cfg.Service = "stock"
	inbox, err := consumer.New(db.store, db.outbox, cfg)
	if err != nil {
		t.Fatal(err)
	}
	hc.Topic = "orders"
	h, err := inbox.Handle("reserve", fn, hc)
	if err != nil {
		t.Fatal(err)
	}
	return inbox, h
}

// table returns the name of a table of the library's.
func table[TX any](db *database[TX], name string) string {
	if db.snapshots {
		return "boxpair." + name
	}
	return `boxpair_` + name
}

// rowID names the column that tells in which order rows of one transaction each came to be.
func rowID[TX any](db *database[TX]) string {
	if db.snapshots {
		return "ctid"
	}
	return "rowid"
}

// waitFor waits until cond holds.
func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("waited for too long")
		}
	}
}

func execute[TX any](t *testing.T, db *database[TX], statement string) error {
	t.Helper()
	id, err := db.store.Register(t.Context(), "setup", time.Hour)
	if err != nil {
		return err
	}
	_, err = db.store.Apply(t.Context(), inbox.Claim{Consumer: id.Consumer, ID: uuid.New()}, func(ctx context.Context, tx TX) error {
		return db.exec(ctx, tx, statement)
	})
	return err
}
