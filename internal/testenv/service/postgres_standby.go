package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
)

// Standby starts an asynchronous copy of a running server: commits that were not sent yet are
// missing in the copy. The copy answers queries; SELECT pg_promote() makes it an independent
// server, on another timeline. It needs installed binaries. The caller must Close the copy.
func (p *Postgres) Standby(ctx context.Context) (*Postgres, error) {
	bin := cmp.Or(p.cfg.Bin, PostgresBin())
	if bin == "" {
		return nil, fmt.Errorf("standby of PostgreSQL: %w, and a copy in Docker is not supported", ErrMissing)
	}
	return retry("a standby of PostgreSQL", func() (*Postgres, error) { return p.newStandby(ctx, bin) })
}

func (p *Postgres) newStandby(ctx context.Context, bin string) (_ *Postgres, err error) {
	base, err := newServer("postgres")
	if err != nil {
		return nil, err
	}
	s := &Postgres{server: *base, cfg: p.cfg}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	primary, err := url.Parse(p.url)
	if err != nil {
		return nil, err
	}
	password, _ := primary.User.Password()
	s.at(ports[0], password)
	home, err := s.home(bin)
	if err != nil {
		return nil, err
	}
	primary.Path = ""
	backup := home.command(ctx, "pg_basebackup", "-D", home.data(), "-d", primary.String(),
		"--write-recovery-conf", "--checkpoint=fast", "--no-sync")
	if out, err := backup.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("pg_basebackup: %w\n%s", err, out)
	}
	s.runs(home, ports[0])
	return s, s.Start(ctx)
}
