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

// Commits and rollbacks do not end with the context of the transaction: a cut-off COMMIT has an
// unknown outcome. The constants bound the time instead.
const (
	commitTimeout   = 30 * time.Second
	rollbackTimeout = 5 * time.Second
)

// AtCommit queues a statement for the COMMIT: all queued statements and the COMMIT travel in one
// round trip. The statements run in the order of queueing, after all other statements of the
// transaction. AtCommit is for writes whose result is not needed. With group commit, a whole group
// of handlers takes one round trip. A producer.Outbox.Transact that only queues statements and
// writes events takes one round trip from BEGIN to COMMIT.
//
//	err := postgres.AtCommit(w.DB(), `UPDATE stock SET …`, id)
//
// tx must be a transaction that this store has given to a handler or to the function of Transact.
// AtCommit refuses any other transaction, and a savepoint. AtCommit does no I/O. If the statement
// fails, the handler or Transact fails, and the transaction is rolled back.
//
// If the statement takes the lock that puts the events of a key in order, the events must be written
// behind the statement. producer.Writer.Write does that, unless the caller has a savepoint; WriteNow
// would write the events before the statement. So would Savepoint, Cancel and Reschedule of the
// writer, which write waiting events at once.
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

// queue queues a statement for the COMMIT.
func (t *transaction) queue(sql string, args ...any) *pgx.QueuedQuery {
	if t.queued == nil {
		t.queued = &pgx.Batch{}
	}
	return t.queued.Queue(sql, args...)
}

// outcome is the outcome of a transaction, by the answer to its COMMIT or by the lack of an answer.
type outcome int

const (
	unknown outcome = iota // perhaps committed
	committed
	rolledBack // not committed, and rolled back by [transaction.end] at the latest
	unsent     // rolledBack, and no statement of the batch with the COMMIT has run
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
	case status == 'I' && t.opening == nil: // COMMIT would seem to succeed
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

// commitQueued sends the queued statements and the COMMIT, after the BEGIN if the BEGIN is still to
// be sent. The server skips the COMMIT after a failed statement.
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
// the server has answered the BEGIN. The server answers in order: an error before that answer, even
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

// refused tells whether err, the error of a COMMIT, proves that the transaction was not committed.
// Only an answer of the database is proof: pgconn.SafeToRetry is also true for a connection that
// broke after the COMMIT was sent, and a closed transaction may have been committed before. An
// ERROR answers the COMMIT. FATAL and PANIC do not: a server that shuts down while a commit waits
// for its standby sends FATAL after the commit.
func refused(err error) bool {
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return true
	}
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.SeverityUnlocalized == "ERROR"
}
