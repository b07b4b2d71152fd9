package postgres

import (
	"context"
	"regexp"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/boxpair/boxpair/migrations"
)

// template is a statement in which {{name}} stands for a table.
type template struct{ text string }

// templates are all statements of this package, which stand beside their callers.
var templates []*template

// statement declares a statement. It is called for variables of the package only.
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

// query runs a statement of a relay or an operator outside any transaction. It
// is planned for the table as it is now, see [planEach].
func (s *Store) query(ctx context.Context, t *template, args ...any) (pgx.Rows, error) {
	return s.pool.Query(ctx, s.sql[t], append([]any{s.mode}, args...)...)
}

// queryRow is query for a statement that returns one row.
func (s *Store) queryRow(ctx context.Context, t *template, args ...any) pgx.Row {
	return s.pool.QueryRow(ctx, s.sql[t], append([]any{s.mode}, args...)...)
}

// exec is query for a statement that returns none.
func (s *Store) exec(ctx context.Context, t *template, args ...any) (pgconn.CommandTag, error) {
	return s.pool.Exec(ctx, s.sql[t], append([]any{s.mode}, args...)...)
}
