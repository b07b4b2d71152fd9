package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// ErrMissing says that there are neither binaries nor a Docker daemon to run a server.
var ErrMissing = errors.New("not installed, and Docker does not answer")

// Postgres is a private PostgreSQL server. Its methods must not be called concurrently.
type Postgres struct {
	server
	url   string
	tools string
	cfg   PostgresConfig
}

// PostgresConfig is how a server differs from the server of [StartPostgres].
type PostgresConfig struct {
	// Bin is the directory with the server's programs. Defaults to the newest installed version,
	// and to Docker without an installed version.
	Bin string
	// Settings are further settings of the server, as "name=value"; a later setting wins. Defaults
	// to none.
	Settings []string
	// Env is added to the environment of the server, as "NAME=value"; a server in
	// Docker does not get it. Defaults to none.
	Env []string
	// TLS makes the server refuse connections without TLS. It needs installed binaries. Defaults to
	// nil: no TLS.
	TLS *TLS
}

// StartPostgres starts a PostgreSQL server and returns when it accepts connections, after about two
// seconds. Logical decoding, prepared transactions and 300 connections are allowed. The caller must
// Close the server.
func StartPostgres(ctx context.Context) (*Postgres, error) {
	return StartPostgresWith(ctx, PostgresConfig{})
}

// StartPostgresWith is [StartPostgres] with a configuration.
func StartPostgresWith(ctx context.Context, cfg PostgresConfig) (*Postgres, error) {
	bin := cmp.Or(cfg.Bin, PostgresBin())
	if bin == "" {
		if cfg.TLS != nil {
			return nil, fmt.Errorf("PostgreSQL: %w", errNoTLSInDocker)
		}
		if !DockerWorks(ctx) {
			return nil, fmt.Errorf("PostgreSQL: %w", ErrMissing)
		}
		if err := pull(ctx, postgresImage); err != nil {
			return nil, err
		}
	}
	return retry("PostgreSQL", func() (*Postgres, error) { return newPostgres(ctx, bin, cfg) })
}

// URL returns the address of the server's first database, postgres, as its superuser, postgres.
// With TLS the URL has sslmode=verify-full and names no roots.
func (p *Postgres) URL() string { return p.url }

// Tools returns a directory with psql, pg_dump and pg_restore that fit the server and reach it
// under its URL.
func (p *Postgres) Tools() string { return p.tools }

func newPostgres(ctx context.Context, bin string, cfg PostgresConfig) (_ *Postgres, err error) {
	s, err := newServer("postgres")
	if err != nil {
		return nil, err
	}
	p := &Postgres{server: *s, cfg: cfg}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	// A password keeps other users of the machine out of the superuser's account, which can run
	// programs as the user of the tests.
	password := token()
	p.at(ports[0], password)

	if bin == "" {
		err = p.inDocker(ports[0], password)
	} else {
		err = p.native(ctx, bin, ports[0], password)
	}
	if err != nil {
		return nil, err
	}
	return p, p.Start(ctx)
}

// at sets the address of the server, and the ways to end it.
func (p *Postgres) at(port int, password string) {
	mode := "disable"
	if p.cfg.TLS != nil {
		mode = "verify-full"
	}
	p.url = (&url.URL{
		Scheme: "postgres", User: url.UserPassword("postgres", password),
		Host: fmt.Sprintf("%s:%d", loopback, port), Path: "/postgres", RawQuery: "sslmode=" + mode,
	}).String()
	p.ready = p.answers
	p.stop, p.orphaned = syscall.SIGINT, syscall.SIGQUIT
	// An immediate shutdown is a crash: no checkpoint, no waiting, no child left behind, and
	// recovery from the log at the next start.
	p.crash = func(proc *process) { proc.end(syscall.SIGQUIT) }
}

// settings returns the server's settings on top of its defaults.
func (p *Postgres) settings(port int) []string {
	var args []string
	for _, setting := range append([]string{
		"port=" + strconv.Itoa(port), "cluster_name=" + p.name,
		"fsync=off", "full_page_writes=off", // for tests only
		"wal_level=logical", "max_connections=300", "max_prepared_transactions=10",
		"shared_buffers=64MB", "jit=off",
	}, p.cfg.Settings...) {
		args = append(args, "-c", setting)
	}
	return args
}

