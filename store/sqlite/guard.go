package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/boxpair/boxpair/store/internal/sqlstore"
)

// ErrTransactionLost is wrapped by the errors of all statements of a
// transaction, and of its COMMIT, after SQLite has rolled it back by itself, or it
// was idle for too long.
var ErrTransactionLost = errors.New("transaction was rolled back before its end")

// errIdle is the cause for which an idle transaction is lost.
var errIdle = errors.New("it was idle for too long")

const (
	minBusySleep = 200 * time.Microsecond
	maxBusySleep = 5 * time.Millisecond
)

// innerConn is what the driver's connections can do.
type innerConn = sqlstore.DriverConn

// conn is a connection that waits for locks itself, takes turns with others of
// its process, keeps statements prepared, and knows when SQLite has ended a
// transaction that database/sql believes to be open.
type conn struct {
	gate *gate
	busy time.Duration

	mu      sync.Mutex // database/sql calls one at a time; the other one is the idle timer
	inner   innerConn
	tx      *guardedTx // the open transaction, or nil
	changed bool       // a handler has changed what later statements do, and nobody is to use the connection after it
	cache   stmtCache
}

var _ innerConn = (*conn)(nil)

// guardedTx is an open transaction.
type guardedTx struct {
	conn  *conn
	owned *sqlstore.Owned // what it is to the store; nil for the caller's own
	inner driver.Tx
	turn  *turn // nil: read-only
	lost  error // set once the transaction is gone
	idle  *time.Timer
	used  time.Time // when a statement ended last, for idle
}

// ExecContext runs a statement, prepared once.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (r driver.Result, err error) {
	err = c.do(ctx, c.read(query), func() error {
		s, err := c.cache.take(ctx, c.inner, query)
		if err != nil {
			return err
		}
		defer c.cache.give(s)
		r, err = s.exec.ExecContext(ctx, args)
		return err
	})
	return r, err
}

// QueryContext runs a query, prepared once.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (r driver.Rows, err error) {
	err = c.do(ctx, c.read(query), func() error {
		s, err := c.cache.take(ctx, c.inner, query)
		if err != nil {
			return err
		}
		inner, err := s.query.QueryContext(ctx, args)
		if err != nil {
			c.cache.give(s)
			return err
		}
		r = c.rows(inner, s)
		return nil
	})
	return r, err
}

// syntax is how SQLite reads a text of statements.
var syntax = sqlstore.Syntax{}

// read reads a statement of a transaction that a store has given to a function.
func (c *conn) read(query string) (r sqlstore.Reading) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tx != nil && c.tx.owned != nil {
		r = syntax.Read(query)
	}
	return r
}

// do runs one statement, with all that has to be seen to before and after it.
func (c *conn) do(ctx context.Context, r sqlstore.Reading, run func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tx == nil {
		return patiently(ctx, time.Now().Add(c.busy), run)
	}
	if c.tx.lost != nil {
		return c.tx.lost
	}
	if err := c.tx.owned.Admit(r); err != nil {
		return err
	}
	c.changed = c.changed || r.Outlasts && c.tx.owned != nil
	err := run()
	c.tx.after(err)                                                           //nolint:contextcheck // must not end with ctx
	if r.Doubtful && c.tx.owned != nil && c.tx.lost == nil && !c.tx.there() { //nolint:contextcheck // likewise
		c.tx.lost = sqlstore.ErrEnded
		return c.tx.lost
	}
	return err
}

// patiently runs a statement until the database is not busy. Within a transaction
// waiting would be in vain: the snapshot that it reads from is outdated
// when the other writer is done.
func patiently(ctx context.Context, until time.Time, run func() error) error {
	for sleep := minBusySleep; ; sleep = min(2*sleep, maxBusySleep) {
		err := run()
		if !isBusy(err) || !time.Now().Before(until) {
			return err
		}
		timer := time.NewTimer(sleep/2 + rand.N(sleep))
		select {
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(ctx.Err(), err)
		case <-timer.C:
		}
	}
}

// isBusy tells whether err says that another connection has the lock that is needed.
func isBusy(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code()&0xff == sqlite3.SQLITE_BUSY && e.Code() != sqlite3.SQLITE_BUSY_SNAPSHOT
}

