package service

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/go-sql-driver/mysql"
)

// MySQL is a private MariaDB or MySQL server. Its methods must not be called concurrently.
type MySQL struct {
	server
	url *url.URL
}

// mysqlBinaries are the programs of a server: MariaDB's, with a separate program that makes the
// system tables, or MySQL's.
type mysqlBinaries struct{ server, install string }

// mysqlDirs are the directories of the programs besides PATH: Debian, Red Hat, Homebrew on ARM and
// on Intel, MySQL's own package.
var mysqlDirs = []string{
	"/usr/sbin", "/usr/bin", "/usr/libexec",
	"/opt/homebrew/opt/mariadb*/bin", "/usr/local/opt/mariadb*/bin",
	"/opt/homebrew/opt/mysql*/bin", "/usr/local/opt/mysql*/bin", "/usr/local/mysql/bin",
}

// findMySQL returns the programs of a server, MariaDB's if both are installed. The zero value means
// that neither is installed.
func findMySQL() mysqlBinaries {
	found := mysqlBinaries{server: findProgram("mariadbd"), install: findProgram("mariadb-install-db")}
	if found.server != "" && found.install != "" {
		return found
	}
	return mysqlBinaries{server: findProgram("mysqld")}
}

// findProgram returns the path of a program in [mysqlDirs] or on PATH, or "".
func findProgram(name string) string {
	if dir := findDir(mysqlDirs, name); dir != "" {
		return filepath.Join(dir, name)
	}
	return ""
}

// StartMySQL starts a server and returns when it accepts connections, after about five seconds. 300
// connections are allowed. The caller must Close the server.
func StartMySQL(ctx context.Context) (*MySQL, error) {
	bin := findMySQL()
	if bin.server == "" {
		if !DockerWorks(ctx) {
			return nil, fmt.Errorf("MariaDB or MySQL: %w", ErrMissing)
		}
		if err := pull(ctx, mysqlImage); err != nil {
			return nil, err
		}
	}
	return retry("MariaDB or MySQL", func() (*MySQL, error) { return newMySQL(ctx, bin) })
}

// URL returns the address of the server with an all-powerful account:
// mysql://user:password@host:port/.
func (m *MySQL) URL() string { return m.url.String() }

func newMySQL(ctx context.Context, bin mysqlBinaries) (_ *MySQL, err error) {
	s, err := newServer("mysql")
	if err != nil {
		return nil, err
	}
	m := &MySQL{server: *s}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	m.url = &url.URL{Scheme: "mysql", Host: fmt.Sprintf("%s:%d", loopback, ports[0]), Path: "/"}
	m.ready = m.answers
	m.stop, m.orphaned = syscall.SIGTERM, syscall.SIGKILL
	m.crash = func(proc *process) { proc.end(syscall.SIGKILL) }
	// A password keeps other users of the machine out of an account that may read and write files.
	if password := token(); bin.server == "" {
		m.inDocker(ports[0], password)
	} else if err := m.native(ctx, bin, ports[0], password); err != nil {
		return nil, err
	}
	return m, m.Start(ctx)
}

// settings returns the server's settings on top of its defaults. The server reports its name.
func (m *MySQL) settings(port int) []string {
	return []string{
		"--port=" + strconv.Itoa(port), "--report-host=" + m.name, "--skip-name-resolve", "--max-connections=300",
		"--innodb-flush-log-at-trx-commit=0", "--sync-binlog=0", "--innodb-doublewrite=0", // for tests only
		"--innodb-buffer-pool-size=64M",
	}
}

func (m *MySQL) native(ctx context.Context, bin mysqlBinaries, port int, password string) error {
	as, err := unprivileged()
	if err != nil {
		return err
	}
	home := home{dir: filepath.Join(m.dir, "my"), as: as}
	if err := os.Mkdir(home.dir, 0o700); err != nil {
		return err
	}
	m.url.User = url.UserPassword("boxpair", password)
	account := "'boxpair'@'" + loopback + "'"
	accounts := filepath.Join(home.dir, "accounts.sql")
	err = os.WriteFile(accounts, []byte("DROP USER IF EXISTS 'root'@'"+loopback+"';\n"+
		"CREATE USER IF NOT EXISTS "+account+" IDENTIFIED BY '"+password+"';\n"+
		"GRANT ALL PRIVILEGES ON *.* TO "+account+" WITH GRANT OPTION;\n"), 0o600)
	if err := errors.Join(err, as.own(home.dir), as.own(accounts)); err != nil {
		return err
	}
	command := func(ctx context.Context, name string, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, name, append([]string{"--no-defaults", "--datadir=" + home.data()}, args...)...)
		cmd.Dir = home.dir
		as.apply(cmd)
		return cmd
	}
	create := command(ctx, bin.server, "--initialize-insecure")
	if bin.install != "" {
		create = command(ctx, bin.install, "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve")
	}
	if out, err := create.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(create.Path), err, out)
	}
	m.run = func() *exec.Cmd {
		return command(context.Background(), bin.server, append(m.settings(port), "--bind-address="+loopback,
			"--socket="+filepath.Join(home.dir, "s"), "--pid-file="+filepath.Join(home.dir, "pid"), "--init-file="+accounts,
			"--secure-file-priv="+home.dir)...) // Debian's MySQL does not start if its default folder is missing
	}
	return nil
}

func (m *MySQL) inDocker(port int, password string) {
	m.url.User = url.UserPassword("root", password)
	m.run = func() *exec.Cmd {
		return dockerRun(m.name, []int{port}, append([]string{
			"--env", "MYSQL_ROOT_PASSWORD=" + password, "--volume", m.name + ":/var/lib/mysql", mysqlImage,
		}, m.settings(port)...)...)
	}
	m.cleanup = func() { dockerRemove(m.name) }
}

// answers tells whether this very server accepts connections.
func (m *MySQL) answers(ctx context.Context) error {
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.User = "tcp", m.url.Host, m.url.User.Username()
	cfg.Passwd, _ = m.url.User.Password()
	cfg.Logger = &mysql.NopLogger{} // connecting is retried until the server answers
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return err
	}
	db := sql.OpenDB(connector)
	defer func() { _ = db.Close() }()
	var name string
	if err := db.QueryRowContext(ctx, "SELECT @@report_host").Scan(&name); err != nil {
		return err
	}
	if name != m.name {
		return fmt.Errorf("%q answers instead of %q", name, m.name)
	}
	return nil
}
