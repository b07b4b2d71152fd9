package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/migrations"
)

// Querier is a transaction, a connection or the database.
type Querier interface {
	// ExecContext runs a statement.
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	// QueryContext runs a query.
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Text is an argument with a user's text. Words of this library, such as states and outcomes, are
// plain strings.
type Text string

// Rows is an argument to select from: a table of one column "value".
type Rows []int64

// Core runs statements, and has the parts that the stores use in statements of their own. An
// argument is a value for database/sql, a [Text], a list behind IN ([]int, []int64, []string or
// []uuid.UUID), or [Rows] behind FROM. IN of an empty list is never true. NOT IN must not have an
// empty list, except with a Fixed dialect.
type Core struct {
	// DB is the caller's database.
	DB *sql.DB
	// AllAttempts is the setting of the store's Config.
	AllAttempts bool
	// Writers knows the transactions in which events are written.
	Writers Writers

	d     Dialect
	texts sync.Map // of *statement by query, if Dialect.Fixed
}

// NewCore returns the core of a store over db. It does no I/O.
func NewCore(db *sql.DB, d Dialect, allAttempts bool) *Core {
	return &Core{DB: db, AllAttempts: allAttempts, d: d}
}

// statement is a query in the form that the database takes.
type statement struct {
	text   string
	places []int // the index of each argument among the given arguments, or clockPlace
	plain  bool  // the given arguments are passed unchanged
}

const clockPlace = -1

// statement returns the text and the arguments of a query for the database.
func (c *Core) statement(query string, args []any) (string, []any) {
	if !c.d.Fixed {
		w := writer{c: c, given: args}
		w.write(query)
		return w.out.String(), w.bound
	}
	known, ok := c.texts.Load(query)
	if !ok {
		w := writer{c: c, given: args}
		w.write(query)
		known, _ = c.texts.LoadOrStore(query, &statement{text: w.out.String(), places: w.places, plain: w.plain || !w.changed})
	}
	s := known.(*statement)
	if s.plain {
		return s.text, args
	}
	bound := make([]any, len(s.places))
	var at any // the clock is read once for a statement
	for i, place := range s.places {
		switch {
		case place != clockPlace:
			bound[i] = c.bind(args[place])
		case at == nil:
			at = c.d.Clock()
			fallthrough
		default:
			bound[i] = at
		}
	}
	return s.text, bound
}

// bind returns an argument of a fixed statement for the driver.
func (c *Core) bind(arg any) any {
	if _, bound, ok := c.list(arg); ok {
		return bound[0]
	}
	return arg
}

// list returns the text and the arguments of a list. ok is false if arg is no list.
func (c *Core) list(arg any) (text string, bound []any, ok bool) {
	switch list := arg.(type) {
	case []int64, []int, []string, []uuid.UUID, Rows:
		text, bound = c.d.List(list)
		return text, bound, true
	}
	return "", nil, false
}

// writer builds a statement.
type writer struct {
	c       *Core
	given   []any
	next    int // index in given
	out     strings.Builder
	bound   []any
	places  []int
	changed bool // the arguments differ from the given arguments
	plain   bool // the query numbers its arguments
}

func (w *writer) write(text string) {
	for {
		i := strings.IndexAny(text, "{?")
		if i < 0 {
			w.out.WriteString(text)
			return
		}
		w.out.WriteString(text[:i])
		special := text[i]
		text = text[i+1:]
		switch {
		case special == '{':
			word, rest, _ := strings.Cut(text, "}")
			w.word(word)
			text = rest
		case text != "" && '0' <= text[0] && text[0] <= '9':
			w.out.WriteByte('?')
			w.plain = true
		default:
			w.argument()
		}
	}
}

// word writes the text for a word in braces.
func (w *writer) word(word string) {
	name, of, _ := strings.Cut(word, " ")
	text, known := w.c.d.Words[name]
	switch {
	case known:
		w.write(strings.ReplaceAll(text, "$", of))
	case name == "now":
		w.out.WriteByte('?')
		w.places = append(w.places, clockPlace)
		w.changed = true
	default:
		w.out.WriteString(w.c.d.Names.Table(name))
	}
}

// argument writes the placeholder of the next argument.
func (w *writer) argument() {
	place := w.next
	w.next++
	if place >= len(w.given) { // the driver reports the missing argument
		w.out.WriteByte('?')
		return
	}
	arg := w.given[place]
	w.places = append(w.places, place)
	if text, bound, ok := w.c.list(arg); ok {
		w.out.WriteString(text)
		w.bound = append(w.bound, bound...)
		w.changed = true
		return
	}
	if text, ok := arg.(Text); ok && w.c.d.Text != nil {
		arg = w.c.d.Text(string(text))
	}
	w.out.WriteByte('?')
	w.bound = append(w.bound, arg)
}

// Exec runs a statement and returns the number of changed rows. On MySQL, the configuration of the
// connection decides whether an UPDATE with equal values counts as a change: callers must not
// depend on it.
func (c *Core) Exec(ctx context.Context, q Querier, query string, args ...any) (int64, error) {
	text, bound := c.statement(query, args)
	result, err := q.ExecContext(ctx, text, bound...)
	if err != nil {
		return 0, c.hint(err)
	}
	return result.RowsAffected()
}

// Each runs a query and calls scan for every row.
func (c *Core) Each(ctx context.Context, q Querier, scan func(*sql.Rows) error, query string, args ...any) error {
	text, bound := c.statement(query, args)
	rows, err := q.QueryContext(ctx, text, bound...)
	if err != nil {
		return c.hint(err)
	}
	defer func() { _ = rows.Close() }() // Err returns the error of Close
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// hint adds [migrations.ErrMissing] to an error about a missing table or column.
func (c *Core) hint(err error) error {
	if c.d.Missing != nil && c.d.Missing(err) {
		return fmt.Errorf("%w: %w", err, migrations.ErrMissing)
	}
	return err
}

// collect runs a query and returns the results of scan for all rows.
func collect[T any](ctx context.Context, c *Core, q Querier, scan func(*sql.Rows) (T, error), query string, args ...any) (list []T, err error) {
	err = c.Each(ctx, q, func(rows *sql.Rows) error {
		v, err := scan(rows)
		list = append(list, v)
		return err
	}, query, args...)
	return list, err
}

// One reads the first row of a query, and returns sql.ErrNoRows without any.
func (c *Core) One(ctx context.Context, q Querier, dest []any, query string, args ...any) error {
	found := false
	err := c.Each(ctx, q, func(rows *sql.Rows) error {
		if found {
			return nil
		}
		found = true
		return rows.Scan(dest...)
	}, query, args...)
	if err == nil && !found {
		return sql.ErrNoRows
	}
	return err
}

// IDs runs a query of one column of numbers.
func (c *Core) IDs(ctx context.Context, q Querier, query string, args ...any) ([]int64, error) {
	return collect(ctx, c, q, func(rows *sql.Rows) (id int64, err error) {
		err = rows.Scan(&id)
		return id, err
	}, query, args...)
}

// Now reads the clock of the database, in microseconds since 1970.
func (c *Core) Now(ctx context.Context, q Querier) (at int64, err error) {
	if c.d.Clock != nil {
		return c.d.Clock(), nil
	}
	err = c.One(ctx, q, []any{&at}, `SELECT {now}`)
	return at, err
}
