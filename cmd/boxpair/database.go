package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os/user"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/audit"
	"github.com/boxpair/boxpair/store/mysql"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/sqlite"
)

// target is a database named by URL.
type target struct {
	name           string // without user and password
	shown          string // the URL without its password
	pool           *pgxpool.Config
	direct         *pgx.ConnConfig // of the server past a pooler; nil if it is not named
	server         *driver.Config  // of MySQL or MariaDB
	path           string          // of a SQLite file; "" if pool or server is set
	schema, prefix string
}

// errURL quotes no part of the URL: the text that a parser cannot parse may be the password.
var errURL = errors.New("want postgres://user:password@host:port/database, mysql://user:password@host:port/database or sqlite:path, " +
	"with reserved characters of user and password percent-encoded")

// The parameters of a URL that belong to this program.
const (
	schemaParameter = "boxpair_schema"
	prefixParameter = "boxpair_prefix"
	directParameter = "boxpair_direct"
)

func parseTarget(text string) (target, error) {
	if path, ok := strings.CutPrefix(text, "sqlite:"); ok {
		return parseSQLite(path)
	}
	u, err := url.Parse(text)
	if err == nil && u.Scheme == "mysql" && !strings.Contains(u.EscapedPath(), "@") {
		return parseMySQL(u)
	}
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" || strings.Contains(u.EscapedPath(), "@") {
		return target{}, errURL
	}
	query := u.Query()
	t := target{schema: query.Get(schemaParameter), prefix: query.Get(prefixParameter)}
	direct := query.Get(directParameter)
	query.Del(schemaParameter)
	query.Del(prefixParameter)
	query.Del(directParameter)
	u.RawQuery = encoded(query)
	if t.pool, err = poolOf(u); err != nil {
		return target{}, err
	}
	conn := t.pool.ConnConfig
	if direct != "" {
		if server, err := url.Parse("//" + direct); err != nil || server.Host != direct {
			return target{}, errors.New(directParameter + ": want host:port of the server itself")
		}
		past := *u
		past.Host = direct
		cfg, err := poolOf(&past)
		if err != nil {
			return target{}, err
		}
		t.direct = cfg.ConnConfig
	}
	t.shown = shownURL(text)
	t.name = fmt.Sprintf("%s:%d/%s", conn.Host, conn.Port, conn.Database)
	return t, nil
}

// poolOf returns a pool of one connection to the server at u.
func poolOf(u *url.URL) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		return nil, errURL
	}
	cfg.MaxConns = 1
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = connectTimeout
	}
	cfg.ConnConfig.RuntimeParams["application_name"] = "boxpair"
	return cfg, nil
}

func parseMySQL(u *url.URL) (target, error) {
	c := driver.NewConfig()
	c.Net, c.Addr, c.DBName, c.User = "tcp", u.Host, strings.TrimPrefix(u.Path, "/"), u.User.Username()
	c.Passwd, _ = u.User.Password()
	c.Timeout = connectTimeout
	t := target{server: c, shown: shownURL(u.String())}
	for name, values := range u.Query() {
		switch name {
		case prefixParameter:
			t.prefix = values[0]
		case "tls":
			c.TLSConfig = values[0]
		default:
			return target{}, fmt.Errorf("mysql: unknown parameter %q, only tls and %s are known", name, prefixParameter)
		}
	}
	if c.DBName == "" || u.Hostname() == "" {
		return target{}, errURL
	}
	if u.Port() == "" {
		c.Addr = net.JoinHostPort(u.Hostname(), "3306")
	}
	t.name = c.Addr + "/" + c.DBName
	return t, nil
}

// shownURL returns a URL without its password, for a command that an operator is told to type.
func shownURL(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "URL"
	}
	if u.User != nil {
		u.User = url.User(u.User.Username())
	}
	query := u.Query()
	query.Del("password")
	query.Del("sslpassword")
	u.RawQuery = encoded(query)
	return u.String()
}

// encoded writes a space as %20: PostgreSQL takes a plus in a parameter for a plus.
func encoded(query url.Values) string { return strings.ReplaceAll(query.Encode(), "+", "%20") }

