// Package sqlstoretest is what the tests of the stores on MySQL and SQLite have in common: the contracts of package storetest
// on a database/sql database, and short ways to write to one and look behind a store. For tests only.
package sqlstoretest

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/consumer/request"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/storetest"
)

// Store is a store on a database/sql database.
type Store interface {
	producer.Store[*sql.Tx]
	consumer.Store[*sql.Tx]
	consumer.EffectStore[*sql.Tx]
	request.Store[*sql.Tx]
}

// Contract has the tests that a store keeps its contracts. Each runs in parallel with others.
type Contract struct {
	// Open returns an empty database and a store on it, for one test. What it needs to close, it closes in t.Cleanup.
	Open func(t *testing.T) (*sql.DB, Store)
	// Table creates the table effects, in which an id numbers the rows, and name is not NULL.
	Table string
	// Past returns a statement that runs others where the store does not see them. Nil: there is none.
	Past func(t *testing.T, db *sql.DB, statements []string) string
	// ShardWriters, OneWriter and KeepsCommits are those of the fixtures.
	ShardWriters, OneWriter, KeepsCommits bool
}

// Producer tests the contract of [producer.Store].
func (c *Contract) Producer(t *testing.T) {
	t.Parallel()
	storetest.Producer(t, func(t *testing.T) storetest.OutboxFixture[*sql.Tx] {
		db, store := c.Open(t)
		return c.outbox(db, store)
	})
}

func (c *Contract) outbox(db *sql.DB, store Store) storetest.OutboxFixture[*sql.Tx] {
	return storetest.OutboxFixture[*sql.Tx]{
		Store: store, Begin: beginner(db), Commit: commit, Rollback: rollback,
		ShardWriters: c.ShardWriters, OneWriter: c.OneWriter, KeepsCommits: c.KeepsCommits,
	}
}

// Consumer tests the contract of [consumer.Store].
func (c *Contract) Consumer(t *testing.T) {
	t.Parallel()
	storetest.Consumer(t, c.inbox)
}

// Effects tests the contract of [consumer.EffectStore].
func (c *Contract) Effects(t *testing.T) {
	t.Parallel()
	storetest.Effects(t, c.inbox)
}

// Requests tests the contract of [request.Store].
func (c *Contract) Requests(t *testing.T) {
	t.Parallel()
	storetest.Requests(t, func(t *testing.T) storetest.RequestFixture[*sql.Tx] {
		db, store := c.Open(t)
		return storetest.RequestFixture[*sql.Tx]{Store: store, Begin: beginner(db), Commit: commit, Rollback: rollback, OneWriter: c.OneWriter}
	})
}

// Misuse tests that a handler that misuses its transaction loses nothing, in the ways that only names, or in all.
func (c *Contract) Misuse(t *testing.T, only ...string) {
	t.Parallel()
	storetest.Misuse(t, func(t *testing.T) storetest.MisuseFixture[*sql.Tx] {
		db, store := c.Open(t)
		i := c.Inbox(t, db, store)
		exec := func(ctx context.Context, tx *sql.Tx, statements ...string) error {
			for _, statement := range statements {
				if _, err := tx.ExecContext(ctx, statement); err != nil {
					return err
				}
			}
			return nil
		}
		f := storetest.MisuseFixture[*sql.Tx]{
			Store: store, Effect: i.Effect, Effects: i.Effects, Commit: commit, Rollback: rollback,
			Exec: func(ctx context.Context, tx *sql.Tx, statement string) error { return exec(ctx, tx, statement) },
			LeaveOpen: func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.QueryContext(ctx, `SELECT 1 UNION ALL SELECT 2`) //nolint:rowserrcheck,sqlclosecheck // that is the point
				return err
			},
			Chains: c.Past != nil, OneWriter: c.OneWriter,
		}
		if c.Past != nil {
			f.Past = func(ctx context.Context, tx *sql.Tx, statements ...string) error {
				return exec(ctx, tx, c.Past(t, db, statements))
			}
		}
		return f
	}, only...)
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
