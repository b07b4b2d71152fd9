package consumertest

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
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

// Database is a real database with a table of effects.
type Database[TX any] struct {
	Store  inbox.Store[TX]
	Outbox *producer.Outbox[TX]
	// Exec runs a statement in a transaction of a handler.
	Exec func(ctx context.Context, tx TX, statement string) error
	// Number reads one number.
	Number func(query string) int
	// Snapshots tells whether transactions run side by side.
	Snapshots bool
}

// Levels returns the isolation levels that differ.
func (d *Database[TX]) Levels() []inbox.Isolation {
	if d.Snapshots {
		return []inbox.Isolation{inbox.ReadCommitted, inbox.RepeatableRead, inbox.Serializable}
	}
	return []inbox.Isolation{inbox.ReadCommitted}
}

const createEffects = `CREATE TABLE effects (seq INTEGER NOT NULL, id TEXT NOT NULL)`

// Do is the effect of handling a dispatch.
func (d *Database[TX]) Do(ctx context.Context, w *consumer.Work[TX]) error {
	return d.Exec(ctx, w.DB(), fmt.Sprintf(
		`INSERT INTO effects (seq, id) SELECT count(*), '%s' FROM effects`, w.Event().ID))
}

// WantEffects checks that each of n dispatches had its effect once.
func (d *Database[TX]) WantEffects(t *testing.T, n int) {
	t.Helper()
	all, different := d.Number(`SELECT count(*) FROM effects`), d.Number(`SELECT count(DISTINCT id) FROM effects`)
	if all != n || different != n {
		t.Errorf("%d effects of %d dispatches, want %d of %d", all, different, n, n)
	}
}

// OpenPostgres opens a database made by [NewPostgres].
func OpenPostgres(t *testing.T, url string) *Database[pgx.Tx] {
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
	return &Database[pgx.Tx]{
		Store: store, Outbox: outbox, Snapshots: true,
		Exec: func(ctx context.Context, tx pgx.Tx, statement string) error {
			_, err := tx.Exec(ctx, statement)
			return err
		},
		Number: func(query string) (n int) {
			t.Helper()
			if err := pool.QueryRow(context.Background(), query).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		},
	}
}

// NewPostgres returns a database for this test alone, and its URL.
func NewPostgres(t *testing.T) (*Database[pgx.Tx], string) {
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
	return OpenPostgres(t, url), url
}

// OpenSQLite opens a database made by [NewSQLite].
func OpenSQLite(t *testing.T, path string) *Database[*sql.Tx] {
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
	return &Database[*sql.Tx]{
		Store: store, Outbox: outbox,
		Exec: func(ctx context.Context, tx *sql.Tx, statement string) error {
			_, err := tx.ExecContext(ctx, statement)
			return err
		},
		Number: func(query string) (n int) {
			t.Helper()
			if err := db.QueryRow(query).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		},
	}
}

// NewSQLite returns a database in a file for this test alone, and the path of the file.
func NewSQLite(t *testing.T) (*Database[*sql.Tx], string) {
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
	return OpenSQLite(t, path), path
}

// OnEach runs a test on both databases.
func OnEach(t *testing.T, pg func(*testing.T, *Database[pgx.Tx]), lite func(*testing.T, *Database[*sql.Tx])) {
	t.Helper()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		db, _ := NewPostgres(t)
		pg(t, db)
	})
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		db, _ := NewSQLite(t)
		lite(t, db)
	})
}

// Table returns the name of a library table in the database.
func (d *Database[TX]) Table(name string) string {
	if d.Snapshots {
		return "boxpair." + name
	}
	return "boxpair_" + name
}

// Execute runs a statement in a separate transaction.
func (d *Database[TX]) Execute(tb testing.TB, statement string) error {
	tb.Helper()
	id, err := d.Store.Register(tb.Context(), "setup", time.Hour)
	if err != nil {
		return err
	}
	_, err = d.Store.Apply(tb.Context(), inbox.Claim{Consumer: id.Consumer, ID: uuid.New()}, func(ctx context.Context, tx TX) error {
		return d.Exec(ctx, tx, statement)
	})
	return err
}

// With returns a URL with one more parameter.
func With(t *testing.T, address, name, value string) *url.URL {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set(name, value)
	u.RawQuery = query.Encode()
	return u
}
