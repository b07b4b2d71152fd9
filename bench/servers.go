package main

import (
	"context"
	"errors"
	"os"

	"github.com/boxpair/boxpair/internal/testenv/service"
)

// settings make a private PostgreSQL one that could be in production, where that of the
// tests is fast and forgetful.
var settings = []string{
	"fsync=on", "full_page_writes=on", "synchronous_commit=on", "wal_level=replica",
	"shared_buffers=512MB", "max_wal_size=4GB", "checkpoint_timeout=30min",
}

// servers are where everything is measured.
type servers struct {
	databaseURL, amqpURL string
	undo                 []func() error
}

// startServers takes what DATABASE_URL and AMQP_URL name, and starts what they do not.
func startServers(ctx context.Context, more ...string) (_ *servers, err error) {
	s := &servers{databaseURL: os.Getenv("DATABASE_URL"), amqpURL: os.Getenv("AMQP_URL")}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.databaseURL == "" {
		p, err := service.StartPostgresWith(ctx, service.PostgresConfig{Settings: append(settings, more...)})
		if err != nil {
			return s, err
		}
		s.databaseURL, s.undo = p.URL(), append(s.undo, p.Close)
	}
	if s.amqpURL == "" {
		r, err := service.StartRabbitMQ(ctx)
		if err != nil {
			return s, err
		}
		s.amqpURL, s.undo = r.URL(), append(s.undo, r.Close)
	}
	return s, nil
}

func (s *servers) close() error {
	var errs []error
	for _, fn := range s.undo {
		errs = append(errs, fn())
	}
	s.undo = nil
	return errors.Join(errs...)
}

// env is what a process of its own is told of the servers.
func (s *servers) env() []string {
	return append(os.Environ(), "DATABASE_URL="+s.databaseURL, "AMQP_URL="+s.amqpURL)
}
