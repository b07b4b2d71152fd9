package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"reflect"
)

// PrepareContext prepares a statement for the caller, who closes it.
func (c *conn) PrepareContext(ctx context.Context, query string) (s driver.Stmt, err error) {
	err = c.do(ctx, func() error {
		inner, err := c.inner.PrepareContext(ctx, query)
		if err == nil {
			s = &preparedStmt{Stmt: inner, conn: c}
		}
		return err
	})
	return s, err
}

// Prepare is PrepareContext for callers that know no contexts.
func (c *conn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

// preparedStmt is a statement that the caller has prepared.
type preparedStmt struct {
	driver.Stmt
	conn *conn
}

// ExecContext runs the statement.
func (s *preparedStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (r driver.Result, err error) {
	inner, ok := s.Stmt.(driver.StmtExecContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	err = s.conn.do(ctx, func() error {
		r, err = inner.ExecContext(ctx, args)
		return err
	})
	return r, err
}

// QueryContext runs the query.
func (s *preparedStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (r driver.Rows, err error) {
	inner, ok := s.Stmt.(driver.StmtQueryContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	err = s.conn.do(ctx, func() error {
		found, err := inner.QueryContext(ctx, args)
		if err == nil {
			r = &rows{conn: s.conn, inner: found}
		}
		return err
	})
	return r, err
}

// CheckNamedValue converts an argument.
func (s *preparedStmt) CheckNamedValue(v *driver.NamedValue) error {
	if inner, ok := s.Stmt.(driver.NamedValueChecker); ok {
		return inner.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

// rows are the rows of a query. A locking read may find its deadlock while they are read.
type rows struct {
	conn  *conn
	inner driver.Rows
}

// Columns returns the names of the columns.
func (r *rows) Columns() []string { return r.inner.Columns() }

// Next reads the next row.
func (r *rows) Next(dest []driver.Value) error {
	tx := r.conn.tx
	if tx != nil && tx.lost != nil {
		return tx.lost
	}
	err := r.inner.Next(dest)
	switch {
	case tx == nil:
	case errors.Is(err, io.EOF):
		_ = tx.after(nil)
	default:
		err = tx.after(err)
	}
	return err
}

// Close ends the query.
func (r *rows) Close() error { return r.inner.Close() }

// HasNextResultSet tells whether another result set follows.
func (r *rows) HasNextResultSet() bool {
	next, ok := r.inner.(driver.RowsNextResultSet)
	return ok && next.HasNextResultSet()
}

// NextResultSet goes on to the next result set.
func (r *rows) NextResultSet() error {
	next, ok := r.inner.(driver.RowsNextResultSet)
	if !ok {
		return io.EOF
	}
	err := next.NextResultSet()
	if tx := r.conn.tx; tx != nil && err != nil && !errors.Is(err, io.EOF) {
		err = tx.after(err)
	}
	return err
}

// ColumnTypeDatabaseTypeName returns the type of a column.
func (r *rows) ColumnTypeDatabaseTypeName(i int) string {
	if t, ok := r.inner.(driver.RowsColumnTypeDatabaseTypeName); ok {
		return t.ColumnTypeDatabaseTypeName(i)
	}
	return ""
}

// ColumnTypeNullable tells whether a column may be NULL.
func (r *rows) ColumnTypeNullable(i int) (nullable, ok bool) {
	if t, ok := r.inner.(driver.RowsColumnTypeNullable); ok {
		return t.ColumnTypeNullable(i)
	}
	return false, false
}

// ColumnTypePrecisionScale returns the precision and scale of a decimal column.
func (r *rows) ColumnTypePrecisionScale(i int) (precision, scale int64, ok bool) {
	if t, ok := r.inner.(driver.RowsColumnTypePrecisionScale); ok {
		return t.ColumnTypePrecisionScale(i)
	}
	return 0, 0, false
}

// ColumnTypeScanType returns the type that a column is best scanned into.
func (r *rows) ColumnTypeScanType(i int) reflect.Type {
	if t, ok := r.inner.(driver.RowsColumnTypeScanType); ok {
		return t.ColumnTypeScanType(i)
	}
	return reflect.TypeFor[any]()
}
