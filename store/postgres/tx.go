package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/internal/sqlstore"
	"github.com/boxpair/boxpair/store/outbox"
)

// Transact implements [outbox.EventStore]. The transaction begins on the server with its first
// statement. Statements that [AtCommit] and [Store.AppendAtCommit] have queued go with the COMMIT:
// queued statements alone take one round trip, and an empty transaction takes none. If ctx has
// ended when fn returns, the transaction is rolled back. Once the COMMIT and the queued statements
// are sent, Transact waits for the answer for up to 30 s, even if ctx ends.
func (s *Store) Transact(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return s.transact(ctx, func(ctx context.Context, g *guard) error { return fn(ctx, &g.root) })
}

func (s *Store) transact(ctx context.Context, fn func(ctx context.Context, g *guard) error) error {
	t, err := s.newTransaction(ctx, pgx.TxOptions{IsoLevel: s.iso})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer t.end(ctx) // also when fn panicked or called Goexit
	switch err := t.guarded(ctx, func(g *guard) error { return fn(ctx, g) }); {
	case errors.Is(err, sqlstore.ErrEnded):
		return fmt.Errorf("%w: %w", outbox.ErrCommitUnknown, err)
	case sqlState(err) == "25P02": // in_failed_sql_transaction: fn has swallowed the error of a statement, and run a further statement
		return fmt.Errorf("%w: %w", inbox.ErrRolledBack, err)
	case err != nil:
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if t.opening != nil && t.queued == nil { // no statement was run or queued
		return nil
	}
	switch outcome, err := t.commit(ctx, commitTimeout); {
	case outcome == committed:
		return nil
	case errors.Is(err, pgx.ErrTxCommitRollback): // fn has swallowed the error of a statement
		return fmt.Errorf("commit: %w: %w", inbox.ErrRolledBack, err)
	case outcome == unknown:
		return fmt.Errorf("commit: %w: %w", outbox.ErrCommitUnknown, err)
	default:
		return fmt.Errorf("commit: %w", err)
	}
}

// rollback rolls tx back. An error is ignored: pgx then closes the connection, and the server rolls
// back.
func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_ = tx.Rollback(ctx)
}

var errSavepointFailed = errors.New("a statement in the savepoint had failed, and its error was not returned")

// Savepoint implements [outbox.EventStore]. If fn swallowed the error of a statement, the savepoint
// cannot be released: Savepoint rolls back to the savepoint and returns an error.
func (s *Store) Savepoint(ctx context.Context, tx pgx.Tx, fn func(ctx context.Context, tx pgx.Tx) error) error {
	sp, end, err := setSavepoint(ctx, tx)
	if err != nil {
		return fmt.Errorf("savepoint: %w", err)
	}
	released := false
	defer func() {
		if !released { // fn failed, panicked or called Goexit
			_ = observed(tx, "ROLLBACK TO SAVEPOINT")
			rollback(ctx, end)
		}
	}()
	if err := fn(ctx, sp); err != nil {
		return err
	}
	if end.Conn().PgConn().TxStatus() == 'E' {
		return fmt.Errorf("release savepoint: %w", errSavepointFailed)
	}
	err = observed(tx, "RELEASE SAVEPOINT")
	if err == nil {
		err = end.Commit(ctx)
	}
	if err != nil {
		return fmt.Errorf("release savepoint: %w", err)
	}
	released = true
	return nil
}

// observed tells a test of a statement by which the store ends a savepoint.
func observed(tx pgx.Tx, sql string) error {
	if t, ok := tx.(*guardedTx); ok {
		return t.guard.observe(sql)
	}
	return nil
}

// Retryable implements [outbox.EventStore]. Serialization failures, deadlocks and lock timeouts are
// retryable.
func (s *Store) Retryable(err error) bool {
	if errors.Is(err, outbox.ErrCommitUnknown) {
		return false
	}
	switch sqlState(err) {
	case "40001", "40P01", "55P03":
		return true
	}
	return false
}

// setSavepoint sets a savepoint. It returns sp for a function, and end for the store, to release
// the savepoint or to roll back. In a transaction given out by the store, only end can end the
// savepoint.
func setSavepoint(ctx context.Context, tx pgx.Tx) (sp, end pgx.Tx, err error) {
	if t, ok := tx.(*guardedTx); ok {
		sp, err := t.beginSavepoint(ctx, true)
		if err != nil {
			return nil, nil, err
		}
		return sp, sp.sp, nil
	}
	sp, err = tx.Begin(ctx)
	return sp, sp, err
}
