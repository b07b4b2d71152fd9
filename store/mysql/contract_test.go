package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/boxpair/boxpair/store/mysql"
	"github.com/boxpair/boxpair/store/storetest"
)

func TestProducerContract(t *testing.T) {
	t.Parallel()
	storetest.Producer(t, func(t *testing.T) storetest.OutboxFixture[*sql.Tx] {
		db, _ := database(t)
		return outbox(db, newStore(t, db))
	})
}

func outbox(db *sql.DB, store *mysql.Store) storetest.OutboxFixture[*sql.Tx] {
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
		ShardWriters: true,
	}
}

func TestConsumerContract(t *testing.T) {
	t.Parallel()
	storetest.Consumer(t, func(t *testing.T) storetest.InboxFixture[*sql.Tx] {
		db, _ := database(t)
		return inbox(t, db, newStore(t, db))
	})
}

func TestRequestContract(t *testing.T) {
	t.Parallel()
	storetest.Requests(t, func(t *testing.T) storetest.RequestFixture[*sql.Tx] {
		db, _ := database(t)
		store := newStore(t, db)
		f := outbox(db, store)
		return storetest.RequestFixture[*sql.Tx]{Store: store, Begin: f.Begin, Commit: f.Commit, Rollback: f.Rollback}
	})
}

func inbox(t *testing.T, db *sql.DB, store *mysql.Store) storetest.InboxFixture[*sql.Tx] {
	t.Helper()
	run(t, db, `CREATE TABLE effects (id BIGINT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(200) NOT NULL)`)
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
	}
}

func TestEffectContract(t *testing.T) {
	t.Parallel()
	storetest.Effects(t, func(t *testing.T) storetest.InboxFixture[*sql.Tx] {
		db, _ := database(t)
		return inbox(t, db, newStore(t, db))
	})
}
