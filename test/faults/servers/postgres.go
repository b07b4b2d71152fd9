package servers

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/internal/testenv/service"
)

// Postgres is a PostgreSQL server for faults.
type Postgres struct {
	mu      sync.Mutex
	server  *service.Postgres
	clock   string // the file that moves its clock, or ""
	mounted []string
}

// StartPostgres starts a PostgreSQL server. The caller must Close it.
func StartPostgres(ctx context.Context, cfg Config) (*Postgres, error) {
	p := &Postgres{}
	with := service.PostgresConfig{Settings: append([]string{
		// The victim of a test soon detects a deadlock; a test's own connection sets a longer
		// timeout.
		"deadlock_timeout=100ms",
	}, cfg.Settings...)}
	if cfg.FakeClock {
		library, err := fakeTime(ctx)
		if err != nil {
			return nil, err
		}
		if p.clock, err = clockFile(); err != nil {
			return nil, err
		}
		with.Env = []string{
			"LD_PRELOAD=" + library, "FAKETIME_TIMESTAMP_FILE=" + p.clock, "FAKETIME_NO_CACHE=1",
			"FAKETIME_DONT_FAKE_MONOTONIC=1",
		}
	}
	server, err := service.StartPostgresWith(ctx, with)
	if err != nil {
		return nil, errors.Join(err, p.removeClock())
	}
	p.server = server
	err = p.Exec(ctx, "CREATE ROLE "+User+" LOGIN CREATEDB PASSWORD '"+Password+"'")
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Close stops the server and removes its files.
func (p *Postgres) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	errs := []error{p.server.Close(), p.removeClock()}
	for _, dir := range p.mounted {
		errs = append(errs, unmount(dir))
	}
	return errors.Join(errs...)
}

// URL returns the address of a database for [User], its owner.
func (p *Postgres) URL(database string) string { return p.address(database, User, Password) }

// Addr returns the address of the server.
func (p *Postgres) Addr() string {
	u, err := url.Parse(p.server.URL())
	if err != nil {
		panic(err) // it was made by url.URL
	}
	return u.Host
}

// AdminURL returns the address of a database for the superuser.
func (p *Postgres) AdminURL(database string) string { return p.address(database, "", "") }

func (p *Postgres) address(database, user, password string) string {
	u, err := url.Parse(p.server.URL())
	if err != nil {
		panic(err) // it was made by url.URL
	}
	u.Path = "/" + database
	if user != "" {
		u.User = url.UserPassword(user, password)
	}
	return u.String()
}

// Exec runs statements as superuser in the first database, each in a transaction of its own.
func (p *Postgres) Exec(ctx context.Context, statements ...string) error {
	return Exec(ctx, p.AdminURL("postgres"), statements...)
}

// Exec runs statements on a new connection, each in a transaction of its own.
func Exec(ctx context.Context, url string, statements ...string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, s := range statements {
		if _, err := conn.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// Create makes a database owned by [User] as a copy of template.
func (p *Postgres) Create(ctx context.Context, name, template string) error {
	return p.Exec(ctx, fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s OWNER %s", name, template, User))
}

// Drop removes a database and cuts its connections.
func (p *Postgres) Drop(ctx context.Context, name string) error {
	return p.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
}

// Set changes a setting of the whole server.
func (p *Postgres) Set(ctx context.Context, name, value string) error {
	return p.Exec(ctx, fmt.Sprintf("ALTER SYSTEM SET %s = '%s'", name, value), "SELECT pg_reload_conf()")
}

// Reset undoes [Postgres.Set].
func (p *Postgres) Reset(ctx context.Context, name string) error {
	return p.Exec(ctx, "ALTER SYSTEM RESET "+name, "SELECT pg_reload_conf()")
}

// Terminate ends the backends of a database, except for the superuser's, and returns their number.
func (p *Postgres) Terminate(ctx context.Context, database string) (n int, err error) {
	conn, err := pgx.Connect(ctx, p.AdminURL("postgres"))
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = conn.QueryRow(ctx, `SELECT count(*) FILTER (WHERE pg_terminate_backend(pid))
		FROM pg_stat_activity WHERE datname = $1 AND usename <> current_user`, database).Scan(&n)
	return n, err
}

// Restart shuts the server down fast, as an administrator does, and starts it again.
func (p *Postgres) Restart(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server.Stop()
	return p.server.Start(ctx)
}

// Crash ends the server at once, without a checkpoint, and starts it again; the server recovers
// from its log.
func (p *Postgres) Crash(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server.Crash()
	return p.server.Start(ctx)
}

// Kill ends the server at once and does not start it again.
func (p *Postgres) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server.Crash()
}

// Stop shuts the server down and does not start it again.
func (p *Postgres) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server.Stop()
}

// Start starts the ended server.
func (p *Postgres) Start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.server.Start(ctx)
}

// Standby starts a copy that follows the server. The caller must Close the copy.
func (p *Postgres) Standby(ctx context.Context) (*Postgres, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, err := p.server.Standby(ctx)
	if err != nil {
		return nil, err
	}
	return &Postgres{server: s}, nil
}

// AwaitReplay waits until a standby has replayed all commits of the server.
func (p *Postgres) AwaitReplay(ctx context.Context, standby *Postgres) error {
	var here string
	if err := queryRow(ctx, p.AdminURL("postgres"), "SELECT pg_current_wal_flush_lsn()::text", &here); err != nil {
		return err
	}
	for {
		var there bool
		err := queryRow(ctx, standby.AdminURL("postgres"), "SELECT pg_last_wal_replay_lsn() >= '"+here+"'::pg_lsn", &there)
		if err != nil || there {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Promote makes a standby an independent server.
func (p *Postgres) Promote(ctx context.Context) error {
	var promoted bool
	if err := queryRow(ctx, p.AdminURL("postgres"), "SELECT pg_promote()", &promoted); err != nil {
		return err
	}
	if !promoted {
		return errors.New("promotion took too long")
	}
	return nil
}

func queryRow(ctx context.Context, url, query string, into any) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return conn.QueryRow(ctx, query).Scan(into)
}

// Tablespace makes a tablespace of size bytes on a file system of its own, so that the tablespace
// can fill up. It needs root.
func (p *Postgres) Tablespace(ctx context.Context, name string, size int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Not below the server's directory, which is removed with the server.
	dir, err := os.MkdirTemp("", "boxpair-space-")
	if err != nil {
		return err
	}
	if err := mount(dir, size); err != nil {
		return errors.Join(fmt.Errorf("mount a small file system: %w", err), os.Remove(dir))
	}
	p.mounted = append(p.mounted, dir)
	if err := service.OwnedByPostgres(dir); err != nil {
		return err
	}
	return p.Exec(ctx, fmt.Sprintf("CREATE TABLESPACE %s LOCATION '%s'", name, dir),
		fmt.Sprintf("GRANT CREATE ON TABLESPACE %s TO %s", name, User))
}

// SetClock sets the offset of the server's clock from the true time to d, at once and for every
// session.
func (p *Postgres) SetClock(d time.Duration) error {
	if p.clock == "" {
		return errors.New("the clock of this server is not fake")
	}
	// The file is written aside and renamed, since the server may read it at any moment.
	next := p.clock + ".next"
	if err := os.WriteFile(next, fmt.Appendf(nil, "%+.3f\n", d.Seconds()), 0o644); err != nil {
		return err
	}
	return os.Rename(next, p.clock)
}
