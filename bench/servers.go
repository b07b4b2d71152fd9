package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/boxpair/boxpair/internal/testenv/service"
)

// settings make a private PostgreSQL similar to production; the settings of the tests are fast and
// not durable.
var settings = []string{
	"fsync=on", "full_page_writes=on", "synchronous_commit=on", "wal_level=replica",
	"shared_buffers=512MB", "max_wal_size=4GB", "checkpoint_timeout=30min",
}

// servers are the measured servers.
type servers struct {
	databaseURL, amqpURL string
	undo                 []func() error
}

// startServers uses the servers in DATABASE_URL and AMQP_URL, and starts the missing ones.
func startServers(ctx context.Context) (*servers, error) {
	s := &servers{databaseURL: os.Getenv("DATABASE_URL"), amqpURL: os.Getenv("AMQP_URL")}
	return s, s.start(ctx, settings)
}

// start starts the servers without an address.
func (s *servers) start(ctx context.Context, settings []string) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err := service.Install(ctx, s.databaseURL == "", s.amqpURL == "", say); err != nil {
		say("%v", err) // Docker may still work
	}
	if s.databaseURL == "" {
		p, err := service.StartPostgresWith(ctx, service.PostgresConfig{Settings: settings})
		if err != nil {
			return err
		}
		s.databaseURL, s.undo = p.URL(), append(s.undo, p.Close)
	}
	if s.amqpURL == "" {
		r, err := service.StartRabbitMQ(ctx)
		if err != nil {
			return err
		}
		s.amqpURL, s.undo = r.URL(), append(s.undo, r.Close)
	}
	return nil
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (s *servers) close() error {
	var errs []error
	for _, fn := range s.undo {
		errs = append(errs, fn())
	}
	s.undo = nil
	return errors.Join(errs...)
}

// env returns the environment of a child process, with the addresses of the servers.
func (s *servers) env() []string {
	return append(os.Environ(), "DATABASE_URL="+s.databaseURL, "AMQP_URL="+s.amqpURL)
}