// user is the name of the operator in the database, or the name of the process's user.
func (t *target) user() string {
	switch {
	case t.pool != nil:
		return t.pool.ConnConfig.User
	case t.server != nil:
		return t.server.User
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
}

func parseSQLite(path string) (target, error) {
	t := target{path: path, shown: "sqlite:" + path}
	if file, query, found := strings.Cut(path, "?"); found {
		values, err := url.ParseQuery(query)
		if err != nil {
			return target{}, errors.New("the parameters after ? are invalid")
		}
		t.path, t.prefix = file, values.Get(prefixParameter)
		values.Del(prefixParameter)
		for name := range values {
			return target{}, fmt.Errorf("sqlite: unknown parameter %q, only %s is known", name, prefixParameter)
		}
	}
	if t.path == "" {
		return target{}, errors.New("sqlite: the path is missing")
	}
	t.name = "sqlite:" + t.path
	return t, nil
}

const connectTimeout = 10 * time.Second

// reachable waits for the first connection, and bounds all its attempts together (several
// addresses, with and without TLS). A server that accepts and then stays silent would take the
// timeout for each attempt.
func reachable(ctx context.Context, pool *pgxpool.Pool) error {
	most := pool.Config().ConnConfig.ConnectTimeout
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	err := pool.Ping(ctx)
	if errors.Is(err, context.DeadlineExceeded) { // of all attempts together, or of the only attempt
		return fmt.Errorf("the server gave no answer within %v", most)
	}
	return err
}

// places holds the schema and prefix of tables for URLs without them.
type places struct{ schema, prefix string }

func (p *places) define(s *settings) {
	s.text(&p.schema, "schema", "NAME", "the schema of the tables, for URLs without "+schemaParameter+".\nDefaults to boxpair.")
	s.text(&p.prefix, "prefix", "TEXT", "the prefix of the tables' names, for URLs without "+prefixParameter+
		".\nDefaults to nothing, and to boxpair_ in SQLite.")
}

func (p *places) of(t *target) (schema, prefix string) {
	schema, prefix = t.schema, t.prefix
	if schema == "" {
		schema = p.schema
	}
	if prefix == "" {
		prefix = p.prefix
	}
	return schema, prefix
}

// identity is equal for two targets with the same tables and the same user.
func (t *target) identity(p *places) string {
	schema, prefix := p.of(t)
	address := t.path
	switch {
	case t.pool != nil:
		address = t.pool.ConnString()
	case t.server != nil:
		address = t.server.FormatDSN()
	}
	return strings.Join([]string{address, schema, prefix}, "\x00")
}

// label is the name of the database in all output.
func (p *places) label(t *target) string {
	schema, prefix := p.of(t)
	label := t.name
	if schema != "" && t.pool != nil {
		label += " schema " + schema
	}
	if prefix != "" {
		label += " prefix " + prefix
	}
	return label
}

// openSQLite opens the store in a file. The caller calls end to close it.
func openSQLite(t *target, p *places) (store *sqlite.Store, end func(), err error) {
	_, prefix := p.of(t)
	db, err := sqlite.Open(t.path)
	if err != nil {
		return nil, nil, err
	}
	store, err = sqlite.New(db, sqlite.Config{Prefix: prefix})
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return store, func() { _ = db.Close() }, nil
}

// openMySQL opens the store in a MySQL or MariaDB database. The caller calls end to close it. No I/O
// happens before the first use.
func openMySQL(t *target, p *places) (store *mysql.Store, db *sql.DB, end func(), err error) {
	_, prefix := p.of(t)
	connector, err := mysql.NewConnector(t.server)
	if err != nil {
		return nil, nil, nil, err
	}
	db = sql.OpenDB(connector)
	store, err = mysql.New(db, mysql.Config{Prefix: prefix})
	if err != nil {
		return nil, nil, nil, errors.Join(err, db.Close())
	}
	return store, db, func() { _ = db.Close() }, nil
}

// openPostgres opens the store in a PostgreSQL database. The caller calls end to close it. No I/O
// happens before the first use.
func openPostgres(ctx context.Context, t *target, p *places) (store *postgres.Store, pool *pgxpool.Pool, end func(), err error) {
	schema, prefix := p.of(t)
	pool, err = pgxpool.NewWithConfig(ctx, t.pool)
	if err != nil {
		return nil, nil, nil, err
	}
	cfg := postgres.Config{Schema: schema, Prefix: prefix}
	if t.direct != nil {
		cfg.Direct = func(ctx context.Context) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, t.direct) }
	}
	store, err = postgres.New(pool, cfg)
	if err != nil {
		pool.Close()
		return nil, nil, nil, err
	}
	return store, pool, pool.Close, nil
}

// auditor reads both sides of a database.
type auditor interface {
	audit.Outbox
	audit.Inbox
}

// openAuditor opens a database for reading.
func openAuditor(ctx context.Context, t *target, p *places, timeout time.Duration) (auditor, func(), error) {
	schema, prefix := p.of(t)
	if t.server != nil {
		return nil, nil, errors.New("verify does not support MySQL and MariaDB, only PostgreSQL and SQLite; what waits is shown by boxpair status and " +
			"boxpair dead list, and what became of one event by boxpair tree; docs/mysql.md has the views for a comparison of your own")
	}
	if t.pool == nil {
		db, err := sqlite.OpenReadOnly(t.path)
		if err != nil {
			return nil, nil, err
		}
		a, err := sqlite.NewAuditor(db, sqlite.AuditorConfig{Prefix: prefix, StatementTimeout: timeout})
		if err != nil {
			return nil, nil, errors.Join(err, db.Close())
		}
		return a, func() { _ = db.Close() }, nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, t.pool)
	if err != nil {
		return nil, nil, err
	}
	if err := reachable(ctx, pool); err != nil {
		pool.Close()
		return nil, nil, err
	}
	a, err := postgres.NewAuditor(pool, postgres.AuditorConfig{Schema: schema, Prefix: prefix, StatementTimeout: timeout})
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	return a, pool.Close, nil
}
