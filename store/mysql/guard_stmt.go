package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"

	"github.com/boxpair/boxpair/store/internal/sqlstore"
)

// PrepareContext prepares a statement for the caller, who closes it.
func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	s, err := sqlstore.Prepare(ctx, c.inner, query, syntax, c.do, c.watch)
	if err != nil {
		return nil, err
	}
	return &preparedStmt{s}, nil
}

// watch returns rows that report their errors and their end to the transaction.
func (c *conn) watch(inner driver.Rows) driver.Rows {
	r := &rows{Described: sqlstore.Described{Rows: inner}, conn: c}
	if c.tx != nil {
		r.owned = c.tx.owned
	}
	r.owned.Opened(1)
	return r
}

// Prepare implements [driver.Conn]. database/sql calls PrepareContext instead.
func (c *conn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

// preparedStmt is a statement that the caller has prepared.
type preparedStmt struct{ sqlstore.PreparedStmt }

// CheckNamedValue converts an argument.
func (s *preparedStmt) CheckNamedValue(v *driver.NamedValue) error {
	if inner, ok := s.Stmt.(driver.NamedValueChecker); ok {
		return inner.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

// rows are the rows of a query. A locking read may meet a deadlock while its rows are read.
type rows struct {
	sqlstore.Described
	conn  *conn
	owned *sqlstore.Owned // nil once the rows are closed
}

// Close ends the query.
func (r *rows) Close() error {
	r.owned.Opened(-1)
	r.owned = nil
	return r.Rows.Close()
}

// Next reads the next row.
func (r *rows) Next(dest []driver.Value) error {
	tx := r.conn.tx
	if tx != nil && tx.lost != nil {
		return tx.lost
	}
	err := r.Rows.Next(dest)
	if tx != nil && !errors.Is(err, io.EOF) {
		err = tx.after(err, false)
	}
	return err
}

// HasNextResultSet tells whether another result set follows.
func (r *rows) HasNextResultSet() bool {
	next, ok := r.Rows.(driver.RowsNextResultSet)
	return ok && next.HasNextResultSet()
}

// NextResultSet goes on to the next result set.
func (r *rows) NextResultSet() error {
	next, ok := r.Rows.(driver.RowsNextResultSet)
	if !ok {
		return io.EOF
	}
	err := next.NextResultSet()
	if tx := r.conn.tx; tx != nil && err != nil && !errors.Is(err, io.EOF) {
		err = tx.after(err, false)
	}
	return err
}
