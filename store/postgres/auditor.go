package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/audit"
	"github.com/boxpair/boxpair/migrations"
)

// AuditorConfig configures an [Auditor].
type AuditorConfig struct {
	// Schema is the schema of [Config]. Defaults to "boxpair".
	Schema string `yaml:"schema" env:"SCHEMA"`
	// Prefix is the prefix of [Config]. Defaults to none.
	Prefix string `yaml:"prefix" env:"PREFIX"`
	// StatementTimeout is how long a statement may take, on the server. Defaults to 1 minute.
	StatementTimeout time.Duration `yaml:"statement_timeout" env:"STATEMENT_TIMEOUT"`
}

// Auditor reads an outbox and an inbox for package audit. Every page is read in a read-only
// transaction. An Auditor is safe for concurrent use.
//
// An Auditor needs USAGE on the schema and SELECT on outbox_events, outbox_queue, outbox_deferred,
// outbox_parked, outbox_attempts and outbox_receipts, or on inbox, inbox_consumers, inbox_parked
// and inbox_attempts, and no more. The payload in outbox_events and inbox_parked is not read:
// SELECT on the columns in the statements is enough.
type Auditor struct {
	pool    *pgxpool.Pool
	names   migrations.Names
	mode    pgx.QueryExecMode
	sql     statements
	timeout string
}

var (
	_ audit.Outbox = (*Auditor)(nil)
	_ audit.Inbox  = (*Auditor)(nil)
)

const defaultStatementTimeout = time.Minute

// NewAuditor returns an auditor over pool, without I/O. The pool stays the caller's.
func NewAuditor(pool *pgxpool.Pool, cfg AuditorConfig) (*Auditor, error) {
	names, err := migrations.PostgresNames(cfg.Schema, cfg.Prefix)
	if pool == nil {
		err = errors.Join(err, errors.New("pool is nil"))
	}
	if cfg.StatementTimeout == 0 {
		cfg.StatementTimeout = defaultStatementTimeout
	}
	if cfg.StatementTimeout < time.Millisecond {
		err = errors.Join(err, fmt.Errorf("StatementTimeout: %v is less than a millisecond", cfg.StatementTimeout))
	}
	if err != nil {
		return nil, fmt.Errorf("postgres auditor config: %w", err)
	}
	return &Auditor{
		pool: pool, names: names, mode: planEach(pool.Config().ConnConfig), sql: newStatements(names),
		timeout: strconv.FormatInt(cfg.StatementTimeout.Milliseconds(), 10),
	}, nil
}

// beginAudit bounds the cost of a page, and makes the planner use the indexes, in whose order pages
// are read: the statistics of a queue are outdated.
const beginAudit = `SELECT set_config('statement_timeout', $1, true), set_config('idle_in_transaction_session_timeout', $1, true),
    set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true),
    set_config('max_parallel_workers_per_gather', '0', true)`

// read runs one statement in a read-only transaction, and calls fn with the rows. The settings end
// with the transaction, so they work behind a pooler as well.
func (a *Auditor) read(ctx context.Context, doing string, t *template, fn func(pgx.Rows) error, args ...any) error {
	options := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, a.pool, options, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, beginAudit, a.mode, a.timeout); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, a.sql[t], append([]any{a.mode}, args...)...)
		if err != nil {
			return err
		}
		defer rows.Close()
		if err := fn(rows); err != nil {
			return err
		}
		rows.Close()
		return rows.Err()
	})
	if err != nil {
		return failed(doing, err)
	}
	return nil
}

// collect reads rows into a list by scan.
func collect[T any](ctx context.Context, a *Auditor, doing string, t *template, scan func(pgx.Rows, *T) error, args ...any) ([]T, error) {
	var list []T
	err := a.read(ctx, doing, t, func(rows pgx.Rows) error {
		for rows.Next() {
			var v T
			if err := scan(rows, &v); err != nil {
				return err
			}
			list = append(list, v)
		}
		return nil
	}, args...)
	if err != nil {
		return nil, err
	}
	return list, nil
}

// instantColumn scans a time as UTC, and NULL and -infinity as the zero time.
type instantColumn struct{ at *time.Time }

// ScanTimestamptz implements [pgtype.TimestamptzScanner].
func (c instantColumn) ScanTimestamptz(v pgtype.Timestamptz) error {
	*c.at = time.Time{}
	if v.Valid && v.InfinityModifier == pgtype.Finite {
		*c.at = v.Time.UTC()
	}
	return nil
}
