package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite" // a driver that is not pgx's

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/storetest"
)

// newSQLStore makes the tables that cfg names and returns a store of them.
func newSQLStore(t testing.TB, pool *pgxpool.Pool, cfg postgres.Config) *postgres.SQLStore {
	t.Helper()
	if _, err := postgres.Migrate(t.Context(), pool, cfg); err != nil {
		t.Fatal(err)
	}
	store, err := postgres.NewSQL(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func sqlOutbox(store *postgres.SQLStore, db *sql.DB) storetest.OutboxFixture[*sql.Tx] {
	return storetest.OutboxFixture[*sql.Tx]{
		Store:    store,
		Begin:    func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) },
		Commit:   func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
		Rollback: func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() },
	}
}

func sqlInbox(t *testing.T, pool *pgxpool.Pool, cfg postgres.Config) storetest.InboxFixture[*sql.Tx] {
	t.Helper()
	f := inboxFixtureOf(t, pool, cfg)
	effects := pgx.Identifier{cfg.Schema, "effects"}.Sanitize()
	return storetest.InboxFixture[*sql.Tx]{
		Store: newSQLStore(t, pool, cfg),
		Effect: func(ctx context.Context, tx *sql.Tx, name string) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO "+effects+" (name) VALUES ($1)", name)
			return err
		},
		Effects: f.Effects,
		Break: func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "SELECT 1/0")
			return err
		},
		ErrorsDoom: true,
	}
}

// openDB returns the pool as database/sql sees it, closed when the test ends.
func openDB(t testing.TB, pool *pgxpool.Pool) *sql.DB {
	t.Helper()
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { db.Close() })
	return db
}

// TestProducerContractOfDatabaseSQL runs what has to do with transactions of the caller. Everything
// else of a [postgres.SQLStore] is the Store's own, on the same pool.
func TestProducerContractOfDatabaseSQL(t *testing.T) {
	t.Parallel()
	pool := newPool(t, func(cfg *pgxpool.Config) { cfg.MaxConns = 40 })
	db, tables := openDB(t, pool), &shelf{pool: pool}
	storetest.Producer(t, func(t *testing.T) storetest.OutboxFixture[*sql.Tx] {
		return sqlOutbox(newSQLStore(t, pool, tables.config(t)), db)
	}, "append", "concurrent writers", "transaction", "deferred")
}

// TestConsumerContractOfDatabaseSQL runs what has to do with transactions that handlers are lent.
func TestConsumerContractOfDatabaseSQL(t *testing.T) {
	t.Parallel()
	pool := newPool(t, func(cfg *pgxpool.Config) { cfg.MaxConns = 40 })
	tables := &shelf{pool: pool}
	storetest.Consumer(t, func(t *testing.T) storetest.InboxFixture[*sql.Tx] {
		return sqlInbox(t, pool, tables.config(t))
	}, "claim", "race", "group", "order", "take up")
}

func TestEffectContractOfDatabaseSQL(t *testing.T) {
	t.Parallel()
	pool := newPool(t, nil)
	tables := &shelf{pool: pool}
	storetest.Effects(t, func(t *testing.T) storetest.InboxFixture[*sql.Tx] {
		return sqlInbox(t, pool, tables.config(t))
	})
}

func TestRequestContractOfDatabaseSQL(t *testing.T) {
	t.Parallel()
	pool := newPool(t, nil)
	db, tables := openDB(t, pool), &shelf{pool: pool}
	storetest.Requests(t, func(t *testing.T) storetest.RequestFixture[*sql.Tx] {
		f := sqlOutbox(newSQLStore(t, pool, tables.config(t)), db)
		return storetest.RequestFixture[*sql.Tx]{
			Store: f.Store.(*postgres.SQLStore), Begin: f.Begin, Commit: f.Commit, Rollback: f.Rollback,
		}
	})
}

// sqlRig is a store whose transactions are those of database/sql, and the pool under it.
type sqlRig struct {
	*rig
	store *postgres.SQLStore
	db    *sql.DB
}

