package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/boxpair/boxpair/store/internal/sqlstore"
)

// within runs fn on the connection of tx. database/sql shows the connection of a sql.Conn, but not
// of a sql.Tx. pgx passes the connection to an argument that rewrites the statement, while
// database/sql excludes all other users of the transaction, including its own rollback. So fn runs
// in such an argument, and the statement is never sent.
func within(ctx context.Context, tx *sql.Tx, fn func(ctx context.Context, tx pgx.Tx) error) error {
	v := &visit{fn: fn}
	_, err := tx.ExecContext(ctx, "", v)
	switch {
	case v.done:
		return v.err
	case err == nil:
		return ErrNotPgx // the driver has sent an empty statement
	case errors.Is(err, sql.ErrTxDone), errors.Is(err, driver.ErrBadConn), ctx.Err() != nil:
		return err
	}
	return errors.Join(ErrNotPgx, err)
}

// visit is an argument to which pgx passes the connection.
type visit struct {
	fn   func(ctx context.Context, tx pgx.Tx) error
	done bool
	err  error
}

var errVisited = errors.New("done in place of the statement")

// RewriteQuery implements [pgx.QueryRewriter].
func (v *visit) RewriteQuery(ctx context.Context, conn *pgx.Conn, _ string, _ []any) (string, []any, error) {
	v.done = true
	v.err = v.fn(ctx, visited{conn})
	return "", nil, errVisited
}

// visited is the open transaction of a connection, which database/sql ends.
type visited struct{ *pgxConn }

type pgxConn = pgx.Conn // a field named Conn would hide the method

var errNotOwn = errors.New("database/sql begins and ends this transaction")

// Begin implements [pgx.Tx].
func (v visited) Begin(context.Context) (pgx.Tx, error) { return nil, errNotOwn }

// Commit implements [pgx.Tx].
func (v visited) Commit(context.Context) error { return errNotOwn }

// Rollback implements [pgx.Tx].
func (v visited) Rollback(context.Context) error { return errNotOwn }

// Conn implements [pgx.Tx].
func (v visited) Conn() *pgx.Conn { return v.pgxConn }

// LargeObjects implements [pgx.Tx].
func (v visited) LargeObjects() pgx.LargeObjects { return pgx.LargeObjects{} }

// lender takes connections of a pool that a driver of database/sql can use as well.
type lender struct{ pool *pgxpool.Pool }

// lentConn is a connection that a driver of database/sql can use as well.
type lentConn struct{ conn *stdlib.Conn }

func (l lender) acquire(ctx context.Context) (connection, error) {
	conn, err := stdlib.GetPoolConnector(l.pool).Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &lentConn{conn.(*stdlib.Conn)}, nil
}

// Conn returns the connection of pgx.
func (c *lentConn) Conn() *pgx.Conn { return c.conn.Conn() }

// SendBatch sends b on the connection of pgx.
func (c *lentConn) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return c.Conn().SendBatch(ctx, b)
}

// Release gives the connection back to the pool, as the driver does when it closes the connection.
func (c *lentConn) Release() { _ = c.conn.Close() }

// lend runs fn with tx as a transaction of database/sql, whose begin and end send nothing to the
// server. The end closes statements and rows that fn has left open. Open rows may be the reason why
// fn has failed.
func lend(ctx context.Context, tx pgx.Tx, fn func(tx *sql.Tx) error) error {
	g := tx.(*guardedTx).guard
	c := &lentDriver{conn: g.tx.conn.(*lentConn), guard: g}
	db := sql.OpenDB(c)
	defer func() { _ = db.Close() }()
	lent, err := db.BeginTx(context.WithoutCancel(ctx), nil) // the end of ctx does not end the transaction
	if err != nil {
		return err
	}
	defer func() { // also when fn panicked or called Goexit
		c.over = true
		_ = lent.Rollback()
	}()
	err = fn(lent)
	if conn := g.tx.session; err != nil && !conn.IsClosed() && conn.PgConn().IsBusy() {
		err = errors.Join(sqlstore.ErrLeftOpen, err)
	}
	return err
}

// lentDriver connects database/sql to the one connection of a transaction.
type lentDriver struct {
	conn  *lentConn
	guard *guard
	over  bool // fn has returned
}

// Connect implements [driver.Connector].
func (d *lentDriver) Connect(context.Context) (driver.Conn, error) {
	return lentDriverConn{d.conn.conn, d}, nil
}

// Driver implements [driver.Connector].
func (d *lentDriver) Driver() driver.Driver { return stdlib.GetDefaultDriver() }

// lentDriverConn is pgx's connection, except that it neither begins nor ends transactions.
type lentDriverConn struct {
	*stdlib.Conn
	lent *lentDriver
}

// Begin implements [driver.Conn].
func (c lentDriverConn) Begin() (driver.Tx, error) { return c.lent, nil }

// BeginTx implements [driver.ConnBeginTx].
func (c lentDriverConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) {
	return c.lent, nil
}

// Close implements [driver.Conn].
func (c lentDriverConn) Close() error { return nil } // the owner closes the connection

// ExecContext implements [driver.ExecerContext].
func (c lentDriverConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.admit(ctx, query, args); err != nil {
		return nil, err
	}
	return c.Conn.ExecContext(ctx, query, args)
}

// QueryContext implements [driver.QueryerContext].
func (c lentDriverConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.admit(ctx, query, args); err != nil {
		return nil, err
	}
	return c.Conn.QueryContext(ctx, query, args)
}

// PrepareContext implements [driver.ConnPrepareContext].
func (c lentDriverConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if err := c.admit(ctx, query, nil); err != nil {
		return nil, err
	}
	return c.Conn.PrepareContext(ctx, query)
}

// admit refuses statements as [guard.admit] does. An argument that gets the connection may end the
// transaction.
func (c lentDriverConn) admit(ctx context.Context, query string, args []driver.NamedValue) error {
	if len(args) > 0 && rewrites(args[0].Value) {
		if _, own := args[0].Value.(*visit); !own {
			c.lent.guard.expose(ctx)
		}
	}
	return c.lent.guard.admit(query)
}

// Commit implements [driver.Tx].
func (d *lentDriver) Commit() error { return d.guard.violate(sqlstore.Refused("Commit")) }

// Rollback implements [driver.Tx].
func (d *lentDriver) Rollback() error {
	if d.over {
		return nil
	}
	return d.guard.violate(sqlstore.Refused("Rollback"))
}
