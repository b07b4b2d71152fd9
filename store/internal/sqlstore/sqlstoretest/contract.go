// Package sqlstoretest is the common part of the tests of the stores on MySQL and SQLite: the
// contracts of package storetest on a database/sql database, and short functions to write events
// and to read tables. For tests only.
package sqlstoretest

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/storetest"
)

// Store is a store on a database/sql database.
type Store interface {
	outbox.Store[*sql.Tx]
	inbox.Store[*sql.Tx]
	inbox.EffectStore[*sql.Tx]
	inbox.RequestStore[*sql.Tx]
}

// Contract tests the contracts of a store. Its tests run in parallel.
type Contract struct {
	// Open returns an empty database and a store on it, for one test. It closes both in t.Cleanup.
	Open func(t *testing.T) (*sql.DB, Store)
	// Table creates the table effects with a numbered column id, and a column name that is not
	// NULL.
	Table string
	// Past returns a statement that runs other statements unseen by the store. It may be nil.
	Past func(t *testing.T, db *sql.DB, statements []string) string
	// Filled has parts of the names of tables that the migrations fill. If it is set, the databases
	// of ended tests are emptied and reused for later tests, since making a database takes long.
	Filled []string
	// State are queries for settings that a handler could change for later statements. Changes and
	// Without are as in [storetest.MisuseFixture].
	State   []string
	Changes map[string]storetest.MisuseChange
	Without map[string]string
	// ShardWriters, OneWriter and KeepsCommits are as in the fixtures.
	ShardWriters, OneWriter, KeepsCommits bool
	// User is an expression for the database's user. Empty means that the database has no users.
	User string
}

// Producer tests the contract of [outbox.Store].
func (c *Contract) Producer(t *testing.T) {
	t.Parallel()
	storetest.Producer(t, func(t *testing.T) storetest.OutboxFixture[*sql.Tx] {
		db, store := c.Open(t)
		return c.outbox(t, db, store)
	})
}

func (c *Contract) outbox(t *testing.T, db *sql.DB, store Store) storetest.OutboxFixture[*sql.Tx] {
	return storetest.OutboxFixture[*sql.Tx]{
		Store: store, Begin: beginner(db), Commit: commit, Rollback: rollback,
		ShardWriters: c.ShardWriters, OneWriter: c.OneWriter, KeepsCommits: c.KeepsCommits, User: c.user(t, db),
	}
}

// user returns the database's user.
func (c *Contract) user(t *testing.T, db *sql.DB) (name string) {
	t.Helper()
	if c.User == "" {
		return ""
	}
	if err := db.QueryRowContext(t.Context(), "SELECT "+c.User).Scan(&name); err != nil {
		t.Fatal(err)
	}
	return name
}

// Consumer tests the contract of [inbox.Store].
func (c *Contract) Consumer(t *testing.T) {
	t.Parallel()
	storetest.Consumer(t, c.inbox)
}

// Effects tests the contract of [inbox.EffectStore].
func (c *Contract) Effects(t *testing.T) {
	t.Parallel()
	storetest.Effects(t, c.inbox)
}

// Requests tests the contract of [inbox.RequestStore].
func (c *Contract) Requests(t *testing.T) {
	t.Parallel()
	storetest.Requests(t, func(t *testing.T) storetest.RequestFixture[*sql.Tx] {
		db, store := c.Open(t)
		return storetest.RequestFixture[*sql.Tx]{Store: store, Begin: beginner(db), Commit: commit, Rollback: rollback, OneWriter: c.OneWriter}
	})
}

// Misuse tests that a handler that misuses its transaction loses nothing.
func (c *Contract) Misuse(t *testing.T) {
	t.Parallel()
	open := c.Open
	if c.Filled != nil {
		open = (&shelf{Contract: c, whole: t}).open
	}
	storetest.Misuse(t, func(t *testing.T) storetest.MisuseFixture[*sql.Tx] {
		db, store := open(t)
		i := c.Inbox(t, db, store)
		f := storetest.MisuseFixture[*sql.Tx]{
			Store: store, Effect: i.Effect, Effects: i.Effects, Break: i.Break, OneWriter: c.OneWriter,
			Commit: commit, Rollback: rollback,
			Exec: func(ctx context.Context, tx *sql.Tx, statement string) error {
				_, err := tx.ExecContext(ctx, statement)
				return err
			},
			LeaveOpen: func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.QueryContext(ctx, `SELECT 1 UNION ALL SELECT 2`) //nolint:rowserrcheck,sqlclosecheck // that is the point
				return err
			},
			State:   func(ctx context.Context, tx *sql.Tx) (string, error) { return state(ctx, tx, c.State) },
			Changes: c.Changes, Without: maps.Clone(c.Without),
		}
		f.Without["leaves the results of a batch open"] = "database/sql has no batches"
		if c.Past != nil {
			f.Past = func(ctx context.Context, tx *sql.Tx, statements ...string) error {
				_, err := tx.ExecContext(ctx, c.Past(t, db, statements))
				return err
			}
		}
		return f
	})
}

