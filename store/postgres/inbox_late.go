package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/internal/sqlstore"
)

// AtCommit queues a statement that is sent together with the COMMIT, in one round trip with it and
// with whatever else is queued, in the order of queueing and behind all that the transaction has
// run. It is for writes whose result nobody looks at. With group commit a whole group of handlers
// is one round trip; a producer.Outbox.Transact that only queues, events with Writer.Queue
// included, is one round trip from BEGIN to COMMIT.
//
//	err := postgres.AtCommit(w.DB(), `UPDATE stock SET …`, id)
//
// tx is the transaction that a handler, or the function that Transact runs, was given by this
// store; any other one, and the one within a savepoint, is refused. AtCommit does no I/O. A
// statement that fails is the failure of the handler, or of Transact, and nothing is committed.
// Where the statement takes the lock that puts the events of a key in order, queue those behind it:
// producer.Writer.Write would write them before, and so does what writes queued events at once: a
// Savepoint, Cancel or Reschedule of the writer.
func AtCommit(tx pgx.Tx, sql string, args ...any) error {
	b, err := lateBatch(tx)
	if err == nil {
		err = tx.(*handed).h.admit(sql)
	}
	if err != nil {
		return fmt.Errorf("queue a statement for the commit: %w", err)
	}
	b.Queue(sql, args...)
	return nil
}

// lateBatch returns what is sent with the COMMIT of tx.
func lateBatch(tx pgx.Tx) (*pgx.Batch, error) {
	t, ok := tx.(*handed)
	switch {
	case !ok || t.at != nil:
		return nil, errors.New("this is not the transaction of a handler or of Transact, or it is within a savepoint")
	case t.h.over.Load():
		return nil, fmt.Errorf("%w: %w", pgx.ErrTxClosed, sqlstore.ErrReturned)
	}
	return t.h.of.atCommit(), nil
}

// atCommit returns what is sent with the COMMIT.
func (w *work) atCommit() *pgx.Batch {
	if w.late == nil {
		w.late = &pgx.Batch{}
	}
	return w.late
}

// sendLate sends what handlers have queued, before other statements of the transaction.
func (w *work) sendLate(ctx context.Context) error {
	b := w.late
	if b == nil {
		return nil
	}
	w.late = nil
	return w.explain(w.conn.SendBatch(ctx, b).Close())
}

// commitLate sends what handlers have queued, and the COMMIT behind it. The server
// passes over the COMMIT if a statement before it has failed.
func (w *work) commitLate(ctx context.Context) error {
	if w.conn.Conn().PgConn().TxStatus() == 'E' {
		return fmt.Errorf("commit: %w", inbox.ErrRolledBack)
	}
	return w.commitBehind(ctx, &pgx.Batch{})
}

// commitBehind sends b, which may begin the transaction, with what is queued and the COMMIT behind
// it.
func (w *work) commitBehind(ctx context.Context, b *pgx.Batch) error {
	if w.late != nil {
		b.QueuedQueries = append(b.QueuedQueries, w.late.QueuedQueries...)
		w.late = nil
	}
	b.Queue("commit").Exec(func(tag pgconn.CommandTag) error {
		if tag.String() == "ROLLBACK" {
			return pgx.ErrTxCommitRollback
		}
		return nil
	})
	begun := w.tx != nil
	if !begun {
		b.QueuedQueries[0].Exec(func(pgconn.CommandTag) error {
			begun = true
			return nil
		})
	}
	results := w.conn.SendBatch(ctx, b)
	if w.tx == nil {
		w.tx = results.Tx()
	}
	err := results.Close()
	conn := w.conn.Conn()
	if err != nil && !begun && !conn.IsClosed() {
		return notSent(err)
	}
	if !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' {
		return err // of a statement before the COMMIT, which was not reached
	}
	if _, ok := errors.AsType[pgx.ErrPreprocessingBatch](err); ok {
		return notSent(err)
	}
	w.over = true
	return commitError(err)
}

// notSent returns an error for a batch that ended before anything of it was run, as when
// an argument cannot be encoded. pgx closes the connection then.
func notSent(err error) error {
	pgErr, answered := errors.AsType[*pgconn.PgError](err)
	_, broken := errors.AsType[net.Error](err)
	broken = broken || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
	if broken || pgconn.SafeToRetry(err) || answered && pgErr.SeverityUnlocalized != "ERROR" {
		err = &ownError{err}
	}
	return fmt.Errorf("%w: %w", errNotSent, err)
}

var errNotSent = errors.New("before commit")
