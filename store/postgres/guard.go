package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/boxpair/boxpair/internal/observe"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/internal/sqlstore"
)

// syntax reads a text of statements as PostgreSQL does.
var syntax = sqlstore.Syntax{Dollars: true}

// guard watches over a transaction while a function uses the transaction. The function must not end
// the transaction, leave rows open, or change a setting that outlasts the transaction.
type guard struct {
	tx   *transaction
	ctx  context.Context // for methods of [pgx.Tx] without a context
	root guardedTx
	seen *observe.Transaction // nil unless a test watches
	// separate is set for handlers of several messages that share the transaction.
	separate bool
	over     atomic.Bool // the function has returned

	mu        sync.Mutex // the function may have left goroutines running
	violation error      // the first rule that the function broke
	exposed   bool       // the function got the connection, and may have ended the transaction
	open      int        // savepoints of the function that have not ended
	opaque    bool       // the function has set a savepoint by a text, and may roll back to it any time
	// flush writes the events that wait for the COMMIT, for each outbox by its variable.
	flush   map[string]func(ctx context.Context) error
	writers []writerOf // of the events in the transaction
	begin   int64      // begin of the exposed transaction, unique among transactions; 0: unknown
}

// guarded runs fn with the transaction. The returned error forbids the commit: the error of fn, a
// violation whose error fn swallowed, or rows that fn left open.
func (t *transaction) guarded(ctx context.Context, fn func(g *guard) error) error {
	g := &guard{tx: t, ctx: ctx, seen: observe.Take(ctx), separate: inbox.SharesTransaction(ctx)}
	g.root.guard = g
	defer g.over.Store(true) // also when fn panicked or called Goexit
	err := fn(g)
	g.over.Store(true)
	return g.result(ctx, err)
}

// violate notes and returns the violation of a rule.
func (g *guard) violate(err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.violation == nil {
		g.violation = err
	}
	return err
}

// result joins the error of the function with its violations.
func (g *guard) result(ctx context.Context, err error) error {
	g.mu.Lock()
	violation, exposed, begin := g.violation, g.exposed, g.begin
	g.mu.Unlock()
	conn := g.tx.session
	switch {
	case conn.IsClosed() || !g.tx.hasBegun():
	case conn.PgConn().TxStatus() == 'I':
		return errors.Join(err, sqlstore.ErrEnded)
	case conn.PgConn().IsBusy():
		err = errors.Join(err, sqlstore.ErrLeftOpen)
		if exposed { // a busy connection cannot be asked for its transaction
			err = errors.Join(err, sqlstore.ErrEnded)
		}
	case exposed && conn.PgConn().TxStatus() == 'T':
		now, failed := beginOf(ctx, conn)
		if failed != nil {
			return errors.Join(err, failed)
		}
		if now != begin {
			return errors.Join(err, sqlstore.ErrEnded)
		}
	}
	switch {
	case err == nil:
		return violation
	case violation == nil, errors.Is(err, violation):
		return err
	}
	return errors.Join(violation, err) // err may follow from the violation
}

// beginOf returns when the transaction of a connection began. A later transaction, even a chained
// one, began later.
func beginOf(ctx context.Context, conn *pgx.Conn) (at int64, err error) {
	err = conn.QueryRow(ctx, "SELECT (extract(epoch FROM now()) * 1000000)::bigint").Scan(&at)
	return at, err
}

// expose notes that the function gets the connection.
func (g *guard) expose(ctx context.Context) {
	_ = g.settle(ctx) // its error forbids the commit
	g.mu.Lock()
	defer g.mu.Unlock()
	conn := g.tx.session
	if g.exposed || conn.IsClosed() || conn.PgConn().IsBusy() {
		g.exposed = true // the begin stays 0, so result takes any transaction for a different one
		return
	}
	g.exposed = true
	if conn.PgConn().TxStatus() == 'T' {
		g.begin, _ = beginOf(ctx, conn)
	}
}

// admit refuses every statement after the function has returned or the transaction has ended, and
// any statement that ends the transaction or changes a setting that outlasts the transaction.
// Restoring the setting afterwards would not do: behind a pooler, the restoring transaction may get
// a different session.
func (g *guard) admit(sql string) error {
	if err := g.lasts(); err != nil {
		return err
	}
	r := syntax.Read(sql)
	switch {
	case r.Ends != "":
		return g.violate(sqlstore.Refused(r.Ends))
	case r.Stays(sql):
		return g.violate(sqlstore.ErrOutlasts)
	case g.separate && r.Separates(sql):
		return g.violate(inbox.ErrNotShared)
	}
	if r.Savepoint {
		if err := g.settle(g.ctx); err != nil {
			return err
		}
		g.mu.Lock()
		g.opaque = true
		g.mu.Unlock()
	}
	return g.observe(sql)
}

