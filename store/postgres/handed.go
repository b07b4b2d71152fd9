package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/internal/sqlstore"
)

// syntax is how PostgreSQL reads a text of statements.
var syntax = sqlstore.Syntax{Dollars: true}

// owner has a transaction that it gives to a function, and ends.
type owner interface {
	// begun returns the transaction, which it begins on the server unless it has begun.
	begun(ctx context.Context) (pgx.Tx, error)
	// open tells whether it has begun, and nothing was wrong with that.
	open() bool
	// raw returns the connection, and begins nothing.
	raw() *pgx.Conn
	// lends returns the connection of a [lender].
	lends() *lentConn
	// atCommit returns what is sent with the COMMIT.
	atCommit() *pgx.Batch
}

// handing is a transaction for the time that a function has it, with what the function did that it
// must not.
type handing struct {
	of   owner
	ctx  context.Context // for methods that take none
	root handed
	// separate tells that handlers of several messages have it one after another.
	separate bool
	over     atomic.Bool // the function has returned

	mu    sync.Mutex // a function that leaves goroutines behind is one that misuses
	wrong error      // what it did first
	lent  bool       // it was given the connection itself, and may have ended the transaction there
	start int64      // the time of the transaction's begin, which tells one transaction from another, at that moment
}

// hand runs fn with the transaction of o, and returns what forbids the commit. That comes to light
// here what fn did and swallowed, and what it left behind.
func hand(ctx context.Context, o owner, fn func(h *handing) error) error {
	h := &handing{of: o, ctx: ctx, separate: inbox.SharesTransaction(ctx)}
	h.root.h = h
	defer h.over.Store(true) // also when fn panicked or called Goexit
	err := fn(h)
	h.over.Store(true)
	return h.judge(ctx, err)
}

// tx returns the transaction as the function is given it.
func (h *handing) tx() pgx.Tx { return &h.root }

// blame notes what the function did, and returns it.
func (h *handing) blame(err error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.wrong == nil {
		h.wrong = err
	}
	return err
}

// judge returns the error of the function, or what it did.
func (h *handing) judge(ctx context.Context, err error) error {
	h.mu.Lock()
	wrong, lent, start := h.wrong, h.lent, h.start
	h.mu.Unlock()
	conn := h.of.raw()
	switch {
	case conn.IsClosed() || !h.of.open():
	case conn.PgConn().TxStatus() == 'I':
		return errors.Join(err, sqlstore.ErrEnded)
	case conn.PgConn().IsBusy():
		err = errors.Join(err, sqlstore.ErrLeftOpen)
		if lent { // and nobody can ask any more
			err = errors.Join(err, sqlstore.ErrEnded)
		}
	case lent && conn.PgConn().TxStatus() == 'T':
		now, failed := beginOf(ctx, conn)
		if failed != nil {
			return errors.Join(err, failed)
		}
		if now != start {
			return errors.Join(err, sqlstore.ErrEnded)
		}
	}
	switch {
	case err == nil:
		return wrong
	case wrong == nil, errors.Is(err, wrong):
		return err
	}
	return errors.Join(wrong, err) // which may follow from it
}

// beginOf returns when the transaction of a connection began. One that is chained to it, or begun
// behind it, began later.
func beginOf(ctx context.Context, conn *pgx.Conn) (at int64, err error) {
	err = conn.QueryRow(ctx, "SELECT (extract(epoch FROM now()) * 1000000)::bigint").Scan(&at)
	return at, err
}

// lend notes that the function is given the connection itself.
func (h *handing) lend(ctx context.Context) {
	h.mu.Lock()
	defer h.mu.Unlock()
	conn := h.of.raw()
	if h.lent || conn.IsClosed() || conn.PgConn().IsBusy() {
		h.lent = true // of an unknown transaction, which no later one will be
		return
	}
	h.lent = true
	if conn.PgConn().TxStatus() == 'T' {
		h.start, _ = beginOf(ctx, conn)
	}
}

// admit tells whether a statement may run: the function still has the transaction, there is one,
// and the statement neither ends it nor sets what outlasts it. To set that back afterwards would
// not do: behind a pooler, the session may be another one then.
func (h *handing) admit(sql string) error {
	if h.over.Load() {
		return fmt.Errorf("%w: %w", pgx.ErrTxClosed, sqlstore.ErrReturned)
	}
	conn := h.of.raw()
	if h.of.open() && !conn.IsClosed() && conn.PgConn().TxStatus() == 'I' {
		return h.blame(sqlstore.ErrEnded) // it would be committed by itself
	}
	r := syntax.Read(sql)
	switch {
	case r.Ends != "":
		return h.blame(sqlstore.Refused(r.Ends))
	case r.Stays(sql):
		return h.blame(sqlstore.ErrOutlasts)
	case h.separate && r.Separates(sql):
		return h.blame(inbox.ErrNotShared)
	}
	return nil
}

// handed is a transaction as a function is given it, or a savepoint of it. The first of its methods
// that sends something begins the transaction on the server.
type handed struct {
	h    *handing
	at   pgx.Tx // the savepoint, or nil
	kept bool   // the savepoint is ended by the store
}

var _ pgx.Tx = (*handed)(nil)

