package testenv

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

// The environment variables with the address of a MySQL or MariaDB server.
const (
	MySQLURL  = "TEST_MYSQL_URL"  // mysql://user:password@host:port, with an account that may create databases
	MySQLFrom = "TEST_MYSQL_FROM" // otherwise: a loopback address that starts a server and answers with its URL
)

// mysqlStart bounds the wait for a server that must be installed first.
const mysqlStart = 5 * time.Minute

// MySQL creates an empty database on a MySQL or MariaDB server and returns its DSN, in the form of
// github.com/go-sql-driver/mysql. The database is dropped at the end of the test.
func MySQL(t testing.TB) string {
	t.Helper()
	address := os.Getenv(MySQLURL)
	if from := os.Getenv(MySQLFrom); address == "" && from != "" {
		address = started(t, from)
	}
	if address == "" {
		need(t, MySQLURL)
	}
	cfg, err := mysqlConfig(address)
	if err != nil {
		t.Fatalf("%s: %v", MySQLURL, err)
	}
	name := "boxpair_test_" + random()
	if err := executeMySQL(cfg, "CREATE DATABASE "+name); err != nil {
		t.Fatalf("create a database for the test: %v", err)
	}
	t.Cleanup(func() {
		if err := executeMySQL(cfg, "DROP DATABASE "+name); err != nil {
			t.Errorf("drop the test's database: %v", err)
		}
	})
	target := cfg.Clone()
	target.DBName = name
	return target.FormatDSN()
}

// started asks for the server, which is started at the first request.
func started(t testing.TB, from string) string {
	t.Helper()
	conn, err := net.Dial("tcp", from)
	if err != nil {
		t.Fatalf("ask for a MySQL: %v", err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(mysqlStart)); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	address, ok := strings.CutPrefix(string(answer), "ok ")
	if err != nil || !ok {
		t.Fatalf("no MySQL was started: %s%v", answer, err)
	}
	return address
}

// mysqlConfig parses the URL of a server.
func mysqlConfig(address string) (*mysql.Config, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "mysql" || u.Host == "" {
		return nil, fmt.Errorf("must be a URL that begins with mysql://")
	}
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.User = "tcp", u.Host, u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	if u.Port() == "" {
		cfg.Addr += ":3306"
	}
	return cfg, nil
}

// executeMySQL runs one statement on a connection of its own. It takes no context, since the test's
// context ends before the test's clean-up.
func executeMySQL(cfg *mysql.Config, statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return err
	}
	db := sql.OpenDB(connector)
	_, err = db.ExecContext(ctx, statement)
	if closed := db.Close(); err == nil {
		err = closed
	}
	return err
}
