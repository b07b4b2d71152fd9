package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/boxpair/boxpair/audit"
	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/store/internal/sqlstore"
)

// AuditorConfig configures an [Auditor].
type AuditorConfig struct {
	// Prefix is as in [Config]. Defaults to "boxpair_".
	Prefix string `yaml:"prefix" env:"PREFIX"`
	// StatementTimeout bounds each statement. Defaults to 1 minute.
	StatementTimeout time.Duration `yaml:"statement_timeout" env:"STATEMENT_TIMEOUT"`
}

// Auditor reads an outbox and an inbox for package audit. Every page is one statement, in a read
// transaction of its own that does not block writers. Auditor is safe for concurrent use.
type Auditor struct {
	core    *sqlstore.Core
	names   migrations.Names
	timeout time.Duration
}

var (
	_ audit.Outbox = (*Auditor)(nil)
	_ audit.Inbox  = (*Auditor)(nil)
)

const defaultStatementTimeout = time.Minute

// OpenReadOnly returns the database in the existing file at path, for [NewAuditor]. Statements that
// change the database fail; a [Store] needs [Open]. Services may write to the file at the same
// time. The file's directory must be writable if no process has the database open, since SQLite
// keeps the index of the log beside the file. The caller closes the database.
func OpenReadOnly(path string) (*sql.DB, error) {
	if info, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("open sqlite database: %w", err)
	} else if info.IsDir() {
		return nil, fmt.Errorf("open sqlite database: %s is a directory", path)
	}
	path = filepath.ToSlash(path)
	if filepath.VolumeName(path) != "" {
		path = "/" + path
	}
	options := url.Values{"mode": {"ro"}, "_pragma": {"busy_timeout(10000)", "query_only(1)"}}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+options.Encode())
	if err != nil {
		return nil, fmt.Errorf("open sqlite database: %w", err)
	}
	return db, nil
}

// NewAuditor returns an auditor over db. It does no I/O. The caller closes db.
func NewAuditor(db *sql.DB, cfg AuditorConfig) (*Auditor, error) {
	names, err := migrations.SQLiteNames(cfg.Prefix)
	if db == nil {
		err = errors.Join(err, errors.New("db is nil"))
	}
	switch {
	case cfg.StatementTimeout == 0:
		cfg.StatementTimeout = defaultStatementTimeout
	case cfg.StatementTimeout < 0:
		err = errors.Join(err, fmt.Errorf("StatementTimeout: %v is negative", cfg.StatementTimeout))
	}
	if err != nil {
		return nil, fmt.Errorf("sqlite auditor config: %w", err)
	}
	return &Auditor{core: sqlstore.NewCore(db, (&Store{names: names}).dialect(), false), names: names, timeout: cfg.StatementTimeout}, nil
}

// each runs a query and calls scan for every row.
func (a *Auditor) each(ctx context.Context, doing string, scan func(*sql.Rows) error, query string, args ...any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, a.timeout, fmt.Errorf("the statement took longer than %v", a.timeout))
	defer cancel()
	err := a.core.Each(ctx, a.core.DB, scan, query, args...)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	return fmt.Errorf("%s: %w", doing, err)
}
