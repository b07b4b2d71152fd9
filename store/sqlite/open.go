package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"modernc.org/sqlite"
)

// ConnectorConfig configures [NewConnector].
type ConnectorConfig struct {
	// BusyTimeout bounds the wait of a transaction or statement for other writers of all processes.
	// After it, the transaction or statement fails with a busy error. Defaults to 10 s.
	BusyTimeout time.Duration `yaml:"busy_timeout" env:"BUSY_TIMEOUT"`
}

const (
	defaultBusyTimeout = 10 * time.Second
	maxIdleConns       = 16
	connIdleTime       = 5 * time.Minute
)

// Open returns the database in the file at path, which is created if it does not exist. The
// database has the settings that this package requires: write-ahead log, synchronous=FULL, foreign
// keys enforced, and the write lock from the start of every transaction that is not read-only. The
// caller closes the database. No I/O happens before the first use.
//
// The pool is not limited. In a limited pool, connections that wait for the write lock could keep
// the handler that holds the lock from reading outside of its transaction.
func Open(path string) (*sql.DB, error) {
	c, err := NewConnector(path, ConnectorConfig{})
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(c)
	db.SetMaxIdleConns(maxIdleConns)
	db.SetConnMaxIdleTime(connIdleTime)
	return db, nil
}

// NewConnector returns the connector of [Open], for sql.OpenDB. It allows wrapping the connector,
// as tracing does, and another timeout. [New] does not recognise a wrapped connector and needs
// [Config].Unguarded; the connections are guarded all the same, but nested transactions fail only
// after the busy timeout.
func NewConnector(path string, cfg ConnectorConfig) (driver.Connector, error) {
	var errs []error
	switch {
	case path == "":
		errs = append(errs, errors.New("path: is empty"))
	case strings.HasPrefix(path, "file:"):
		errs = append(errs, errors.New("path: is a URI: give the path of a file"))
	case strings.Contains(path, ":memory:"):
		errs = append(errs, errors.New("path: every connection would have an in-memory database of its own: give the path of a file"))
	case strings.ContainsRune(path, 0):
		errs = append(errs, errors.New("path: contains NUL"))
	}
	switch {
	case cfg.BusyTimeout == 0:
		cfg.BusyTimeout = defaultBusyTimeout
	case cfg.BusyTimeout < 0:
		errs = append(errs, fmt.Errorf("BusyTimeout: %v is negative", cfg.BusyTimeout))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("open sqlite database: %w", err)
	}
	inner, err := sqlite.NewConnector(dsn(path))
	if err != nil {
		return nil, fmt.Errorf("open sqlite database: %w", err)
	}
	return &connector{inner: inner, driver: &guardedDriver{Driver: inner.Driver(), gate: &gate{}, busy: cfg.BusyTimeout}}, nil
}

// dsn returns path as a URI for the driver. journal_size_limit frees disk space after a burst.
func dsn(path string) string {
	path = filepath.ToSlash(path)
	if filepath.VolumeName(path) != "" {
		path = "/" + path
	}
	pragmas := url.Values{"_txlock": {"immediate"}, "_pragma": {
		"busy_timeout(0)", // conn waits instead: SQLite's own handler sleeps up to 100 ms at a time, ignores contexts,
		// and is not called if two connections would wait for each other
		"journal_mode(WAL)",
		"synchronous(FULL)",
		"fullfsync(1)", // on macOS, where fsync does not reach the disk
		"foreign_keys(1)",
		"journal_size_limit(67108864)",
	}}
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + pragmas.Encode()
}

// connector makes guarded connections.
type connector struct {
	inner  driver.Connector
	driver *guardedDriver
}

// guardedDriver is the type by which [New] recognises a database of [Open].
type guardedDriver struct {
	driver.Driver
	gate *gate
	busy time.Duration
}

// Driver returns the driver that New recognises.
func (c *connector) Driver() driver.Driver { return c.driver }

// Connect opens a connection. It waits, as a transaction does, while other connections write to a
// file without a write-ahead log, or recover the log.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	wait, until := ctx, time.Now().Add(c.driver.busy) //nolint:contextcheck // a turn has its own
	if t, ok := ctx.Value(turnKey{}).(*turn); ok && t.gate == c.driver.gate && t.state.Load() == turnFree {
		until = t.until
		if t.wait != nil {
			wait = t.wait
		}
	}
	var opened driver.Conn
	err := retryBusy(wait, until, func() (err error) {
		opened, err = c.inner.Connect(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	inner, ok := opened.(innerConn)
	if !ok {
		return nil, errors.Join(errors.New("sqlite driver lacks a method that is needed"), opened.Close())
	}
	return &conn{inner: inner, gate: c.driver.gate, busy: c.driver.busy}, nil
}
