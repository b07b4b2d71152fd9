package sqlstore

import (
	"context"
	"database/sql/driver"
	"reflect"
)

// DriverConn is a connection with all optional interfaces that both drivers implement.
type DriverConn interface {
	driver.Conn
	driver.ConnPrepareContext
	driver.ConnBeginTx
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// PreparedStmt is a statement that a caller has prepared on a guarded connection.
type PreparedStmt struct {
	driver.Stmt
	// Reading tells what the statement does to its transaction.
	Reading Reading
	// Do runs one statement on the connection.
	Do func(ctx context.Context, r Reading, run func() error) error
	// Watch wraps the rows of a query.
	Watch func(driver.Rows) driver.Rows
}

// Prepare prepares a statement on a connection that runs statements through do and wraps their rows
// with watch.
func Prepare(ctx context.Context, inner driver.ConnPrepareContext, query string, syntax Syntax,
	do func(ctx context.Context, r Reading, run func() error) error, watch func(driver.Rows) driver.Rows,
) (s PreparedStmt, err error) {
	err = do(ctx, Reading{}, func() error {
		stmt, err := inner.PrepareContext(ctx, query)
		s = PreparedStmt{Stmt: stmt, Reading: syntax.Read(query), Do: do, Watch: watch}
		return err
	})
	return s, err
}

// ExecContext runs the statement.
func (s *PreparedStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (r driver.Result, err error) {
	inner, ok := s.Stmt.(driver.StmtExecContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	err = s.Do(ctx, s.Reading, func() error {
		r, err = inner.ExecContext(ctx, args)
		return err
	})
	return r, err
}

// QueryContext runs the query.
func (s *PreparedStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (r driver.Rows, err error) {
	inner, ok := s.Stmt.(driver.StmtQueryContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	err = s.Do(ctx, s.Reading, func() error {
		found, err := inner.QueryContext(ctx, args)
		if err == nil {
			r = s.Watch(found)
		}
		return err
	})
	return r, err
}

// Described are rows with the column types of the wrapped driver rows.
type Described struct{ driver.Rows }

// ColumnTypeDatabaseTypeName returns the type of a column.
func (r *Described) ColumnTypeDatabaseTypeName(i int) string {
	if t, ok := r.Rows.(driver.RowsColumnTypeDatabaseTypeName); ok {
		return t.ColumnTypeDatabaseTypeName(i)
	}
	return ""
}

// ColumnTypeNullable tells whether a column may be NULL.
func (r *Described) ColumnTypeNullable(i int) (nullable, ok bool) {
	if t, ok := r.Rows.(driver.RowsColumnTypeNullable); ok {
		return t.ColumnTypeNullable(i)
	}
	return false, false
}

// ColumnTypePrecisionScale returns the precision and scale of a decimal column.
func (r *Described) ColumnTypePrecisionScale(i int) (precision, scale int64, ok bool) {
	if t, ok := r.Rows.(driver.RowsColumnTypePrecisionScale); ok {
		return t.ColumnTypePrecisionScale(i)
	}
	return 0, 0, false
}

// ColumnTypeScanType returns the Go type to scan a column into.
func (r *Described) ColumnTypeScanType(i int) reflect.Type {
	if t, ok := r.Rows.(driver.RowsColumnTypeScanType); ok {
		return t.ColumnTypeScanType(i)
	}
	return reflect.TypeFor[any]()
}