func (p *Postgres) native(ctx context.Context, bin string, port int, password string) error {
	home, err := p.home(bin)
	if err != nil {
		return err
	}
	secret := filepath.Join(home.dir, "password")
	if err := os.WriteFile(secret, []byte(password), 0o600); err != nil {
		return err
	}
	if err := home.as.own(secret); err != nil {
		return err
	}
	// The password is hashed once: SCRAM's thousands of iterations cost each connection
	// milliseconds on both sides, and tests open thousands of connections.
	initdb := home.command(ctx, "initdb", "-D", home.data(), "-U", "postgres", "--encoding=UTF8", "--locale=C",
		"--auth=md5", "--pwfile="+secret, "--no-sync")
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	if p.cfg.TLS != nil {
		if err := p.encrypt(home); err != nil {
			return err
		}
	}
	p.runs(home, port)
	return nil
}

// encrypt makes the server in home refuse connections without TLS.
func (p *Postgres) encrypt(home home) error {
	files, err := p.cfg.TLS.write(home.dir, home.as)
	if err != nil {
		return err
	}
	hba := filepath.Join(home.dir, "hba.conf")
	if err := os.WriteFile(hba, []byte("hostssl all all 127.0.0.1/32 password\n"), 0o600); err != nil {
		return err
	}
	p.cfg.Settings = append(slices.Clone(p.cfg.Settings), "hba_file="+hba, "ssl=on",
		"ssl_cert_file="+files.certificate, "ssl_key_file="+files.key)
	return home.as.own(hba)
}

// runs sets the command that runs the server in home.
func (p *Postgres) runs(home home, port int) {
	p.run = func() *exec.Cmd {
		cmd := home.command(context.Background(), "postgres", append(p.settings(port),
			"-D", home.data(), "-c", "listen_addresses="+loopback, "-c", "unix_socket_directories=")...)
		cmd.Env = append(cmd.Environ(), p.cfg.Env...)
		return cmd
	}
}

// home is the directory, the programs and the account of a server.
type home struct {
	dir, bin string
	as       account
}

func (p *Postgres) home(bin string) (home, error) {
	p.tools = bin
	as, err := unprivileged()
	h := home{dir: filepath.Join(p.dir, "pg"), bin: bin, as: as}
	if err == nil {
		err = os.Mkdir(h.dir, 0o700)
	}
	if err == nil {
		err = as.own(h.dir)
	}
	return h, err
}

func (h home) data() string { return filepath.Join(h.dir, "data") }

func (h home) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(h.bin, name), args...)
	cmd.Dir = h.dir
	h.as.apply(cmd)
	return cmd
}

func (p *Postgres) inDocker(port int, password string) error {
	p.tools = filepath.Join(p.dir, "bin")
	if err := os.Mkdir(p.tools, 0o700); err != nil {
		return err
	}
	for _, tool := range []string{"psql", "pg_dump", "pg_restore"} {
		if _, err := wrap(p.tools, tool, nil, "docker", "exec", "--interactive", p.name, tool); err != nil {
			return err
		}
	}
	// The port is equal inside and outside, so that the tools can use one URL.
	p.run = func() *exec.Cmd {
		return dockerRun(p.name, []int{port}, append([]string{
			"--env", "POSTGRES_PASSWORD=" + password, "--volume", p.name + ":/var/lib/postgresql/data", postgresImage,
		}, p.settings(port)...)...)
	}
	p.cleanup = func() { dockerRemove(p.name) }
	return nil
}

// answers tells whether this very server accepts connections.
func (p *Postgres) answers(ctx context.Context) error {
	cfg, err := pgx.ParseConfig(p.url)
	if err != nil {
		return err
	}
	if p.cfg.TLS != nil {
		cfg.TLSConfig = p.cfg.TLS.client()
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var name string
	if err := conn.QueryRow(ctx, "SHOW cluster_name").Scan(&name); err != nil {
		return err
	}
	if name != p.name {
		return fmt.Errorf("%q answers instead of %q", name, p.name)
	}
	return nil
}

// account is the user that runs PostgreSQL; the zero value is the current user.
type account struct {
	other    bool
	uid, gid int
}

// unprivileged returns the account for a program that refuses to run as root.
func unprivileged() (account, error) {
	if runtime.GOOS == "windows" || os.Geteuid() != 0 {
		return account{}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		return account{other: true, uid: uid, gid: gid}, errors.Join(err1, err2)
	}
	return account{}, errors.New("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")
}

func (a account) own(path string) error {
	if !a.other {
		return nil
	}
	return os.Chown(path, a.uid, a.gid)
}

func (a account) apply(cmd *exec.Cmd) {
	if a.other {
		runAs(cmd, uint32(a.uid), uint32(a.gid))
	}
}

// OwnedByPostgres gives a directory to the account that runs servers.
func OwnedByPostgres(dir string) error {
	as, err := unprivileged()
	if err != nil {
		return err
	}
	return as.own(dir)
}
