package sqlite

import (
	"container/list"
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"strings"

	"github.com/boxpair/boxpair/store/internal/sqlstore"
)

const (
	maxCached     = 128
	maxCachedText = 16 << 10
)

// stmtCache keeps prepared statements of one connection by their text, and evicts the least
// recently used statement. database/sql can do the same, but to prepare a statement it takes a
// second connection from the pool, which a limited pool may not have within a transaction.
type stmtCache struct {
	byText map[string]*cachedStmt
	recent list.List // of *cachedStmt, the most recently used in front
}

type cachedStmt struct {
	text  string
	stmt  driver.Stmt
	exec  driver.StmtExecContext
	query driver.StmtQueryContext
	place *list.Element // nil if not in the cache
	inUse bool
}

// take returns query prepared on inner. The caller gives the statement back.
func (c *stmtCache) take(ctx context.Context, inner innerConn, query string) (*cachedStmt, error) {
	if s := c.byText[query]; s != nil && !s.inUse {
		s.inUse = true
		c.recent.MoveToFront(s.place)
		return s, nil
	}
	stmt, err := inner.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	s := &cachedStmt{text: query, stmt: stmt, inUse: true}
	var ok bool
	if s.exec, ok = stmt.(driver.StmtExecContext); ok {
		s.query, ok = stmt.(driver.StmtQueryContext)
	}
	if !ok {
		return nil, errors.Join(errors.New("sqlite driver lacks a required method"), stmt.Close())
	}
	if c.byText[query] == nil && cacheable(query) {
		c.keep(s)
	}
	return s, nil
}

func (c *stmtCache) keep(s *cachedStmt) {
	if c.byText == nil {
		c.byText = make(map[string]*cachedStmt)
	}
	for e := c.recent.Back(); e != nil && len(c.byText) >= maxCached; e = c.recent.Back() {
		oldest := e.Value.(*cachedStmt)
		c.recent.Remove(e)
		delete(c.byText, oldest.text)
		oldest.place = nil
		if !oldest.inUse {
			_ = oldest.stmt.Close() // its error could only repeat an earlier failure
		}
	}
	s.place = c.recent.PushFront(s)
	c.byText[s.text] = s
}

// give takes s back.
func (c *stmtCache) give(s *cachedStmt) {
	s.inUse = false
	if s.place == nil {
		_ = s.stmt.Close() // its error could only repeat the error of the execution
	}
}

func (c *stmtCache) close() error {
	var errs []error
	for _, s := range c.byText {
		s.place = nil
		if !s.inUse {
			errs = append(errs, s.stmt.Close())
		}
	}
	c.byText = nil
	c.recent.Init()
	return errors.Join(errs...)
}

// cacheable tells whether query takes effect only when it is executed. Many PRAGMAs take effect
// when they are prepared: from the cache, they would have an effect only once.
func cacheable(query string) bool {
	if len(query) > maxCachedText {
		return false
	}
	query = strings.TrimLeft(query, " \t\r\n")
	end := strings.IndexAny(query, " \t\r\n(;")
	if end < 0 {
		end = len(query)
	}
	switch strings.ToUpper(query[:end]) {
	case "SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH", "VALUES", "SAVEPOINT", "RELEASE", "ROLLBACK":
		return true
	}
	return false
}

// PrepareContext prepares a statement for the caller, who closes it.
func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	s, err := sqlstore.Prepare(ctx, c.inner, query, syntax, c.do, c.watch)
	if err != nil {
		return nil, err
	}
	return &preparedStmt{s, c}, nil
}

// watch returns rows that report their errors and their end to the transaction.
func (c *conn) watch(inner driver.Rows) driver.Rows {
	return c.rows(inner, nil)
}

// rows returns the rows of a query. s is their statement from the cache, or nil. The caller holds
// mu.
func (c *conn) rows(inner driver.Rows, s *cachedStmt) *rows {
	r := &rows{Described: sqlstore.Described{Rows: inner}, conn: c, stmt: s}
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
type preparedStmt struct {
	sqlstore.PreparedStmt
	conn *conn
}

// Close frees the statement.
func (s *preparedStmt) Close() error {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.Stmt.Close()
}

// rows are the rows of a query.
type rows struct {
	sqlstore.Described
	conn  *conn
	stmt  *cachedStmt     // nil for a statement of the caller's
	owned *sqlstore.Owned // nil once the rows are closed
}

// Next reads the next row.
func (r *rows) Next(dest []driver.Value) error {
	r.conn.mu.Lock()
	defer r.conn.mu.Unlock()
	tx := r.conn.tx
	if tx != nil && tx.lost != nil {
		return tx.lost
	}
	err := r.Rows.Next(dest)
	switch {
	case tx == nil:
	case errors.Is(err, io.EOF):
		tx.after(nil)
	default:
		tx.after(err)
	}
	return err
}

// Close ends the query.
func (r *rows) Close() error {
	r.conn.mu.Lock()
	defer r.conn.mu.Unlock()
	r.owned.Opened(-1)
	r.owned = nil
	err := r.Rows.Close()
	if r.stmt != nil {
		r.conn.cache.give(r.stmt)
		r.stmt = nil
	}
	return err
}
