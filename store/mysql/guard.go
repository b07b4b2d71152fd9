package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/boxpair/boxpair/store/internal/sqlstore"
)

// ErrTransactionLost is wrapped by the errors of all statements of a transaction, and of its
// COMMIT, after the server has rolled back the transaction, or a single statement of it after a
// lock wait timeout.
var ErrTransactionLost = errors.New("transaction was rolled back before its end")

// errIdle is the cause of a transaction that was lost after idling.
var errIdle = errors.New("it was idle for too long")

// errNoAnswer is for a COMMIT or ROLLBACK that was sent and not answered. The error of its own
// context would pass for the error of the caller's context, after which database/sql sends no
// COMMIT.
var errNoAnswer = fmt.Errorf("the server has not answered within %v", endTimeout)

const (
	// endTimeout bounds a COMMIT or ROLLBACK.
	endTimeout = 30 * time.Second
	// restoreLock ends the lock timeout of a claim.
	restoreLock = `SET SESSION innodb_lock_wait_timeout = @boxpair_lock_wait`
)

// innerConn is a connection of the driver.
type innerConn interface {
	sqlstore.DriverConn
	driver.NamedValueChecker
}

// limits bound the waits for locks and the idle time of a transaction, in whole seconds. 0 keeps
// the setting of the session.
type limits struct {
	lock, idle time.Duration
}

type limitsKey struct{}

// withLimits passes l to the connection that begins a transaction with the context, or runs a
// statement that sets l.lock. database/sql has no other way to reach the connection.
func withLimits(ctx context.Context, l limits) context.Context {
	return context.WithValue(ctx, limitsKey{}, l)
}

// conn is a guarded connection: it detects that the server has ended a transaction that
// database/sql believes to be open. Without the guard, later statements would be committed one by
// one.
type conn struct {
	inner   innerConn
	tx      *guardedTx // the open transaction, or nil
	current limits     // of the session
	// pooledIdle tells that the limit of idle transactions applies to the whole session, and would
	// end the session in the pool.
	pooledIdle bool
	changed    bool // a handler has changed the session, which must not be reused
}

var _ innerConn = (*conn)(nil)

// guardedTx is an open transaction.
type guardedTx struct {
	conn    *conn
	owned   *sqlstore.Owned // nil for a transaction of the caller's own
	lost    error           // set once the transaction is gone
	used    time.Time       // when the last statement began
	doubted bool            // a statement may have ended the transaction
}

// syntax is the syntax of MySQL and MariaDB.
var syntax = sqlstore.Syntax{Backslashes: true, Implicit: true}

// A statement with an unknown effect, such as a call of a procedure, runs behind a savepoint. If
// the savepoint is gone afterwards, the transaction has ended.
const (
	setProbe   = `SAVEPOINT boxpair_whole`
	checkProbe = `RELEASE SAVEPOINT boxpair_whole`
)

// ExecContext runs a statement.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (r driver.Result, err error) {
	l, sets := ctx.Value(limitsKey{}).(limits)
	reading := c.read(query)
	reading.Outlasts = reading.Outlasts && !sets && query != restoreLock
	err = c.do(ctx, reading, func() error {
		r, err = c.inner.ExecContext(ctx, query, args)
		return err
	})
	if err == nil && sets && l.lock > 0 {
		c.current.lock = l.lock
	} else if err == nil && query == restoreLock {
		c.current.lock = 0
	}
	return r, err
}

// QueryContext runs a query.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (r driver.Rows, err error) {
	err = c.do(ctx, c.read(query), func() error {
		inner, err := c.inner.QueryContext(ctx, query, args)
		if err == nil {
			r = c.watch(inner)
		}
		return err
	})
	return r, err
}

// read reads a statement of a transaction that a store has given to a function.
func (c *conn) read(query string) (r sqlstore.Reading) {
	if c.tx != nil && c.tx.owned != nil {
		r = syntax.Read(query)
	}
	return r
}

// do runs one statement, with the checks before and after the statement.
func (c *conn) do(ctx context.Context, r sqlstore.Reading, run func() error) error {
	if c.tx == nil {
		if c.current.lock != 0 { // left by a failed claim
			if err := c.limit(ctx, limits{}); err != nil {
				return driver.ErrBadConn
			}
		}
		return run()
	}
	if err := c.tx.owned.Busy(); err != nil {
		return err
	}
	if err := c.tx.settle(ctx); err != nil {
		return err
	}
	if err := c.tx.owned.Admit(r); err != nil {
		return err
	}
	c.changed = c.changed || r.Outlasts && c.tx.owned != nil
	idled := c.tx.idled()
	c.tx.used = time.Now()
	if r.Doubtful && c.tx.owned != nil {
		if _, err := c.inner.ExecContext(ctx, setProbe, nil); err != nil {
			return c.tx.after(err, idled)
		}
		c.tx.doubted = true
	}
	return c.tx.after(run(), idled)
}

// settle returns an error if the transaction is lost. If that is in doubt, settle asks the server.
func (tx *guardedTx) settle(ctx context.Context) error {
	if tx.lost != nil || !tx.doubted {
		return tx.lost
	}
	tx.doubted = false
	_, err := tx.conn.inner.ExecContext(ctx, checkProbe, nil)
	if errorNumber(err) == erSavepointMissing {
		tx.lost = sqlstore.ErrEnded
		return tx.lost
	}
	return tx.after(err, false)
}