// shelf keeps the databases of ended tests.
type shelf struct {
	*Contract
	whole *testing.T // the test of the contract, which closes the databases

	mu   sync.Mutex
	free []shelved
}

type shelved struct {
	db    *sql.DB
	store Store
}

// open returns a database that no other test uses before t has ended.
func (s *shelf) open(t *testing.T) (*sql.DB, Store) {
	t.Helper()
	d, ok := s.take()
	if !ok {
		d.db, d.store = s.Open(s.whole)
	}
	t.Cleanup(func() {
		if t.Failed() {
			return // keep the tables of a failed test
		}
		if err := s.empty(d.db); err != nil {
			t.Errorf("empty the tables of the test: %v", err)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.free = append(s.free, d)
	})
	return d.db, d.store
}

func (s *shelf) take() (d shelved, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.free); n > 0 {
		d, s.free = s.free[n-1], s.free[:n-1]
		return d, true
	}
	return d, false
}

func (s *shelf) empty(db *sql.DB) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var tables []string
	rows, err := db.QueryContext(ctx, `SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE'`)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return err
		}
		tables = append(tables, name)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, name := range tables {
		if slices.ContainsFunc(s.Filled, func(part string) bool { return strings.Contains(name, part) }) {
			continue
		}
		if _, err := db.ExecContext(ctx, "DELETE FROM `"+name+"`"); err != nil { //nolint:gosec // the catalogue's name
			return err
		}
	}
	return nil
}

// state returns the results of queries as text.
func state(ctx context.Context, tx *sql.Tx, queries []string) (string, error) {
	var all []string
	for _, query := range queries {
		err := each(ctx, tx, query, func(values []string) { all = append(all, strings.Join(values, "=")) })
		if err != nil {
			return "", err
		}
	}
	return strings.Join(all, ", "), nil
}

func each(ctx context.Context, tx *sql.Tx, query string, row func(values []string)) error {
	rows, err := tx.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	values, into := make([]sql.NullString, len(columns)), make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		texts := make([]string, len(values))
		for i, v := range values {
			texts[i] = v.String
		}
		row(texts)
	}
	return rows.Err()
}

func (c *Contract) inbox(t *testing.T) storetest.InboxFixture[*sql.Tx] {
	db, store := c.Open(t)
	return c.Inbox(t, db, store)
}

// Inbox returns the fixture of a store on db, in which it creates the table of effects.
func (c *Contract) Inbox(t *testing.T, db *sql.DB, store Store) storetest.InboxFixture[*sql.Tx] {
	t.Helper()
	Run(t, db, c.Table)
	return storetest.InboxFixture[*sql.Tx]{
		Store: store,
		Effect: func(ctx context.Context, tx *sql.Tx, name string) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO effects (name) VALUES (?)`, name)
			return err
		},
		Effects: func(ctx context.Context) ([]string, error) { return effects(ctx, db) },
		Break: func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO effects (name) VALUES (NULL)`)
			return err
		},
		OneWriter: c.OneWriter,
		User:      c.user(t, db),
	}
}

func effects(ctx context.Context, db *sql.DB) ([]string, error) {
	rows, err := db.QueryContext(ctx, `SELECT name FROM effects ORDER BY id`)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}

func beginner(db *sql.DB) func(context.Context) (*sql.Tx, error) {
	return func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) }
}

func commit(_ context.Context, tx *sql.Tx) error { return tx.Commit() }

func rollback(_ context.Context, tx *sql.Tx) error {
	if err := tx.Rollback(); !errors.Is(err, sql.ErrTxDone) { // a conflict has rolled it back
		return err
	}
	return nil
}
