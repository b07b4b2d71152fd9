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

// ErrTransactionLost is wrapped by the errors of all statements of a transaction, and of its
// COMMIT, after SQLite has rolled the transaction back by itself, or the transaction was idle for
// too long.
var ErrTransactionLost = errors.New("transaction was rolled back before its end")

// errIdle is the cause of a transaction that was lost after idling.
var errIdle = errors.New("it was idle for too long")

const (
	minBusySleep = 200 * time.Microsecond
	maxBusySleep = 5 * time.Millisecond
)

// innerConn is a connection of the driver.
type innerConn = sqlstore.DriverConn

// conn is a guarded connection: it waits for locks itself, takes turns with other connections of
// the process, keeps statements prepared, and detects that SQLite has ended a transaction that
// database/sql believes to be open.
type conn struct {
	gate *gate
	busy time.Duration

	mu      sync.Mutex // against the idle timer: database/sql makes one call at a time
	inner   innerConn
	tx      *guardedTx // the open transaction, or nil
	changed bool       // a handler has changed the connection, which must not be reused
	cache   stmtCache
}

var _ innerConn = (*conn)(nil)

// guardedTx is an open transaction.
type guardedTx struct {
	conn  *conn
	owned *sqlstore.Owned // nil for a transaction of the caller's own
	inner driver.Tx
	turn  *turn // nil: read-only
	lost  error // set once the transaction is gone
	idle  *time.Timer
	used  time.Time // when the last statement ended, for idle
}

// ExecContext runs a statement from the cache of prepared statements.
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

// QueryContext runs a query from the cache of prepared statements.
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

// syntax is the syntax of SQLite.
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

// do runs one statement, with the checks before and after the statement.
func (c *conn) do(ctx context.Context, r sqlstore.Reading, run func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tx == nil {
		return retryBusy(ctx, time.Now().Add(c.busy), run)
	}
	if c.tx.lost != nil {
		return c.tx.lost
	}
	if err := c.tx.owned.Admit(r); err != nil {
		return err
	}
	c.changed = c.changed || r.Outlasts && c.tx.owned != nil
	err := run()
	c.tx.after(err)                                                               //nolint:contextcheck // must not end with ctx
	if r.Doubtful && c.tx.owned != nil && c.tx.lost == nil && !c.tx.stillOpen() { //nolint:contextcheck // likewise
		c.tx.lost = sqlstore.ErrEnded
		return c.tx.lost
	}
	return err
}

// retryBusy runs a statement until the database is not busy. It is of no use within a transaction:
// when the other writer is done, the snapshot of the transaction is outdated.
func retryBusy(ctx context.Context, until time.Time, run func() error) error {
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

// isBusy tells whether another connection has the required lock.
func isBusy(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code()&0xff == sqlite3.SQLITE_BUSY && e.Code() != sqlite3.SQLITE_BUSY_SNAPSHOT
}

// BeginTx begins a transaction. A read-only transaction does not wait for a turn. Any other
// transaction takes the turn in the context, or waits for a turn.
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
	err := retryBusy(ctx, until, func() (err error) {
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

// Commit commits. It rolls back if the transaction is lost, or if only the store may commit.
func (tx *guardedTx) Commit() error {
	if err := tx.owned.Commit(); err != nil {
		return errors.Join(err, tx.end(tx.inner.Rollback))
	}
	return tx.end(tx.inner.Commit)
}

// Rollback rolls back. A lost transaction is rolled back already.
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
		// Nearly always nothing is left to roll back, and ROLLBACK fails.
		_ = tx.inner.Rollback()
		return tx.lost
	}
	return finish()
}

// after notes the end of a statement and, if the statement failed, checks that the transaction is
// still open.
func (tx *guardedTx) after(err error) {
	tx.used = time.Now()
	if err == nil || tx.lost != nil {
		return
	}
	if !tx.stillOpen() { // if in doubt, the transaction is lost: end rolls it back
		tx.lose(err)
	}
}

// stillOpen tells whether the transaction is still open: only then BEGIN fails.
func (tx *guardedTx) stillOpen() bool {
	ctx := context.Background()
	var e *sqlite.Error
	_, err := tx.conn.inner.ExecContext(ctx, "BEGIN", nil)
	if errors.As(err, &e) && e.Code() == sqlite3.SQLITE_ERROR {
		return true
	}
	if err == nil {
		_, _ = tx.conn.inner.ExecContext(ctx, "ROLLBACK", nil) // later statements are refused
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

// Begin implements [driver.Conn]. database/sql calls BeginTx instead.
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

// Close closes the connection. An open transaction is rolled back.
func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tx != nil && c.tx.lost == nil {
		c.tx.lose(driver.ErrBadConn)
	}
	return errors.Join(c.cache.close(), c.inner.Close())
}