// limit sets the limits of the session.
func (c *conn) limit(ctx context.Context, l limits) error {
	if l == c.current {
		return nil
	}
	_, err := c.inner.ExecContext(ctx, `SET SESSION innodb_lock_wait_timeout = `+seconds(l.lock, "@boxpair_lock_wait")+
		`, `+setIdle+seconds(l.idle, "@boxpair_idle"), nil)
	if err == nil {
		c.current = l
	}
	return err
}

// seconds returns d in whole seconds, rounded up, at most a day. It returns otherwise for 0.
func seconds(d time.Duration, otherwise string) string {
	if d <= 0 {
		return otherwise
	}
	return strconv.Itoa(int(math.Ceil(min(d, 24*time.Hour).Seconds())))
}

// BeginTx begins a transaction, with the limits in ctx.
func (c *conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	l, _ := ctx.Value(limitsKey{}).(limits)
	began := time.Now()
	err := c.limit(ctx, l)
	if err == nil {
		_, err = c.inner.BeginTx(ctx, opts)
	}
	switch {
	case err == nil:
	case ctx.Err() == nil && broken(err): // nothing has happened yet: database/sql tries another connection
		return nil, driver.ErrBadConn
	default:
		return nil, err
	}
	c.tx = &guardedTx{conn: c, owned: sqlstore.TakeOwned(ctx), used: began}
	return c.tx, nil
}

// Commit commits. It rolls back if the transaction is lost, or if only the store may commit.
func (tx *guardedTx) Commit() error {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	err := tx.owned.Commit()
	if err == nil {
		err = tx.settle(ctx)
	}
	if err != nil {
		return errors.Join(err, tx.end("ROLLBACK"))
	}
	return tx.end("COMMIT")
}

// Rollback rolls back. It sends ROLLBACK even for a lost transaction, since the state of the
// connection is not certain.
func (tx *guardedTx) Rollback() error {
	tx.owned.Rollback()
	return tx.end("ROLLBACK")
}

func (tx *guardedTx) end(statement string) error {
	tx.conn.tx = nil
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	idled := tx.idled()
	_, err := tx.conn.inner.ExecContext(ctx, statement, nil)
	switch {
	case err == nil:
		if l := tx.conn.current; tx.conn.pooledIdle && l.idle > 0 && tx.conn.limit(ctx, limits{lock: l.lock}) != nil {
			tx.conn.changed = true // and the connection is not reused
		}
		return nil
	case ctx.Err() != nil:
		return errNoAnswer
	case idled && broken(err):
		return fmt.Errorf("%w: %w: %w", ErrTransactionLost, errIdle, err)
	}
	return err
}

// after notes the end of a statement, and whether its error has ended the transaction. idled tells
// that the transaction was idle for too long before the statement. after returns err, wrapped if
// the transaction is lost by idling.
func (tx *guardedTx) after(err error, idled bool) error {
	switch {
	case err == nil || tx.lost != nil:
	case endsTransaction(err):
		tx.lost = fmt.Errorf("%w: %w", ErrTransactionLost, err)
	case idled && broken(err):
		err = fmt.Errorf("%w: %w: %w", ErrTransactionLost, errIdle, err)
		tx.lost = err
	}
	return err
}

// idled tells whether the transaction has been idle for so long that the server may have closed the
// connection. It is called before a statement, since the duration of the statement is no idle time.
// The time counts from the beginning of the previous statement: the server counts from its answer,
// and the client cannot know how long the answer took to arrive.
func (tx *guardedTx) idled() bool {
	idle := tx.conn.current.idle
	return idle > 0 && time.Since(tx.used) >= idle
}

// endsTransaction tells whether the transaction is lost after err. After a lock wait timeout InnoDB
// may roll back only one statement, depending on its configuration: a transaction without the
// statement is lost as well.
func endsTransaction(err error) bool {
	switch errorNumber(err) {
	case erLockDeadlock, erLockWaitTimeout, erLockTableFull, erCheckRead, erXARBDeadlock, erXARBRollback, erXARBTimeout, erRollbackDuringCommit:
		return true
	}
	return false
}

// broken tells whether err is an error of the connection.
func broken(err error) bool {
	switch errorNumber(err) {
	case 0:
		return errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrInvalidConn)
	case erInteractionTimeout, erServerShutdown, erNormalShutdown, erConnectionKilled:
		return true
	}
	return false
}

// Begin implements [driver.Conn]. database/sql calls BeginTx instead.
func (c *conn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

// Ping tells whether the connection works.
func (c *conn) Ping(ctx context.Context) error {
	return c.do(ctx, sqlstore.Reading{}, func() error { return c.inner.Ping(ctx) })
}

// CheckNamedValue converts an argument.
func (c *conn) CheckNamedValue(v *driver.NamedValue) error { return c.inner.CheckNamedValue(v) }

// ResetSession tells whether the connection may be used again.
func (c *conn) ResetSession(ctx context.Context) error { return c.inner.ResetSession(ctx) }

// IsValid tells whether the connection may go back to the pool. A connection with a setting that a
// handler has changed is closed: MySQL has no settings for a single transaction, so the change is
// not refused.
func (c *conn) IsValid() bool { return !c.changed && c.inner.IsValid() }

// Close closes the connection. The server rolls an open transaction back.
func (c *conn) Close() error { return c.inner.Close() }
