package servers

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// User is the login of programs under test at RabbitMQ, and the owner of their databases on
// PostgreSQL. Password, a canary, is the password of every user on both servers.
const (
	User     = "service"
	Password = "canary-password"
)

// Config selects and configures the servers.
type Config struct {
	// Settings are further settings of PostgreSQL, as "name=value". Defaults to none.
	Settings []string
	// FakeClock lets [Postgres.SetClock] move the clock of PostgreSQL; it needs
	// libfaketime. Defaults to false.
	FakeClock bool
	// NoRabbitMQ starts no RabbitMQ. Defaults to false.
	NoRabbitMQ bool
}

// Servers are the servers of one run.
type Servers struct {
	Postgres *Postgres
	RabbitMQ *RabbitMQ // nil without one
}

// Start starts the servers at once and returns when they are ready, after about eight seconds. The
// caller must Close them.
func Start(ctx context.Context, cfg Config) (*Servers, error) {
	s := &Servers{}
	var (
		wg   sync.WaitGroup
		errs [2]error
	)
	wg.Go(func() { s.Postgres, errs[0] = StartPostgres(ctx, cfg) })
	if !cfg.NoRabbitMQ {
		wg.Go(func() { s.RabbitMQ, errs[1] = StartRabbitMQ(ctx) })
	}
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return nil, errors.Join(fmt.Errorf("start servers: %w", err), s.Close())
	}
	return s, nil
}

// Close stops the servers and removes their files.
func (s *Servers) Close() error {
	var errs []error
	if s.Postgres != nil {
		errs = append(errs, s.Postgres.Close())
	}
	if s.RabbitMQ != nil {
		errs = append(errs, s.RabbitMQ.Close())
	}
	return errors.Join(errs...)
}
