package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
)

var errNoBouncer = errors.New("PgBouncer is not installed (Debian: apt-get install pgbouncer), and not run in Docker")

// PgBouncer is a private pooler in front of a PostgreSQL server, in transaction mode.
type PgBouncer struct {
	server
	url string
}

// StartPgBouncer starts a pooler in front of the database at the URL target. Successive
// transactions use different connections of the pooler, in turns, so no state of a session outlives
// a transaction. The function needs an installed pgbouncer. The caller must Close the pooler.
func StartPgBouncer(ctx context.Context, target string) (*PgBouncer, error) {
	bin := bouncerBin()
	if bin == "" {
		return nil, errNoBouncer
	}
	return retry("PgBouncer", func() (*PgBouncer, error) { return newPgBouncer(ctx, bin, target) })
}

// URL returns the address of the database through the pooler.
func (b *PgBouncer) URL() string { return b.url }

func bouncerBin() string {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

func newPgBouncer(ctx context.Context, bin, target string) (_ *PgBouncer, err error) {
	s, err := newServer("pgbouncer")
	if err != nil {
		return nil, err
	}
	b := &PgBouncer{server: *s}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
		}
	}()
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(target)
	if err != nil {
		return nil, errors.New("the database's address is not a URL")
	}
	as, err := unprivileged()
	if err != nil {
		return nil, err
	}
	password := token() // keeps other users of the machine out
	file, err := b.configure(u, ports[0], password, as)
	if err != nil {
		return nil, err
	}
	b.url = (&url.URL{
		Scheme: "postgres", User: url.UserPassword(u.User.Username(), password),
		Host: fmt.Sprintf("%s:%d", loopback, ports[0]), Path: u.Path, RawQuery: "sslmode=disable",
	}).String()
	b.ready = b.answers
	b.stop, b.orphaned = syscall.SIGTERM, syscall.SIGTERM
	b.crash = func(p *process) { p.end(syscall.SIGKILL) }
	b.run = func() *exec.Cmd {
		cmd := exec.Command(bin, file)
		cmd.Dir = filepath.Dir(file)
		as.apply(cmd)
		return cmd
	}
	return b, b.Start(ctx)
}

// configure writes the pooler's configuration and returns its path.
func (b *PgBouncer) configure(target *url.URL, port int, password string, as account) (string, error) {
	dir := filepath.Join(b.dir, "pgbouncer")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	server := "host=" + literal(target.Hostname()) + " port=" + cmp.Or(target.Port(), "5432") +
		" user=" + literal(target.User.Username())
	if password, ok := target.User.Password(); ok {
		server += " password=" + literal(password)
	}
	err := errors.Join(
		os.WriteFile(in("users.txt"), fmt.Appendf(nil, "%q %q\n", target.User.Username(), password), 0o600),
		os.WriteFile(in("pgbouncer.ini"), fmt.Appendf(nil, bouncerSettings, server, loopback, port, in("users.txt")), 0o600),
		as.own(in("users.txt")), as.own(in("pgbouncer.ini")), as.own(dir),
	)
	return in("pgbouncer.ini"), err
}

// literal quotes a value of a connection string.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

const bouncerSettings = `[databases]
* = %s
[pgbouncer]
listen_addr = %s
listen_port = %d
unix_socket_dir =
auth_type = md5
auth_file = %s
pool_mode = transaction
server_round_robin = 1
default_pool_size = 60
max_client_conn = 500
`

// answers tells whether the pooler reaches the database.
func (b *PgBouncer) answers(ctx context.Context) error {
	cfg, err := pgx.ParseConfig(b.url)
	if err != nil {
		return err
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	return errors.Join(conn.Ping(ctx), conn.Close(ctx))
}
