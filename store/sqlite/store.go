package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/boxpair/boxpair/migrations"
)

// Config configures a [Store].
type Config struct {
	// Prefix begins the name of every table; at most 40 bytes. Several outboxes can share a
	// database under different prefixes. Defaults to "boxpair_".
	Prefix string `yaml:"prefix" env:"PREFIX"`
	// Unguarded accepts a database that does not come from [Open] or, unwrapped, from
	// [NewConnector]. The caller sees to a busy timeout, to write-ahead logging and to synchronous=FULL. Without
	// the guard, statements that follow a swallowed error after which SQLite has ended the transaction
	// are committed one by one, and the timeouts of a Claim have no effect. Defaults to false.
	Unguarded bool `yaml:"unguarded" env:"UNGUARDED"`
	// AllAttempts keeps a row in outbox_attempts for every confirmed attempt of relays that use
	// the store, too: the history of an event then shows which relay has sent each copy and when. It costs
	// a row per delivery, kept as long as the event. Inboxes likewise keep one in inbox_history for every message
	// that they apply, for as long as consumer.Config.HistoryFor says. Defaults to false: failures only.
	AllAttempts bool `yaml:"all_attempts" env:"ALL_ATTEMPTS"`
}

// Store keeps outboxes and inboxes in SQLite. It is safe for concurrent use.
type Store struct {
	db      *sql.DB
	names   migrations.Names
	gate    *gate // nil: not guarded
	busy    time.Duration
	texts   sync.Map // of statements, with the names put in
	writers writers

	allAttempts bool
}

// New returns a store over db, in which [Migrate] has made the tables. It does no I/O.
// The database stays the caller's, who closes it.
func New(db *sql.DB, cfg Config) (*Store, error) {
	names, err := migrations.SQLiteNames(cfg.Prefix)
	s := &Store{db: db, names: names, busy: defaultBusyTimeout, allAttempts: cfg.AllAttempts}
	if db == nil {
		err = errors.Join(err, errors.New("db is nil"))
	} else if d, ok := db.Driver().(*guardedDriver); ok {
		s.gate, s.busy = d.gate, d.busy
	} else if !cfg.Unguarded {
		err = errors.Join(err, errors.New("db was not opened by sqlite.Open: use that, or set Unguarded"))
	}
	if err != nil {
		return nil, fmt.Errorf("sqlite store config: %w", err)
	}
	return s, nil
}

// text returns a statement with the names of tables, which stand in it in braces, put in.
func (s *Store) text(query string) string {
	if v, ok := s.texts.Load(query); ok {
		return v.(string)
	}
	var out strings.Builder
	rest := query
	for {
		before, after, found := strings.Cut(rest, "{")
		out.WriteString(before)
		if !found {
			break
		}
		name, tail, _ := strings.Cut(after, "}")
		out.WriteString(s.names.Table(name))
		rest = tail
	}
	v, _ := s.texts.LoadOrStore(query, out.String())
	return v.(string)
}

// querier is a transaction or the database.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// exec runs a statement and tells how many rows it changed.
func (s *Store) exec(ctx context.Context, q querier, query string, args ...any) (int64, error) {
	result, err := q.ExecContext(ctx, s.text(query), args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// each runs a query and calls scan for every row.
func (s *Store) each(ctx context.Context, q querier, scan func(*sql.Rows) error, query string, args ...any) error {
	rows, err := q.QueryContext(ctx, s.text(query), args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // Err says what Close would
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// one reads the first row of a query. No row gives sql.ErrNoRows.
func (s *Store) one(ctx context.Context, q querier, dest []any, query string, args ...any) error {
	found := false
	err := s.each(ctx, q, func(rows *sql.Rows) error {
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

// now is the database's clock. SQLite runs in this process, so it is the
// machine's, which all processes that may share a database file have in common; SQLite's own
// functions would only round it to milliseconds.
func now() int64 { return time.Now().UnixMicro() }

// micros returns d in the unit of time columns.
func micros(d time.Duration) int64 { return d.Microseconds() }

// instant returns the time in a column.
func instant(us int64) time.Time { return time.UnixMicro(us).UTC() }

// optional returns the time in a column that may be NULL.
func optional(us sql.NullInt64) time.Time {
	if !us.Valid {
		return time.Time{}
	}
	return instant(us.Int64)
}