func newSQLRig(t *testing.T, change func(*pgxpool.Config)) *sqlRig {
	t.Helper()
	pool := newPool(t, change)
	cfg := postgres.Config{Schema: testenv.Name(t)}
	names, err := migrations.PostgresNames(cfg.Schema, cfg.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	store := newSQLStore(t, pool, cfg)
	return &sqlRig{rig: &rig{T: t, Store: store.Store, pool: pool, names: names}, store: store, db: openDB(t, pool)}
}

func (r *sqlRig) put(ctx context.Context, tx *sql.Tx, writer uuid.UUID, record outbox.Record) error {
	_, err := r.store.Append(ctx, tx, writer, []outbox.Record{record})
	return err
}

func TestTransactionOfAnotherDriverIsRefused(t *testing.T) {
	t.Parallel()
	r := newSQLRig(t, nil)
	db, err := sql.Open("sqlite", ":memory:")
	r.ok(err)
	defer db.Close()
	tx, err := db.BeginTx(r.ctx(), nil)
	r.ok(err)
	defer tx.Rollback()
	if err := r.put(r.ctx(), tx, uuid.New(), event("key", "1")); !errors.Is(err, postgres.ErrNotPgx) {
		t.Errorf("error is %v", err)
	}
}

func TestTransactionOfAnotherDatabaseSQLPoolIsTaken(t *testing.T) {
	t.Parallel()
	r := newSQLRig(t, nil)
	db := stdlib.OpenDB(*r.pool.Config().ConnConfig) // as sql.Open("pgx", url) does
	defer db.Close()
	tx, err := db.BeginTx(r.ctx(), nil)
	r.ok(err)
	e := event("key", "1")
	r.ok(r.put(r.ctx(), tx, uuid.New(), e))
	if q := r.queue(); len(q) != 0 {
		t.Errorf("queue holds %v before the commit", q)
	}
	r.ok(tx.Commit())
	if q := r.queue(); len(q) != 1 || q[0].ID != e.ID {
		t.Errorf("queue holds %v", q)
	}
	if err := r.put(r.ctx(), tx, uuid.New(), e); !errors.Is(err, sql.ErrTxDone) || errors.Is(err, postgres.ErrNotPgx) {
		t.Errorf("error after the end is %v", err)
	}
}

func TestLentTransactionCannotBeEndedByWhoGotIt(t *testing.T) {
	t.Parallel()
	r := newSQLRig(t, nil)
	for name, end := range map[string]func(tx *sql.Tx) error{"commit": (*sql.Tx).Commit, "rollback": (*sql.Tx).Rollback} {
		err := r.store.Transact(r.ctx(), func(ctx context.Context, tx *sql.Tx) error {
			r.ok(r.put(ctx, tx, uuid.New(), event("key", name)))
			if end(tx) == nil {
				t.Errorf("%s of a lent transaction gave no error", name)
			}
			return nil
		})
		if err == nil || errors.Is(err, outbox.ErrCommitUnknown) {
			t.Errorf("%s: error is %v", name, err)
		}
	}
	if q := r.queue(); len(q) != 0 {
		t.Errorf("queue holds %v", q)
	}
}

// TestWhatIsLeftOpenInALentTransactionEndsWithIt: rows that are still open would keep the
// connection busy.
func TestWhatIsLeftOpenInALentTransactionEndsWithIt(t *testing.T) {
	t.Parallel()
	r := newSQLRig(t, func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	for range 3 {
		var lent *sql.Tx
		r.ok(r.store.Transact(r.ctx(), func(ctx context.Context, tx *sql.Tx) error {
			lent = tx
			stmt, err := tx.PrepareContext(ctx, "SELECT generate_series(1, 1000)") //nolint:sqlclosecheck // that is the point
			r.ok(err)
			rows, err := stmt.QueryContext(ctx) //nolint:rowserrcheck,sqlclosecheck // that is the point
			r.ok(err)
			if !rows.Next() {
				t.Error("no row")
			}
			return nil
		}))
		if _, err := lent.ExecContext(r.ctx(), "SELECT 1"); !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("statement after the end: %v", err)
		}
	}
}

func TestLentTransactionIsRolledBackWhenItsUserPanics(t *testing.T) {
	t.Parallel()
	r := newSQLRig(t, func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	func() {
		defer func() { _ = recover() }()
		_ = r.store.Transact(r.ctx(), func(ctx context.Context, tx *sql.Tx) error {
			r.ok(r.put(ctx, tx, uuid.New(), event("key", "1")))
			panic("at the disco")
		})
	}()
	if q := r.queue(); len(q) != 0 { // and the one connection is free
		t.Errorf("queue holds %v", q)
	}
}

func TestSQLSavepointWithASwallowedErrorIsRolledBack(t *testing.T) {
	t.Parallel()
	r := newSQLRig(t, nil)
	kept, writer := event("key", "kept"), uuid.New()
	r.ok(r.store.Transact(r.ctx(), func(ctx context.Context, tx *sql.Tx) error {
		err := r.store.Savepoint(ctx, tx, func(ctx context.Context, tx *sql.Tx) error {
			r.ok(r.put(ctx, tx, writer, event("key", "lost")))
			_, _ = tx.ExecContext(ctx, "SELECT 1/0")
			return nil
		})
		if err == nil {
			t.Error("savepoint with a failed statement was released")
		}
		return r.put(ctx, tx, writer, kept)
	}))
	if q := r.queue(); len(q) != 1 || q[0].ID != kept.ID {
		t.Errorf("queue holds %v", q)
	}
}

func TestSQLSavepointsNest(t *testing.T) {
	t.Parallel()
	r := newSQLRig(t, nil)
	writer, gaveUp := uuid.New(), errors.New("gave up")
	outer, after := event("key", "outer"), event("key", "after")
	r.ok(r.store.Transact(r.ctx(), func(ctx context.Context, tx *sql.Tx) error {
		return r.store.Savepoint(ctx, tx, func(ctx context.Context, tx *sql.Tx) error {
			r.ok(r.put(ctx, tx, writer, outer))
			err := r.store.Savepoint(ctx, tx, func(ctx context.Context, tx *sql.Tx) error {
				r.ok(r.put(ctx, tx, writer, event("key", "inner")))
				return gaveUp
			})
			if !errors.Is(err, gaveUp) {
				t.Errorf("error is %v", err)
			}
			return r.put(ctx, tx, writer, after)
		})
	}))
	if q := r.queue(); len(q) != 2 || q[0].ID != outer.ID || q[1].ID != after.ID {
		t.Errorf("queue holds %v", q)
	}
}

func TestConflictThroughDatabaseSQLDoomsTheTransactionAndShowsNoDetail(t *testing.T) {
	t.Parallel()
	r := newSQLRig(t, nil)
	e := event("secret key", "secret payload")
	r.write(e)
	e.Payload, e.Digest[0] = []byte("other"), e.Digest[0]+1
	tx, err := r.db.BeginTx(r.ctx(), nil)
	r.ok(err)
	err = r.put(r.ctx(), tx, uuid.New(), e)
	if !errors.Is(err, outbox.ErrConflict) || strings.Contains(err.Error(), "secret") {
		t.Errorf("error is %v", err)
	}
	if tx.Commit() == nil {
		t.Error("the transaction was committed")
	}
}
