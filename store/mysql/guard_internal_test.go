package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// played is a connection to a server that answers COMMIT with the result of commit, and any other
// statement with the result of statement.
type played struct {
	innerConn
	commit    func(ctx context.Context) error
	statement func() error // nil answers at once
	said      []string     // the statements that the server got
}

func (p *played) Connect(context.Context) (driver.Conn, error) { return &conn{inner: p}, nil }
func (p *played) Driver() driver.Driver                        { return &guardedDriver{} }
func (p *played) ResetSession(context.Context) error           { return nil }
func (p *played) IsValid() bool                                { return true }
func (p *played) Close() error                                 { return nil }

func (p *played) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return nil, nil }

func (p *played) ExecContext(ctx context.Context, query string, _ []driver.NamedValue) (driver.Result, error) {
	p.said = append(p.said, query)
	if query == "COMMIT" {
		return nil, p.commit(ctx)
	}
	if p.statement != nil {
		return driver.RowsAffected(0), p.statement()
	}
	return driver.RowsAffected(0), nil
}

func TestCommitThatWasSentIsOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ deadline, takes time.Duration }{
		"not answered, and the caller's deadline passes too":            {deadline: 10 * time.Second, takes: time.Hour},
		"connection breaks after longer than a transaction may be idle": {deadline: time.Hour, takes: 2 * ownIdle},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db := sql.OpenDB(&played{commit: func(ctx context.Context) error {
					select {
					case <-ctx.Done():
						return ctx.Err()
					case <-time.After(c.takes):
						return mysql.ErrInvalidConn
					}
				}})
				defer func() { _ = db.Close() }()
				s, err := New(db, Config{})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), c.deadline)
				defer cancel()
				err = s.write(ctx, func(context.Context, *sql.Tx) error { return nil })
				if !errors.Is(err, outbox.ErrCommitUnknown) || s.Classify(err) != inbox.CommitUnknown {
					t.Errorf("the commit gives %v", err)
				}
			})
		})
	}
}

// TestIdleTimeIsCountedFromTheStatement plays a client that reads an answer late: the server counts
// from its answer, and closes the connection before the client has been idle for so long by its own
// clock.
func TestIdleTimeIsCountedFromTheStatement(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		late, idle time.Duration
		lost       bool
	}{
		"the answer is read late": {late: 600 * time.Millisecond, idle: 700 * time.Millisecond, lost: true},
		"the handler is not idle": {late: 100 * time.Millisecond, idle: 700 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := &played{}
				db := sql.OpenDB(p)
				defer func() { _ = db.Close() }()
				tx, err := db.BeginTx(withLimits(t.Context(), limits{idle: time.Second}), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = tx.Rollback() }()
				p.statement = func() error { time.Sleep(c.late); return nil }
				if _, err := tx.ExecContext(t.Context(), `DO 0`); err != nil {
					t.Fatal(err)
				}
				time.Sleep(c.idle)
				p.statement = func() error { return driver.ErrBadConn }
				if _, err = tx.ExecContext(t.Context(), `DO 0`); errors.Is(err, errIdle) != c.lost {
					t.Errorf("the statement after it gives %v", err)
				}
			})
		})
	}
}

// TestLimitOfAnIdleTransactionEndsWithIt tests a limit of the session, as on MySQL, which would end
// the connection in the pool.
func TestLimitOfAnIdleTransactionEndsWithIt(t *testing.T) {
	t.Parallel()
	for _, pooled := range []bool{true, false} {
		p := &played{commit: func(context.Context) error { return nil }}
		c := &conn{inner: p, pooledIdle: pooled}
		tx, err := c.BeginTx(withLimits(t.Context(), limits{idle: time.Second}), driver.TxOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		last := p.said[len(p.said)-1]
		if back := strings.HasSuffix(last, setIdle+"@boxpair_idle"); back != pooled || pooled != (c.current.idle == 0) {
			t.Errorf("limit is the session's: %t; last statement is %q, limits are %+v", pooled, last, c.current)
		}
	}
}
