package mysql

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/migrations"
)

// Config configures a [Store].
type Config struct {
	// Prefix begins the name of every table; at most 40 bytes. Several outboxes can share a
	// database under different prefixes. Defaults to "boxpair_".
	Prefix string `yaml:"prefix" env:"PREFIX"`
	// Wrapped accepts a database whose connector is not recognised because it was wrapped, as
	// tracing does. What is wrapped must come from [NewConnector]: on other connections claims
	// fail, and a transaction that the server has ended would go on unnoticed. Defaults to false.
	Wrapped bool `yaml:"wrapped" env:"WRAPPED"`
	// AllAttempts keeps a row in outbox_attempts for every confirmed attempt of relays that use
	// the store, too: the history of an event then shows which relay has sent each copy and when. It costs
	// a row per delivery, kept as long as the event. Inboxes likewise keep one in inbox_history for every message
	// that they apply, for as long as consumer.Config.HistoryFor says. Defaults to false: failures only.
	AllAttempts bool `yaml:"all_attempts" env:"ALL_ATTEMPTS"`
}

// Store keeps outboxes and inboxes in MySQL or MariaDB. It is safe for concurrent use.
type Store struct {
	db          *sql.DB
	names       migrations.Names
	writers     writers
	allAttempts bool
}

// New returns a store over db, in which [Migrate] has made the tables. It does no I/O.
// The database stays the caller's, who closes it.
func New(db *sql.DB, cfg Config) (*Store, error) {
	names, err := migrations.MySQLNames(cfg.Prefix)
	if db == nil {
		err = errors.Join(err, errors.New("db is nil"))
	} else if _, ok := db.Driver().(*guardedDriver); !ok && !cfg.Wrapped {
		err = errors.Join(err, errors.New("db was not opened by mysql.Open: use that, or set Wrapped if its connector was wrapped"))
	}
	if err != nil {
		return nil, fmt.Errorf("mysql store config: %w", err)
	}
	return &Store{db: db, names: names, allAttempts: cfg.AllAttempts}, nil
}

// clock is the database's clock in microseconds since 1970, whatever the time zone of the session.
const clock = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))`

// text returns a statement with what stands in braces put in: names of tables, and {now} for the clock.
func (s *Store) text(query string) string {
	var out strings.Builder
	rest := query
	for {
		before, after, found := strings.Cut(rest, "{")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		name, tail, _ := strings.Cut(after, "}")
		if name == "now" {
			out.WriteString(clock)
		} else {
			out.WriteString(s.names.Table(name))
		}
		rest = tail
	}
}

// querier is a transaction or the database.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// exec runs a statement and tells how many rows it changed. An UPDATE that sets what is there already
// changes none, or does, as the connection was configured: nothing here goes by that.
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

// ids runs a query of one column of numbers.
func (s *Store) ids(ctx context.Context, q querier, query string, args ...any) (list []int64, err error) {
	err = s.each(ctx, q, func(rows *sql.Rows) error {
		var id int64
		err := rows.Scan(&id)
		list = append(list, id)
		return err
	}, query, args...)
	return list, err
}

// numbers returns list in parentheses, for IN.
func numbers[T int | int64](list []T) string {
	if len(list) == 0 {
		return "(NULL)"
	}
	var out strings.Builder
	for i, n := range list {
		out.WriteByte("(,"[min(i, 1)])
		out.WriteString(strconv.FormatInt(int64(n), 10))
	}
	out.WriteByte(')')
	return out.String()
}

// hexes returns IDs in parentheses, for IN.
func hexes(ids []uuid.UUID) string {
	if len(ids) == 0 {
		return "(NULL)"
	}
	var out strings.Builder
	for i := range ids {
		out.WriteByte("(,"[min(i, 1)])
		out.WriteString("0x")
		out.WriteString(hex.EncodeToString(ids[i][:]))
	}
	out.WriteByte(')')
	return out.String()
}

// marks returns n question marks in parentheses.
func marks(n int) string {
	if n == 0 {
		return "(NULL)"
	}
	return "(" + strings.Repeat("?,", n-1) + "?)"
}

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

// stampOf returns t for a column that may be NULL.
func stampOf(t time.Time) sql.NullInt64 {
	return sql.NullInt64{Int64: t.UnixMicro(), Valid: !t.IsZero()}
}