// enter returns the transaction that a statement may run in.
func (t *handed) enter(ctx context.Context, sql string, args ...any) (pgx.Tx, error) {
	if err := t.h.admit(sql); err != nil {
		return nil, err
	}
	tx := t.at
	if tx == nil {
		var err error
		if tx, err = t.h.of.begun(ctx); err != nil {
			return nil, err
		}
	}
	if len(args) > 0 && rewrites(args[0]) {
		t.h.lend(ctx)
	}
	return tx, nil
}

// rewrites tells whether an argument is given the connection, to write the statement anew. Named
// arguments put numbers in place of names.
func rewrites(arg any) bool {
	switch arg.(type) {
	case pgx.NamedArgs, pgx.StrictNamedArgs:
		return false
	}
	_, ok := arg.(pgx.QueryRewriter)
	return ok
}

// Begin implements [pgx.Tx].
func (t *handed) Begin(ctx context.Context) (pgx.Tx, error) { return t.savepoint(ctx, false) }

func (t *handed) savepoint(ctx context.Context, kept bool) (*handed, error) {
	tx, err := t.enter(ctx, "")
	if err != nil {
		return nil, err
	}
	sp, err := tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &handed{h: t.h, at: sp, kept: kept}, nil
}

// Commit implements [pgx.Tx]. It releases a savepoint that the function has set by Begin, and
// refuses all else.
func (t *handed) Commit(ctx context.Context) error {
	if t.at == nil || t.kept {
		return t.h.blame(sqlstore.Refused("Commit"))
	}
	if _, err := t.enter(ctx, ""); err != nil {
		return err
	}
	return t.at.Commit(ctx)
}

// Rollback implements [pgx.Tx]. It rolls back to a savepoint that the function has set by Begin,
// and refuses all else.
func (t *handed) Rollback(ctx context.Context) error {
	switch {
	case t.h.over.Load():
		return fmt.Errorf("%w: %w", pgx.ErrTxClosed, sqlstore.ErrReturned) // deferred, it means nothing
	case t.at == nil || t.kept:
		return t.h.blame(sqlstore.Refused("Rollback"))
	}
	return t.at.Rollback(ctx)
}

// Exec implements [pgx.Tx].
func (t *handed) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	tx, err := t.enter(ctx, sql, args...)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	return tx.Exec(ctx, sql, args...)
}

// Query implements [pgx.Tx].
func (t *handed) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	tx, err := t.enter(ctx, sql, args...)
	if err != nil {
		return pgx.FailedBatchResults(&pgx.Batch{}, err).Query()
	}
	return tx.Query(ctx, sql, args...)
}

// QueryRow implements [pgx.Tx].
func (t *handed) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	tx, err := t.enter(ctx, sql, args...)
	if err != nil {
		return pgx.FailedBatchResults(&pgx.Batch{}, err).QueryRow()
	}
	return tx.QueryRow(ctx, sql, args...)
}

// SendBatch implements [pgx.Tx].
func (t *handed) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	for _, q := range b.QueuedQueries {
		if err := t.h.admit(q.SQL); err != nil {
			return pgx.FailedBatchResults(b, err)
		}
		if len(q.Arguments) > 0 && rewrites(q.Arguments[0]) {
			t.h.lend(ctx)
		}
	}
	tx, err := t.enter(ctx, "")
	if err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return tx.SendBatch(ctx, b)
}

// CopyFrom implements [pgx.Tx].
func (t *handed) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	tx, err := t.enter(ctx, "")
	if err != nil {
		return 0, err
	}
	return tx.CopyFrom(ctx, table, columns, rows)
}

// Prepare implements [pgx.Tx].
func (t *handed) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	tx, err := t.enter(ctx, sql)
	if err != nil {
		return nil, err
	}
	return tx.Prepare(ctx, name, sql)
}

// LargeObjects implements [pgx.Tx].
func (t *handed) LargeObjects() pgx.LargeObjects {
	tx, err := t.enterOrClose()
	if tx == nil {
		b := &pgx.Batch{}
		b.BeginTx(pgx.TxOptions{})
		return pgx.FailedBatchResults(b, err).Tx().LargeObjects() // of a transaction that is closed
	}
	return tx.LargeObjects()
}

// Conn implements [pgx.Tx]. What runs on the connection itself is to be part of the transaction as
// well, and whether it is that still is looked at when the function has returned, at the price of a
// round trip here and there.
func (t *handed) Conn() *pgx.Conn {
	if !t.h.over.Load() {
		if _, err := t.enterOrClose(); err == nil {
			t.h.lend(t.h.ctx)
		}
	}
	return t.h.of.raw()
}

// enterOrClose is enter for a method that cannot return an error. Nothing must run outside the
// transaction instead, so a connection on which it could not be begun is closed. What runs after a
// claim that was not made is rolled back.
func (t *handed) enterOrClose() (pgx.Tx, error) {
	ctx := t.h.ctx
	tx, err := t.enter(ctx, "")
	if conn := t.h.of.raw(); err != nil && !t.h.over.Load() && !conn.IsClosed() && conn.PgConn().TxStatus() == 'I' {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_ = conn.Close(ctx)
	}
	return tx, err
}
