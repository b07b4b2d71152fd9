package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/boxpair/boxpair/store/internal/sqlstore"
)

// Commits and rollbacks do not end with the context of the transaction: a COMMIT that is cut off
// has an unknown outcome. The constants bound them instead.
const (
	commitTimeout   = 30 * time.Second
	rollbackTimeout = 5 * time.Second
)

// AtCommit queues a statement that is sent together with the COMMIT, in one round trip with all
// queued statements. They run in the order of queueing, after all other statements of the
// transaction. AtCommit is for writes whose result is not needed. With group commit, a whole group
// of handlers takes one round trip; a producer.Outbox.Transact that only queues, events with
// Writer.Queue included, takes one round trip from BEGIN to COMMIT.
//
//	err := postgres.AtCommit(w.DB(), `UPDATE stock SET …`, id)
//
// tx must be the transaction that this store has given to a handler or to the function of Transact;
// AtCommit refuses any other transaction, and a savepoint. AtCommit does no I/O. If the statement
// fails, the handler or Transact fails, and the transaction is rolled back.
//
// Where the statement takes the lock that puts the events of a key in order, queue those events
// after it: producer.Writer.Write would write them before it. So do the calls of the writer that
// write queued events at once: Savepoint, Cancel and Reschedule.
func AtCommit(tx pgx.Tx, sql string, args ...any) error {
	t, err := queueing(tx)
	if err == nil {
		err = tx.(*guardedTx).guard.admit(sql)
	}
	if err != nil {
		return fmt.Errorf("queue a statement for the commit: %w", err)
	}
	t.queue(sql, args...)
	return nil
}

// queueing returns the transaction of tx if statements can be queued for its COMMIT.
func queueing(tx pgx.Tx) (*transaction, error) {
	g, ok := tx.(*guardedTx)
	switch {
	case !ok || g.sp != nil:
		return nil, errors.New("the transaction is not that of a handler or of Transact, or is a savepoint")
	case g.guard.over.Load():
		return nil, fmt.Errorf("%w: %w", pgx.ErrTxClosed, sqlstore.ErrReturned)
	}
	return g.guard.tx, nil
}

// queue queues a statement that is sent with the COMMIT.
func (t *transaction) queue(sql string, args ...any) *pgx.QueuedQuery {
	if t.queued == nil {
		t.queued = &pgx.Batch{}
	}
	return t.queued.Queue(sql, args...)
}

// outcome is what the answer to a COMMIT, or its lack, says about the transaction.
type outcome int

const (
	unknown    outcome = iota // it may have been committed
	committed                 // it was committed
	rolledBack                // it was not committed, and is rolled back by [transaction.end] at the latest
	unsent                    // rolledBack, and no statement of the batch with the COMMIT has run
)

// commit commits, and sends the queued statements with the COMMIT. It waits for the answer for at
// most bound, even if ctx ends.
func (t *transaction) commit(ctx context.Context, bound time.Duration) (outcome, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	defer cancel()
	switch {
	case t.err != nil:
		return rolledBack, t.err
	case t.session.IsClosed(): // no COMMIT is sent
		t.over = true
		return rolledBack, pgconn.ErrConnClosed
	}
	switch status := t.session.PgConn().TxStatus(); {
	case status == 'I' && t.opening == nil: // COMMIT would answer as if it had committed
		t.over = true
		return unknown, sqlstore.ErrEnded
	case t.opening == nil && t.queued == nil:
		err := t.tx.Commit(ctx)
		return t.outcome(true, err), err
	case status == 'E':
		return rolledBack, pgx.ErrTxCommitRollback
	}
	return t.commitQueued(ctx)
}

// commitQueued sends the queued statements with the COMMIT behind them, and with the BEGIN before
// them if it is still to be sent. The server skips the COMMIT if a statement before it has failed.
func (t *transaction) commitQueued(ctx context.Context) (outcome, error) {
	begun := t.opening == nil
	b := t.batch()
	if !begun {
		b.QueuedQueries[0].Exec(func(pgconn.CommandTag) error {
			begun = true
			return nil
		})
	}
	if t.queued != nil {
		b.QueuedQueries = append(b.QueuedQueries, t.queued.QueuedQueries...)
		t.queued = nil
	}
	b.Queue("commit").Exec(func(tag pgconn.CommandTag) error {
		if tag.String() == "ROLLBACK" {
			return pgx.ErrTxCommitRollback
		}
		return nil
	})
	err := t.send(ctx, b)
	return t.outcome(begun, err), err
}

// outcome interprets err, of a COMMIT or of a batch that ends with a COMMIT. begun tells whether
// the server has answered the BEGIN. The server answers in order: any answer before that, even
// FATAL, is not about the COMMIT.
func (t *transaction) outcome(begun bool, err error) outcome {
	open := !t.session.IsClosed()
	_, unprocessed := errors.AsType[pgx.ErrPreprocessingBatch](err)
	_, answered := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil:
		t.over = true
		return committed
	case open && !begun, unprocessed && (!open || t.session.PgConn().TxStatus() == 'I'):
		return unsent
	case open && t.session.PgConn().TxStatus() != 'I': // a statement before the COMMIT has failed
		return rolledBack
	}
	t.over = true
	if refused(err) || idledOut(err) || answered && !begun {
		return rolledBack
	}
	return unknown
}

// refused tells whether err, the error of a COMMIT, says that the transaction was not committed.
// Only the database can say so: pgconn.SafeToRetry is true also for a connection that broke after
// the COMMIT was sent, and a closed transaction may have been committed before. An ERROR answers
// the COMMIT. FATAL and PANIC do not: a server that shuts down while a commit waits for its standby
// says FATAL after having committed.
func refused(err error) bool {
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return true
	}
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.SeverityUnlocalized == "ERROR"
}