// lasts refuses a statement after the function has returned or the transaction has ended.
func (g *guard) lasts() error {
	if g.over.Load() {
		return fmt.Errorf("%w: %w", pgx.ErrTxClosed, sqlstore.ErrReturned)
	}
	conn := g.tx.session
	if g.tx.hasBegun() && !conn.IsClosed() && conn.PgConn().TxStatus() == 'I' {
		return g.violate(sqlstore.ErrEnded) // the statement would commit by itself
	}
	return nil
}

// await tells whether events may wait for the COMMIT: the transaction can only be rolled back as a
// whole, since the function has no savepoint, nor the connection, on which it could set one. It
// keeps flush for the time when that changes.
func (g *guard) await(variable string, flush func(ctx context.Context) error) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open > 0 || g.opaque || g.exposed {
		return false
	}
	if g.flush == nil {
		g.flush = make(map[string]func(context.Context) error, 1)
	}
	g.flush[variable] = flush
	return true
}

// settle writes the events that wait, before a savepoint of the function.
func (g *guard) settle(ctx context.Context) error {
	g.mu.Lock()
	waiting := g.flush
	g.flush = nil
	g.mu.Unlock()
	for _, flush := range waiting {
		if err := flush(ctx); err != nil {
			return g.violate(err)
		}
	}
	return nil
}

// savepoint notes that the function has set (1) or ended (-1) a savepoint.
func (g *guard) savepoint(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open += n
}

// writerOf is the writer of the transaction's events in the outbox with the given variable.
type writerOf struct {
	variable string
	writer   uuid.UUID
}

// isWriter tells whether writer is the only writer in the outbox with the given variable so far.
func (g *guard) isWriter(variable string, writer uuid.UUID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.writers {
		if w.variable == variable {
			return w.writer == writer
		}
	}
	g.writers = append(g.writers, writerOf{variable, writer})
	return true
}

// observe tells a test of the statement that runs next. An error of the test forbids the commit.
func (g *guard) observe(sql string) error {
	if err := g.seen.Statement(sql); err != nil {
		return g.violate(err)
	}
	return nil
}

// guardedTx is the transaction for a function, or a savepoint in the transaction. The first method
// that sends a statement begins the transaction on the server.
type guardedTx struct {
	guard *guard
	sp    pgx.Tx // the savepoint, or nil
	owned bool   // the store ends the savepoint
	ended bool   // the function has ended the savepoint
}

var _ pgx.Tx = (*guardedTx)(nil)

// admitted returns the transaction for a statement that may run.
func (t *guardedTx) admitted(ctx context.Context, sql string, args ...any) (pgx.Tx, error) {
	if err := t.guard.admit(sql); err != nil {
		return nil, err
	}
	tx := t.sp
	if tx == nil {
		var err error
		if tx, err = t.guard.tx.begun(ctx); err != nil {
			return nil, err
		}
	}
	if len(args) > 0 && rewrites(args[0]) {
		t.guard.expose(ctx)
	}
	return tx, nil
}

// own returns the transaction for a statement of the store, which may do what a function's may not.
func (t *guardedTx) own(ctx context.Context, sql string) (pgx.Tx, error) {
	if err := t.guard.lasts(); err != nil {
		return nil, err
	}
	if err := t.guard.observe(sql); err != nil {
		return nil, err
	}
	if t.sp != nil {
		return t.sp, nil
	}
	return t.guard.tx.begun(ctx)
}

// rewrites tells whether an argument gets the connection, to rewrite the statement. Named arguments
// only replace names by numbers.
func rewrites(arg any) bool {
	switch arg.(type) {
	case pgx.NamedArgs, pgx.StrictNamedArgs:
		return false
	}
	_, ok := arg.(pgx.QueryRewriter)
	return ok
}

// Begin implements [pgx.Tx].
func (t *guardedTx) Begin(ctx context.Context) (pgx.Tx, error) { return t.beginSavepoint(ctx, false) }

func (t *guardedTx) beginSavepoint(ctx context.Context, owned bool) (*guardedTx, error) {
	tx, err := t.admitted(ctx, "")
	if err != nil {
		return nil, err
	}
	if !owned {
		if err := t.guard.settle(ctx); err != nil {
			return nil, err
		}
	}
	if err := t.guard.observe("SAVEPOINT"); err != nil {
		return nil, err
	}
	sp, err := tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	if !owned {
		t.guard.savepoint(1)
	}
	return &guardedTx{guard: t.guard, sp: sp, owned: owned}, nil
}

