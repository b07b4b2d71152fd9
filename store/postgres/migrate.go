package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/migrations"
)

// defaultLockTimeout is shorter than the time for which a service can do without its outbox.
const defaultLockTimeout = 5 * time.Second

// Migrate creates or upgrades the tables that cfg names for this version of the library, and
// returns the applied migrations: none if the tables were up to date. Migrate creates a missing
// schema. Concurrent calls, in any process, take turns. Migrate leaves alone a database that a
// newer version has migrated, and a database with a different migration under a known number; the
// error wraps [migrations.ErrNewer] or [migrations.ErrChanged].
//
// All missing migrations are applied in one transaction. The transaction waits for each lock for
// Config.MigrateLockTimeout, and changes nothing if a lock is not free by then. The locks are
// logged before they are taken. After a deadlock with transactions that use the tables, the
// transaction begins again; the fifth deadlock in a row is an error. Only migrations that build
// indexes concurrently, while other transactions write, run outside a transaction, and need two
// connections of the pool. After an interruption, the next call removes the invalid index and
// repeats the migration.
//
// Migrate only reads an up-to-date database, and corrects functions that still name the old schema
// after ALTER SCHEMA ... RENAME. For any change, the role must own the tables, and needs CREATE on
// the schema and, if the schema is missing, on the database.
func Migrate(ctx context.Context, pool *pgxpool.Pool, cfg Config) ([]migrations.Applied, error) {
	m, err := newMigrator(pool, cfg)
	if err != nil {
		return nil, err
	}
	applied, err := m.run(ctx)
	if err != nil {
		return applied, fmt.Errorf("migrate: %w", err)
	}
	return applied, nil
}

// migrator applies migrations.
type migrator struct {
	pool    *pgxpool.Pool
	names   migrations.Names
	known   []migrations.Migration
	timeout time.Duration
	log     *slog.Logger
}

func newMigrator(pool *pgxpool.Pool, cfg Config) (*migrator, error) {
	names, err := cfg.names()
	if err = errors.Join(err, cfg.checkTimeout()); err != nil {
		return nil, fmt.Errorf("postgres store config: %w", err)
	}
	known, err := migrations.Postgres(names)
	if err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	m := &migrator{pool: pool, names: names, known: known, timeout: cfg.MigrateLockTimeout, log: cfg.Logger}
	if m.timeout == 0 {
		m.timeout = defaultLockTimeout
	}
	if m.log == nil {
		m.log = slog.Default()
	}
	return m, nil
}

func (c Config) checkTimeout() error {
	if c.MigrateLockTimeout < 0 || c.MigrateLockTimeout > 0 && c.MigrateLockTimeout < time.Millisecond {
		return fmt.Errorf("MigrateLockTimeout: %v is shorter than a millisecond", c.MigrateLockTimeout)
	}
	return nil
}

// run applies the missing migrations, in turns: a transaction with all migrations that may share
// it, and a migration outside any transaction. An error comes with the migrations applied so far.
func (m *migrator) run(ctx context.Context) (all []migrations.Applied, err error) {
	for {
		var applied []migrations.Applied
		var next *migrations.Migration
		err := m.unlessDeadlocked(ctx, func() error {
			return m.within(ctx, "migrate", func(tx pgx.Tx) error {
				var err error
				applied, next, err = m.together(ctx, tx)
				return err
			})
		})
		if err != nil {
			return all, err
		}
		all = append(all, applied...)
		if next == nil {
			return all, nil
		}
		a, err := m.outside(ctx, next)
		if err != nil {
			return all, fmt.Errorf("apply %d (%s): %w", next.Number, next.Name, err)
		}
		all = append(all, a...)
	}
}

// deadlocks is how many times in a row a transaction of migrations may end in a deadlock.
const deadlocks = 5

// unlessDeadlocked runs a transaction again after a deadlock. Migrations lock several tables, and
// other transactions lock the tables in any order, so no order of the migrations would prevent
// deadlocks.
func (m *migrator) unlessDeadlocked(ctx context.Context, fn func() error) error {
	for n := 1; ; n++ {
		err := fn()
		switch {
		case sqlState(err) != "40P01": // deadlock_detected
			return err
		case n == deadlocks:
			return fmt.Errorf("%w, %d times in a row: nothing was changed; call again when fewer transactions use the tables", err, n)
		}
		m.log.InfoContext(ctx, "migrations deadlocked with other transactions, and begin again", "schema", m.names.Schema(), "error", err)
	}
}

// within runs fn in a transaction that holds the advisory lock of the given name.
func (m *migrator) within(ctx context.Context, lock string, fn func(tx pgx.Tx) error) error {
	// READ COMMITTED whatever the default is: reads after the lock must see the commits of the
	// previous holder of the lock.
	options := pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
	return pgx.BeginTxFunc(ctx, m.pool, options, func(tx pgx.Tx) error {
		// The files are in standard SQL. The wait for other migrating processes ends with ctx.
		if _, err := tx.Exec(ctx, "SET LOCAL standard_conforming_strings = on; SET LOCAL lock_timeout = 0; "+
			"SET LOCAL idle_in_transaction_session_timeout = 0"); err != nil {
			return err
		}
		if err := m.lock(ctx, tx, lockID(m.names, lock)); err != nil {
			return fmt.Errorf("lock: %w", err)
		}
		_, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", m.timeout.Milliseconds()))
		if err != nil {
			return err
		}
		return fn(tx)
	})
}

