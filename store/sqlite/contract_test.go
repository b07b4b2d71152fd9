package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/boxpair/boxpair/store/storetest"
)

func TestProducerContract(t *testing.T) {
	t.Parallel()
	storetest.Producer(t, func(t *testing.T) storetest.OutboxFixture[*sql.Tx] {
		db, _ := database(t)
		return storetest.OutboxFixture[*sql.Tx]{
			Store:  newStore(t, db),
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
	})
}
