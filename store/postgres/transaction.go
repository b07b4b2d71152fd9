package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/boxpair/boxpair/store/internal/sqlstore"
)

// transaction is one that [Store.Transact] runs. On the server it begins with its first statement,
// and what is queued for its end goes with the COMMIT. If that is all, BEGIN, statements and COMMIT
// are one round trip.
//
// A statement of the caller's is sent behind a BEGIN of its own: a batch of pgx would hide it from
// tracers of single statements, take no modes of execution, and close the connection on an argument
// that it cannot encode. The store's own statements travel with the BEGIN.
type transaction struct {
	conn    connection
	session *pgx.Conn // that of conn, also when conn was given back
	options pgx.TxOptions

	tx   pgx.Tx     // nil until it has begun
	late *pgx.Batch // what is queued for the end; nil for nothing
	err  error      // it could not be begun, and nothing may run
	over bool       // committed, sent to be, or rolled back; conn is given back
}

var _ owner = (*transaction)(nil)

// newTransaction returns a transaction on a connection that its end gives back.
func (s *Store) newTransaction(ctx context.Context) (*transaction, error) {
	conn, err := s.conns.acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	return &transaction{conn: conn, session: conn.Conn(), options: pgx.TxOptions{IsoLevel: s.iso}}, nil
}

// begin begins the transaction on the server, unless it has begun.
func (t *transaction) begin(ctx context.Context) error {
	switch {
	case t.over:
		return pgx.ErrTxClosed
	case t.err != nil:
		return t.err
	case t.tx != nil:
		return nil
	}
	tx, err := t.session.BeginTx(ctx, t.options)
	if err != nil {
		t.err = fmt.Errorf("begin: %w", err)
		return t.err
	}
	t.tx = tx
	return nil
}

// begun returns the transaction, which it begins on the server unless it has begun.
func (t *transaction) begun(ctx context.Context) (pgx.Tx, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	return t.tx, nil
}

// run runs a statement of the store's in tx, and reads its row into values if there are some. The
// BEGIN travels with it, if that is still to come.
func run(ctx context.Context, tx pgx.Tx, values []any, sql string, args ...any) error {
	if h, ok := tx.(*handed); ok && h.at == nil && !h.h.over.Load() {
		if t, ok := h.h.of.(*transaction); ok && t.tx == nil && t.err == nil && !t.over {
			return t.first(ctx, values, sql, args)
		}
	}
	if len(values) == 0 {
		_, err := tx.Exec(ctx, sql, args...)
		return err
	}
	return tx.QueryRow(ctx, sql, args...).Scan(values...)
}

// first begins the transaction with a first statement. An error leaves it aborted, as PostgreSQL
// does.
func (t *transaction) first(ctx context.Context, values []any, sql string, args []any) error {
	b := &pgx.Batch{}
	b.BeginTx(t.options)
	first := b.Queue(sql, args...)
	if len(values) > 0 {
		first.QueryRow(func(row pgx.Row) error { return row.Scan(values...) })
	}
	results := t.conn.SendBatch(ctx, b)
	t.tx = results.Tx()
	err := results.Close()
	if err != nil && (t.session.IsClosed() || t.session.PgConn().TxStatus() == 'I') {
		t.err = fmt.Errorf("begin: %w", err)
	}
	return err
}

// atCommit returns what is sent with the COMMIT.
func (t *transaction) atCommit() *pgx.Batch {
	if t.late == nil {
		t.late = &pgx.Batch{}
	}
	return t.late
}

// commit commits. On an error, known tells that the transaction is rolled back for certain, or
// will be by [transaction.end]; otherwise it may have been committed.
func (t *transaction) commit(ctx context.Context) (known bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	switch {
	case t.over:
		return false, pgx.ErrTxClosed
	case t.err != nil:
		return true, t.err
	case t.tx != nil && !t.session.IsClosed() && t.session.PgConn().TxStatus() == 'I': // COMMIT would answer as if it had committed
		t.release()
		return false, sqlstore.ErrEnded
	case t.late != nil:
		return t.commitLate(ctx)
	case t.tx == nil: // nothing was asked for
		return true, nil
	}
	err = t.tx.Commit(ctx)
	t.release()
	return err == nil || refused(err), err
}

// commitLate sends what was queued, and the COMMIT behind it; before it the BEGIN, if that is still
// to come. The server passes over the COMMIT if a statement before it has failed.
func (t *transaction) commitLate(ctx context.Context) (known bool, err error) {
	late, b := t.late, &pgx.Batch{}
	t.late = nil
	begun := t.tx != nil
	switch {
	case t.session.IsClosed():
		return true, pgconn.ErrConnClosed
	case !begun:
		b.BeginTx(t.options)
		b.QueuedQueries[0].Exec(func(pgconn.CommandTag) error {
			begun = true
			return nil
		})
	case t.session.PgConn().TxStatus() == 'E':
		return true, pgx.ErrTxCommitRollback
	}
	b.QueuedQueries = append(b.QueuedQueries, late.QueuedQueries...)
	b.Queue("commit").Exec(func(tag pgconn.CommandTag) error {
		if tag.String() == "ROLLBACK" {
			return pgx.ErrTxCommitRollback
		}
		return nil
	})
	results := t.conn.SendBatch(ctx, b)
	if t.tx == nil {
		t.tx = results.Tx()
	}
	err = results.Close()
	known = err == nil || t.undone(begun, err)
	if t.session.IsClosed() || t.session.PgConn().TxStatus() == 'I' {
		t.release()
	}
	return known, err
}

// undone tells whether err, of statements with a COMMIT at their end, says that nothing was
// committed: that they were not sent, or that the COMMIT was not reached. begun tells whether the
// server is known to have begun the transaction. It answers in order, so whatever it says before is
// not about the COMMIT, be it FATAL.
func (t *transaction) undone(begun bool, err error) bool {
	if _, ok := errors.AsType[pgx.ErrPreprocessingBatch](err); ok || refused(err) {
		return true
	}
	if !t.session.IsClosed() {
		return !begun || t.session.PgConn().TxStatus() != 'I'
	}
	_, answered := errors.AsType[*pgconn.PgError](err)
	return answered && !begun
}

// end rolls back what was not committed, also when the caller panicked or called Goexit, and gives
// the connection back.
func (t *transaction) end(ctx context.Context) {
	if !t.over {
		t.rollback(ctx)
	}
}

func (t *transaction) release() {
	if !t.over {
		t.over = true
		t.conn.Release()
	}
}

// rollback rolls back.
func (t *transaction) rollback(ctx context.Context) {
	defer t.release()
	if t.tx != nil {
		rollback(ctx, t.tx)
	}
}

// open implements [owner].
func (t *transaction) open() bool { return t.tx != nil && t.err == nil }

// raw implements [owner].
func (t *transaction) raw() *pgx.Conn { return t.session }

// lends implements [owner].
func (t *transaction) lends() *lentConn { return t.conn.(*lentConn) }
