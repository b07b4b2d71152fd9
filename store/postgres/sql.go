package postgres

import (
	"context"
	"regexp"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/boxpair/boxpair/migrations"
)

// template is a statement in which {{name}} stands for a table.
type template struct{ text string }

// templates are all statements of this package. A statement stands beside its caller.
var templates []*template

// statement declares a statement. Only variables of the package call it.
func statement(text string) *template {
	t := &template{text: text}
	templates = append(templates, t)
	return t
}

// statements are the templates with the names of one store.
type statements map[*template]string

var placeholder = regexp.MustCompile(`\{\{([a-z_]+)\}\}`)

func newStatements(names migrations.Names) statements {
	all := make(statements, len(templates))
	for _, t := range templates {
		all[t] = placeholder.ReplaceAllStringFunc(t.text, func(name string) string {
			return names.Table(name[2 : len(name)-2])
		})
	}
	return all
}

// query runs a statement of a relay or an operator outside any transaction. The server plans the
// statement for the present size of the tables, see [planEach].
func (s *Store) query(ctx context.Context, t *template, args ...any) (pgx.Rows, error) {
	return s.pool.Query(ctx, s.sql[t], append([]any{s.mode}, args...)...)
}

// keepPlans precedes a statement whose plan is kept. The planner does not know how fast an empty
// queue grows to millions of rows. The settings make the planner choose indexes, in their order, so
// a plan made for the empty queue stays right. jit: a plan without indexes counts as very
// expensive, and would be compiled. memoize: events that are read once need no cache, which takes a
// third of the time of a fetch. PostgreSQL 13 has no memoize.
const keepPlans = `SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
    set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true),
    CASE WHEN current_setting('enable_memoize', true) IS NOT NULL THEN set_config('enable_memoize', 'off', true) END`

// kept runs a statement that a relay runs many times a second, outside any transaction; read gets
// the rows. Parsing and planning take longer than the execution, so the server keeps the prepared
// statement and one plan. The settings travel with the statement, and end with the statement. If
// the pool does not prepare statements, kept is [Store.query].
//
// Use kept only for tables with a single index that fits: the planner cannot tell the better of two
// indexes while both are empty.
func (s *Store) kept(ctx context.Context, read func(pgx.Rows) error, t *template, args ...any) error {
	if !s.keeps {
		rows, err := s.query(ctx, t, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		if err := read(rows); err != nil {
			return err
		}
		rows.Close()
		return rows.Err()
	}
	b := s.keptBatch()
	b.Queue(s.sql[t], args...).Query(read)
	return s.pool.SendBatch(ctx, b).Close()
}

// keptBatch returns a batch of statements whose plans are kept, see [Store.kept].
func (s *Store) keptBatch() *pgx.Batch {
	b := &pgx.Batch{}
	b.Queue(keepPlans)
	return b
}

// queryRow is query for a statement that returns one row.
func (s *Store) queryRow(ctx context.Context, t *template, args ...any) pgx.Row {
	return s.pool.QueryRow(ctx, s.sql[t], append([]any{s.mode}, args...)...)
}

// exec is query for a statement that returns no rows.
func (s *Store) exec(ctx context.Context, t *template, args ...any) (pgconn.CommandTag, error) {
	return s.pool.Exec(ctx, s.sql[t], append([]any{s.mode}, args...)...)
}

// readRows is query with a scan of each row. Errors are not wrapped.
func readRows[T any](ctx context.Context, s *Store, t *template, args []any, scan func(row pgx.CollectableRow) (T, error)) ([]T, error) {
	rows, err := s.query(ctx, t, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

// scanID reads a row of one column, a dispatch ID.
func scanID(row pgx.CollectableRow) (id uuid.UUID, err error) {
	err = row.Scan((*[16]byte)(&id))
	return id, err
}
