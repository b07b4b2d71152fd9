package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

const (
	maxIdleConns = 16
	connIdleTime = 5 * time.Minute
	// serverPacket makes the driver read max_allowed_packet from the server.
	serverPacket = 0
)

// Open returns the database of dsn, in the form of github.com/go-sql-driver/mysql:
// user:password@tcp(host:3306)/database. Its sessions have the settings that this package requires:
// READ COMMITTED unless a transaction asks for another level, strict mode, autocommit. The caller
// closes the database. No I/O happens before the first use. Errors do not show the DSN.
func Open(dsn string) (*sql.DB, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("open mysql database: dsn: %w", err)
	}
	c, err := NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(c)
	db.SetMaxIdleConns(maxIdleConns)
	db.SetConnMaxIdleTime(connIdleTime)
	return db, nil
}

// NewConnector returns the connector of [Open], for sql.OpenDB. It allows wrapping the connector,
// as tracing does, and settings that a DSN cannot express. [New] does not recognise a wrapped
// connector and needs [Config].Wrapped. NewConnector does not change cfg. InterpolateParams is
// always on: it saves a round trip per statement. If MaxAllowedPacket is the driver's default, the
// server's max_allowed_packet is used.
func NewConnector(cfg *mysql.Config) (driver.Connector, error) {
	if cfg == nil {
		return nil, errors.New("open mysql database: cfg is nil")
	}
	cfg = cfg.Clone()
	if cfg.DBName == "" {
		return nil, errors.New("open mysql database: DBName: is required")
	}
	cfg.InterpolateParams = true
	if cfg.MaxAllowedPacket == mysql.NewConfig().MaxAllowedPacket {
		cfg.MaxAllowedPacket = serverPacket
	}
	inner, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("open mysql database: %w", err)
	}
	return &connector{inner: inner, driver: &guardedDriver{inner.Driver()}}, nil
}

// connector makes guarded connections.
type connector struct {
	inner  driver.Connector
	driver *guardedDriver
}

// guardedDriver is the type by which [New] recognises a database of [Open].
type guardedDriver struct{ driver.Driver }

// Driver returns the driver that New recognises.
func (c *connector) Driver() driver.Driver { return c.driver }

// The settings of a session. Without strict mode the server would truncate long texts without an
// error. With READ UNCOMMITTED as the server's default a session would see changes that are rolled
// back. The variables keep the initial settings of the session, see [limits]. MariaDB can bound the
// idle time of a transaction; MySQL bounds only the idle time of a session, in the pool as well.
const (
	sessionIsolation = `SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED`
	sessionSettings  = `SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES'), SESSION autocommit = 1,
@boxpair_lock_wait = @@innodb_lock_wait_timeout, @boxpair_idle = @@wait_timeout /*M! , @boxpair_idle = @@idle_transaction_timeout */`
	setIdle = `SESSION /*M! idle_transaction_timeout */ /*!80000 wait_timeout */ = `
)

// Connect opens a connection.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	opened, err := c.inner.Connect(ctx)
	if err != nil {
		return nil, err
	}
	inner, ok := opened.(innerConn)
	if !ok {
		return nil, errors.Join(errors.New("mysql driver lacks a required method"), opened.Close())
	}
	for _, settings := range []string{sessionIsolation, sessionSettings} {
		if _, err := inner.ExecContext(ctx, settings, nil); err != nil {
			return nil, errors.Join(fmt.Errorf("configure the session: %w", err), inner.Close())
		}
	}
	mariaDB, err := isMariaDB(ctx, inner)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ask for the version: %w", err), inner.Close())
	}
	return &conn{inner: inner, pooledIdle: !mariaDB}, nil
}

func isMariaDB(ctx context.Context, c innerConn) (bool, error) {
	rows, err := c.QueryContext(ctx, `SELECT VERSION()`, nil)
	if err != nil {
		return false, err
	}
	version := make([]driver.Value, 1)
	err = errors.Join(rows.Next(version), rows.Close())
	return strings.Contains(fmt.Sprintf("%s", version[0]), "MariaDB"), err
}
