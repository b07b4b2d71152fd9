package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
)

// played is a connection to a server that answers to COMMIT as commit does, and to all else at once.
type played struct {
	innerConn
	commit func(ctx context.Context) error
}

func (p *played) Connect(context.Context) (driver.Conn, error) { return &conn{inner: p}, nil }
func (p *played) Driver() driver.Driver                        { return &guardedDriver{} }
func (p *played) ResetSession(context.Context) error           { return nil }
func (p *played) IsValid() bool                                { return true }
func (p *played) Close() error                                 { return nil }

func (p *played) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return nil, nil }

func (p *played) ExecContext(ctx context.Context, query string, _ []driver.NamedValue) (driver.Result, error) {
	if query == "COMMIT" {
		return nil, p.commit(ctx)
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
				if !errors.Is(err, producer.ErrCommitUnknown) || s.Classify(err) != consumer.CommitUnknown {
					t.Errorf("the commit gives %v", err)
				}
			})
		})
	}
}