// Commit implements [pgx.Tx]. Commit releases a savepoint set by the function's Begin. Any other
// commit is refused.
func (t *guardedTx) Commit(ctx context.Context) error {
	if t.sp == nil || t.owned {
		return t.guard.violate(sqlstore.Refused("Commit"))
	}
	if _, err := t.admitted(ctx, ""); err != nil {
		return err
	}
	if err := t.guard.observe("RELEASE SAVEPOINT"); err != nil {
		return err
	}
	if !t.ended {
		t.ended = true
		t.guard.savepoint(-1)
	}
	return t.sp.Commit(ctx)
}

// Rollback implements [pgx.Tx]. Rollback rolls back to a savepoint set by the function's Begin. Any
// other rollback is refused.
func (t *guardedTx) Rollback(ctx context.Context) error {
	switch {
	case t.guard.over.Load():
		return fmt.Errorf("%w: %w", pgx.ErrTxClosed, sqlstore.ErrReturned) // a deferred Rollback is no violation
	case t.sp == nil || t.owned:
		return t.guard.violate(sqlstore.Refused("Rollback"))
	}
	if !t.ended {
		t.ended = true
		t.guard.savepoint(-1)
		_ = t.guard.observe("ROLLBACK TO SAVEPOINT") // a rollback is made after any error
	}
	return t.sp.Rollback(ctx)
}

// Exec implements [pgx.Tx].
func (t *guardedTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if first := t.guard.tx; t.sp == nil && first.travels(args) {
		if err := t.guard.admit(sql); err != nil {
			return pgconn.CommandTag{}, err
		}
		if tag, sent, err := first.execFirst(ctx, sql, args); sent {
			return tag, err
		}
		return first.execBegun(ctx, sql, args)
	}
	tx, err := t.admitted(ctx, sql, args...)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	return tx.Exec(ctx, sql, args...)
}

// Query implements [pgx.Tx].
func (t *guardedTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	tx, err := t.admitted(ctx, sql, args...)
	if err != nil {
		return pgx.FailedBatchResults(&pgx.Batch{}, err).Query()
	}
	return tx.Query(ctx, sql, args...)
}

// QueryRow implements [pgx.Tx].
func (t *guardedTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	tx, err := t.admitted(ctx, sql, args...)
	if err != nil {
		return pgx.FailedBatchResults(&pgx.Batch{}, err).QueryRow()
	}
	return tx.QueryRow(ctx, sql, args...)
}

// SendBatch implements [pgx.Tx].
func (t *guardedTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	for _, q := range b.QueuedQueries {
		if err := t.guard.admit(q.SQL); err != nil {
			return pgx.FailedBatchResults(b, err)
		}
		if len(q.Arguments) > 0 && rewrites(q.Arguments[0]) {
			t.guard.expose(ctx)
		}
	}
	tx, err := t.admitted(ctx, "")
	if err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return tx.SendBatch(ctx, b)
}

// CopyFrom implements [pgx.Tx].
func (t *guardedTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	tx, err := t.admitted(ctx, "")
	if err != nil {
		return 0, err
	}
	if t.guard.seen != nil {
		if err := t.guard.observe("COPY " + table.Sanitize() + " FROM STDIN"); err != nil {
			return 0, err
		}
	}
	return tx.CopyFrom(ctx, table, columns, rows)
}

// Prepare implements [pgx.Tx].
func (t *guardedTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	tx, err := t.admitted(ctx, sql)
	if err != nil {
		return nil, err
	}
	return tx.Prepare(ctx, name, sql)
}

// LargeObjects implements [pgx.Tx].
func (t *guardedTx) LargeObjects() pgx.LargeObjects {
	tx, err := t.admittedOrClosed()
	if tx == nil {
		b := &pgx.Batch{}
		b.BeginTx(pgx.TxOptions{})
		return pgx.FailedBatchResults(b, err).Tx().LargeObjects() // of a closed transaction
	}
	return tx.LargeObjects()
}

// Conn implements [pgx.Tx]. Conn begins the transaction, since statements on the connection must be
// part of the transaction. After the function has returned, the guard checks that the transaction
// has not changed. The begin and the check cost a round trip each.
func (t *guardedTx) Conn() *pgx.Conn {
	if !t.guard.over.Load() {
		if _, err := t.admittedOrClosed(); err == nil {
			t.guard.expose(t.guard.ctx)
		}
	}
	return t.guard.tx.session
}

// admittedOrClosed is admitted for a method that cannot return an error. If the transaction could
// not begin, the connection is closed, so that no statement runs outside of the transaction. If the
// claim was not made, later statements are rolled back.
func (t *guardedTx) admittedOrClosed() (pgx.Tx, error) {
	ctx := t.guard.ctx
	tx, err := t.admitted(ctx, "")
	if conn := t.guard.tx.session; err != nil && !t.guard.over.Load() && !conn.IsClosed() && conn.PgConn().TxStatus() == 'I' {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_ = conn.Close(ctx)
	}
	return tx, err
}