// BeginTx begins a transaction, read-only ones without waiting for anybody. Others take
// the turn that the context carries, or wait for one.
func (c *conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) { //nolint:contextcheck // a turn has its own
	if opts.ReadOnly {
		return c.begin(ctx, opts, nil, time.Now().Add(c.busy))
	}
	t, ok := ctx.Value(turnKey{}).(*turn)
	if !ok || t.gate != c.gate || !t.take() {
		var err error
		if t, err = c.gate.enter(ctx, c.busy); err != nil {
			return nil, err
		}
		t.take()
	}
	if t.wait != nil {
		ctx = t.wait
	}
	tx, err := c.begin(ctx, opts, t, t.until)
	if err != nil {
		t.leave()
		return nil, err
	}
	return tx, nil
}

// begin begins a transaction; ctx bounds the wait for the lock, not the transaction.
func (c *conn) begin(ctx context.Context, opts driver.TxOptions, t *turn, until time.Time) (driver.Tx, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	tx := &guardedTx{conn: c, turn: t, used: time.Now()}
	err := patiently(ctx, until, func() (err error) {
		tx.inner, err = c.inner.BeginTx(context.WithoutCancel(ctx), opts)
		return err
	})
	if err != nil {
		return nil, err
	}
	tx.owned = sqlstore.TakeOwned(ctx)
	c.tx = tx
	if t != nil && t.idle > 0 {
		tx.idle = time.AfterFunc(t.idle, tx.expire)
	}
	return tx, nil
}

// Commit commits, unless the transaction is gone, or is not the caller's to commit: then it rolls
// back.
func (tx *guardedTx) Commit() error {
	if err := tx.owned.Commit(); err != nil {
		return errors.Join(err, tx.end(tx.inner.Rollback))
	}
	return tx.end(tx.inner.Commit)
}

// Rollback rolls back. A transaction that is gone needs none.
func (tx *guardedTx) Rollback() error {
	tx.owned.Rollback()
	err := tx.end(tx.inner.Rollback)
	if errors.Is(err, ErrTransactionLost) {
		return nil
	}
	return err
}

func (tx *guardedTx) end(finish func() error) error {
	tx.conn.mu.Lock()
	defer tx.conn.mu.Unlock()
	tx.conn.tx = nil
	if tx.idle != nil {
		tx.idle.Stop()
	}
	if tx.turn != nil {
		defer tx.turn.leave()
	}
	if tx.lost != nil {
		// Nearly always there is nothing left to roll back, and the error says so.
		_ = tx.inner.Rollback()
		return tx.lost
	}
	return finish()
}

// after notes that a statement has ended, and, if it failed, finds out whether
// the transaction is still there.
func (tx *guardedTx) after(err error) {
	tx.used = time.Now()
	if err == nil || tx.lost != nil {
		return
	}
	if !tx.there() { // when in doubt, too; end makes it true
		tx.lose(err)
	}
}

// there tells whether the transaction is still open: BEGIN fails exactly if it is.
func (tx *guardedTx) there() bool {
	ctx := context.Background()
	var e *sqlite.Error
	_, err := tx.conn.inner.ExecContext(ctx, "BEGIN", nil)
	if errors.As(err, &e) && e.Code() == sqlite3.SQLITE_ERROR {
		return true
	}
	if err == nil {
		_, _ = tx.conn.inner.ExecContext(ctx, "ROLLBACK", nil) // what follows is refused
	}
	return false
}

func (tx *guardedTx) lose(cause error) {
	tx.lost = fmt.Errorf("%w: %w", ErrTransactionLost, cause)
	if tx.turn != nil {
		tx.turn.leave()
	}
}

// expire rolls the transaction back if it was idle for too long.
func (tx *guardedTx) expire() {
	tx.conn.mu.Lock()
	defer tx.conn.mu.Unlock()
	if tx.conn.tx != tx || tx.lost != nil {
		return
	}
	if left := tx.turn.idle - time.Since(tx.used); left > 0 {
		tx.idle.Reset(left)
		return
	}
	tx.lose(errors.Join(errIdle, tx.inner.Rollback()))
}

// Begin is for callers that know no contexts; database/sql is none of them.
func (c *conn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

// Ping tells whether the connection works.
func (c *conn) Ping(ctx context.Context) error {
	return c.do(ctx, sqlstore.Reading{}, func() error { return c.inner.Ping(ctx) })
}

// ResetSession tells whether the connection may be used again.
func (c *conn) ResetSession(ctx context.Context) error { return c.inner.ResetSession(ctx) }

// IsValid tells whether the connection may go back to the pool.
func (c *conn) IsValid() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.changed && c.inner.IsValid()
}

// Close closes the connection. A transaction that is open on it is rolled back.
func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tx != nil && c.tx.lost == nil {
		c.tx.lose(driver.ErrBadConn)
	}
	return errors.Join(c.cache.close(), c.inner.Close())
}
