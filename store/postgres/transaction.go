package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/boxpair/boxpair/store/inbox"
)

// transaction is a transaction of the store on a connection of its own. [Store.Transact] and all
// methods of inboxes run their functions in a transaction, guarded by [transaction.guarded].
//
// A transaction begins on the server with its first statement, in one round trip: the first batch
// starts with BEGIN, and with the settings and locks of an inbox. Queued statements go with the
// COMMIT. A transaction of queued statements takes one round trip from BEGIN to COMMIT.
//
// The store's own statements travel with the BEGIN, and so does the caller's Exec with arguments
// ([transaction.travels]). Any other statement of the caller is sent after a separate BEGIN: a batch
// of pgx would hide the statement from tracers of single statements, and ignore modes of execution.
type transaction struct {
	store   *Store
	conn    connection
	session *pgx.Conn // the session of conn, also after conn was given back
	options pgx.TxOptions

	opening *pgx.Batch                      // BEGIN, settings and locks; nil once sent
	claim   func(ctx context.Context) error // makes the claim before a handler's first statement; may be nil
	tx      pgx.Tx                          // nil until the transaction has begun
	queued  *pgx.Batch                      // statements for the COMMIT; may be nil
	err     error                           // why no statement may run: the begin failed, or the claim
	over    bool                            // committed, rolled back, or unknown: no rollback is needed
	// holdsLocks is set while the session may hold locks that outlast the transaction.
	holdsLocks bool
}

// newTransaction takes a connection for a transaction. [transaction.end] must be called.
func (s *Store) newTransaction(ctx context.Context, options pgx.TxOptions) (*transaction, error) {
	conn, err := s.conns.acquire(ctx)
	if err != nil {
		return nil, err
	}
	t := &transaction{store: s, conn: conn, session: conn.Conn(), options: options, opening: &pgx.Batch{}}
	t.opening.BeginTx(options)
	return t, nil
}

// begun returns the transaction for a statement of its function. The first call begins the
// transaction on the server.
func (t *transaction) begun(ctx context.Context) (pgx.Tx, error) {
	switch {
	case t.over:
		return nil, pgx.ErrTxClosed
	case t.err != nil:
		return nil, t.err
	case t.opening == nil:
		return t.tx, nil
	case t.claim != nil:
		t.err = t.claim(ctx)
		return t.tx, t.err
	}
	t.opening = nil
	tx, err := t.session.BeginTx(ctx, t.options)
	if err != nil {
		t.err = fmt.Errorf("begin: %w", err)
		return nil, t.err
	}
	t.tx = tx
	return tx, nil
}

// hasBegun tells whether the transaction has begun on the server and may run statements.
func (t *transaction) hasBegun() bool { return t.tx != nil && t.err == nil }

// batch returns the batch to send next. The first batch begins the transaction.
func (t *transaction) batch() *pgx.Batch {
	b := t.opening
	t.opening = nil
	if b == nil {
		b = &pgx.Batch{}
	}
	return b
}

// send sends b in one round trip and waits for its results.
func (t *transaction) send(ctx context.Context, b *pgx.Batch) error {
	results := t.conn.SendBatch(ctx, b)
	if t.tx == nil {
		t.tx = results.Tx()
	}
	err := results.Close()
	if err == nil {
		t.holdsLocks = false
	}
	return err
}

// exec runs a statement of the store in tx, and reads its row into values unless values is empty. A
// BEGIN that is still to be sent travels with the statement.
func exec(ctx context.Context, tx pgx.Tx, values []any, sql string, args ...any) error {
	if g, ok := tx.(*guardedTx); ok {
		if t := g.guard.tx; g.sp == nil && t.opening != nil && t.claim == nil && !g.guard.over.Load() {
			if err := g.guard.observe(sql); err != nil {
				return err
			}
			return t.first(ctx, values, sql, args)
		}
		own, err := g.own(ctx, sql)
		if err != nil {
			return err
		}
		tx = own
	}
	if len(values) == 0 {
		_, err := tx.Exec(ctx, sql, args...)
		return err
	}
	return tx.QueryRow(ctx, sql, args...).Scan(values...)
}

