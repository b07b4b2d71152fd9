package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/store/storetest"
)

func TestProducerContract(t *testing.T) {
	t.Parallel()
	storetest.Producer(t, func(t *testing.T) storetest.OutboxFixture[*sql.Tx] {
		db, _ := database(t)
		return outbox(db, newStore(t, db))
	})
}

func outbox(db *sql.DB, store *sqlite.Store) storetest.OutboxFixture[*sql.Tx] {
	return storetest.OutboxFixture[*sql.Tx]{
		Store:  store,
		Begin:  func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) },
		Commit: func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
		Rollback: func(_ context.Context, tx *sql.Tx) error {
			if err := tx.Rollback(); !errors.Is(err, sql.ErrTxDone) { // a conflict has rolled it back
				return err
			}
			return nil
		},
		OneWriter: true,
	}
}

func TestConsumerContract(t *testing.T) {
	t.Parallel()
	storetest.Consumer(t, func(t *testing.T) storetest.InboxFixture[*sql.Tx] {
		db, _ := database(t)
		return inbox(t, db, newStore(t, db))
	})
}

func TestEffectContract(t *testing.T) {
	t.Parallel()
	storetest.Effects(t, func(t *testing.T) storetest.InboxFixture[*sql.Tx] {
		db, _ := database(t)
		return inbox(t, db, newStore(t, db))
	})
}

func inbox(t *testing.T, db *sql.DB, store *sqlite.Store) storetest.InboxFixture[*sql.Tx] {
	t.Helper()
	run(t, db, `CREATE TABLE effects (id INTEGER PRIMARY KEY, name TEXT NOT NULL)`)
	return storetest.InboxFixture[*sql.Tx]{
		Store: store,
		Effect: func(ctx context.Context, tx *sql.Tx, name string) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO effects (name) VALUES (?)`, name)
			return err
		},
		Effects: func(ctx context.Context) ([]string, error) {
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
		},
		Break: func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO effects (name) VALUES (NULL)`)
			return err
		},
		OneWriter: true,
	}
}