// turn is how often a process checks whether the migrating process has finished.
const turn = 100 * time.Millisecond

// lock polls for an advisory lock. A statement that waits for the lock would have a snapshot, and a
// concurrent build of an index would wait for the end of the snapshot. In the extended protocol,
// the snapshot of a statement even lives on after its last row, until the next statement, so lock
// uses the simple protocol.
func (m *migrator) lock(ctx context.Context, tx pgx.Tx, id int64) error {
	ticker := time.NewTicker(turn)
	defer ticker.Stop()
	for {
		var held bool
		if err := tx.QueryRow(ctx, fmt.Sprintf("SELECT pg_try_advisory_xact_lock(%d)", id), pgx.QueryExecModeSimpleProtocol).Scan(&held); err != nil || held {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// together applies the missing migrations before next, the first migration that must run outside a
// transaction.
func (m *migrator) together(ctx context.Context, tx pgx.Tx) (applied []migrations.Applied, next *migrations.Migration, err error) {
	if err := makeHistory(ctx, tx, m.names); err != nil {
		return nil, nil, err
	}
	pending, err := m.pending(ctx, tx)
	if err != nil {
		return nil, nil, err
	}
	for i := range pending {
		if len(pending[i].Concurrent()) > 0 {
			pending, next = pending[:i], &pending[i]
			break
		}
	}
	m.announce(ctx, pending)
	for i := range pending {
		p := &pending[i]
		if _, err := tx.Exec(ctx, p.SQL); err != nil {
			return nil, nil, fmt.Errorf("apply %d (%s): %w", p.Number, p.Name, m.explain(err))
		}
		a, err := m.record(ctx, tx, p)
		if err != nil {
			return nil, nil, err
		}
		applied = append(applied, a)
	}
	if err := m.rename(ctx, tx); err != nil {
		return nil, nil, fmt.Errorf("correct the functions of a renamed schema: %w", m.explain(err))
	}
	return applied, next, nil
}

func (m *migrator) pending(ctx context.Context, tx pgx.Tx) ([]migrations.Migration, error) {
	history, err := readHistory(ctx, tx, m.names)
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	return migrations.Pending(m.known, history)
}

// announce logs the locks before they are taken.
func (m *migrator) announce(ctx context.Context, list []migrations.Migration) {
	if len(list) == 0 {
		return
	}
	titles := make([]string, len(list))
	for i := range list {
		titles[i] = fmt.Sprintf("%d (%s)", list[i].Number, list[i].Name)
	}
	locks := []string{} // none, in a new database
	for _, l := range migrations.Locks(list, m.known...) {
		locks = append(locks, l.String())
	}
	level := slog.LevelDebug
	if len(locks) > 0 {
		level = slog.LevelInfo
	}
	m.log.Log(ctx, level, "migrations begin, and hold their locks until all of them are applied",
		"schema", m.names.Schema(), "migrations", titles, "locks", locks, "lock_timeout", m.timeout)
}

// explain adds the remedy to the error of a lock timeout.
func (m *migrator) explain(err error) error {
	if sqlState(err) == "55P03" { // lock_not_available
		return fmt.Errorf("%w: another transaction has held one of its tables for %v (MigrateLockTimeout): "+
			"nothing was changed; call again when that transaction has ended", err, m.timeout)
	}
	return err
}

func (m *migrator) record(ctx context.Context, tx pgx.Tx, p *migrations.Migration) (migrations.Applied, error) {
	a := migrations.Applied{Number: p.Number, Name: p.Name, Checksum: p.Checksum}
	err := tx.QueryRow(ctx, "INSERT INTO "+m.names.Table(migrations.HistoryTable)+
		" (number, name, checksum) VALUES ($1, $2, $3) RETURNING applied_at",
		a.Number, a.Name, a.Checksum).Scan(&a.At)
	if err != nil {
		return a, fmt.Errorf("record %d (%s): %w", p.Number, p.Name, err)
	}
	return a, nil
}

// makeHistory creates the schema and the table of applied migrations. It reads the catalog first,
// since CREATE … IF NOT EXISTS always asks for privileges.
func makeHistory(ctx context.Context, tx pgx.Tx, names migrations.Names) error {
	var schema, table bool
	err := tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1),
		       EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		               WHERE n.nspname = $1 AND c.relname = $2)`,
		names.Schema(), names.Prefix()+migrations.HistoryTable).Scan(&schema, &table)
	if err != nil {
		return fmt.Errorf("read the catalog: %w", err)
	}
	if !schema {
		if _, err := tx.Exec(ctx, "CREATE SCHEMA "+migrations.Quote(names.Schema())); err != nil {
			return fmt.Errorf("create schema: %w", err)
		}
	}
	if !table {
		_, err := tx.Exec(ctx, "CREATE TABLE "+names.Table(migrations.HistoryTable)+` (
			number     integer     NOT NULL PRIMARY KEY,
			name       text        NOT NULL,
			checksum   text        NOT NULL,
			applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
		)`)
		if err != nil {
			return fmt.Errorf("create history: %w", err)
		}
	}
	return nil
}

func readHistory(ctx context.Context, q querier, names migrations.Names) ([]migrations.Applied, error) {
	rows, err := q.Query(ctx, "SELECT number, name, checksum, applied_at FROM "+
		names.Table(migrations.HistoryTable)+" ORDER BY number")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (a migrations.Applied, err error) {
		err = row.Scan(&a.Number, &a.Name, &a.Checksum, &a.At)
		return a, err
	})
}