// first begins the transaction with its first statement. If the statement fails, PostgreSQL leaves
// the transaction aborted.
func (t *transaction) first(ctx context.Context, values []any, sql string, args []any) error {
	b := t.batch()
	q := b.Queue(sql, args...)
	if len(values) > 0 {
		q.QueryRow(func(row pgx.Row) error { return row.Scan(values...) })
	}
	err := t.send(ctx, b)
	if err != nil && (t.session.IsClosed() || t.session.PgConn().TxStatus() == 'I') {
		t.err = fmt.Errorf("begin: %w", err)
	}
	return err
}

// travels tells whether the caller's Exec with args may travel with the BEGIN.
func (t *transaction) travels(args []any) bool {
	if t.opening == nil || len(t.opening.QueuedQueries) > 1 || t.claim != nil || t.over || t.err != nil || len(args) == 0 {
		return false
	}
	switch args[0].(type) {
	case pgx.QueryRewriter, pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
		return false
	}
	return t.store.batches
}

// execFirst begins the transaction with the caller's Exec. If pgx could not prepare the statement or
// encode an argument, nothing was begun, and sent is false: the statement is to be sent by itself,
// for the error that the caller expects.
func (t *transaction) execFirst(ctx context.Context, sql string, args []any) (tag pgconn.CommandTag, sent bool, err error) {
	b := t.batch()
	b.Queue(sql, args...).Exec(func(result pgconn.CommandTag) error {
		tag = result
		return nil
	})
	err = t.send(ctx, b)
	if _, unsent := errors.AsType[pgx.ErrPreprocessingBatch](err); unsent {
		t.tx, t.opening = nil, &pgx.Batch{}
		t.opening.BeginTx(t.options)
		return tag, false, nil
	}
	if err != nil && (t.session.IsClosed() || t.session.PgConn().TxStatus() == 'I') {
		t.err = fmt.Errorf("begin: %w", err)
	}
	return tag, true, err
}

// execBegun runs the caller's Exec after a separate BEGIN. pgx has closed the connection if it could
// not encode an argument in a batch: the transaction then begins on another.
func (t *transaction) execBegun(ctx context.Context, sql string, args []any) (pgconn.CommandTag, error) {
	if t.session.IsClosed() {
		t.conn.Release() // first, since the pool may have one connection
		conn, err := t.store.conns.acquire(ctx)
		if err != nil {
			t.err = fmt.Errorf("begin: %w", err)
			return pgconn.CommandTag{}, t.err
		}
		t.conn, t.session = conn, conn.Conn()
	}
	tx, err := t.begun(ctx)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	return tx.Exec(ctx, sql, args...)
}

// run runs a handler in the transaction. The error comes back unchanged, with two exceptions:
// [Store.Classify] must learn of a closed connection, and the user of an earlier failed statement.
func (t *transaction) run(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return t.explain(t.guarded(ctx, func(g *guard) error { return fn(&g.root) }))
}

func (t *transaction) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case sqlState(err) == "25P02": // in_failed_sql_transaction
		return fmt.Errorf("%w (a statement before it had failed in this transaction, and its error was not returned)", err)
	case t.session.IsClosed():
		return &ownError{err}
	}
	return err
}

// sendQueued sends the statements queued by handlers, before further statements of the transaction.
func (t *transaction) sendQueued(ctx context.Context) error {
	b := t.queued
	if b == nil {
		return nil
	}
	t.queued = nil
	return t.explain(t.send(ctx, b))
}

// flush is sendQueued before statements that must not run after a failed handler. If the handler
// swallowed the error of a statement, flush returns an error.
func (t *transaction) flush(ctx context.Context) error {
	if err := t.sendQueued(ctx); err != nil {
		return err
	}
	if t.session.PgConn().TxStatus() == 'E' {
		return fmt.Errorf("commit: %w", inbox.ErrRolledBack)
	}
	return nil
}

// end rolls back unless the transaction was committed, also when a function panicked or called
// Goexit, and gives the connection back. If the session may hold locks, end closes the connection,
// which releases the locks.
func (t *transaction) end(ctx context.Context) {
	if t.tx != nil && !t.over {
		rollback(ctx, t.tx)
	}
	t.over = true
	if t.holdsLocks {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		_ = t.session.Close(closing)
		cancel()
	}
	t.conn.Release()
}
