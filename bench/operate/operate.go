// Package operate measures the commands and the dashboard of operators over a large outbox and inbox.
package operate

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/store/postgres"
)

// Config sets the amounts of a measurement.
type Config struct {
	// Events is the number of events in the outbox, and of dispatch IDs in the inbox. One in a hundred
	// is dead.
	Events int
	// Keep leaves the database to later runs with as many events, which find it by its name.
	Keep bool
	// Runs is how often each command and page is timed.
	Runs int
	// Only selects the commands and pages that contain it.
	Only string
	// Redrive redrives all dead events beside live traffic, in the end.
	Redrive bool
}

// database makes and fills a database, or takes that of an earlier run.
func database(ctx context.Context, server string, cfg Config) (pool *pgxpool.Pool, address string, drop func() error, err error) {
	name := fmt.Sprintf("boxpair_operate_%d", cfg.Events)
	target, err := url.Parse(server)
	if err != nil || target.Host == "" {
		return nil, "", nil, errors.New("DATABASE_URL: want the URL of a PostgreSQL server, with a role that may create databases")
	}
	target.Path = "/" + name
	admin, err := pgx.Connect(ctx, server)
	if err != nil {
		return nil, "", nil, err
	}
	defer admin.Close(context.WithoutCancel(ctx))
	var there bool
	if err := admin.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, name).Scan(&there); err != nil {
		return nil, "", nil, err
	}
	if !there {
		if _, err := admin.Exec(ctx, "CREATE DATABASE "+name); err != nil {
			return nil, "", nil, err
		}
	}
	drop = func() error {
		pool.Close()
		if cfg.Keep {
			return nil
		}
		return remove(context.WithoutCancel(ctx), server, name)
	}
	settings, err := pgxpool.ParseConfig(target.String())
	if err != nil {
		return nil, "", nil, errors.New("DATABASE_URL is not a URL") // the value may hold a password
	}
	settings.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	settings.ConnConfig.RuntimeParams["maintenance_work_mem"] = "512MB"
	if pool, err = pgxpool.NewWithConfig(ctx, settings); err != nil {
		return nil, "", nil, err
	}
	if !there {
		if _, err = postgres.Migrate(ctx, pool, postgres.Config{}); err == nil {
			err = fill(ctx, pool, cfg.Events)
		}
		if err != nil {
			cfg.Keep = false
			return nil, "", nil, errors.Join(err, drop())
		}
	}
	return pool, target.String(), drop, nil
}

func remove(ctx context.Context, server, name string) error {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
	return err
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// Run measures on a server whose role may create databases.
func Run(ctx context.Context, server string, cfg Config) (err error) {
	dir, err := os.MkdirTemp("", "boxpair-operate-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	program, err := build(ctx, dir)
	if err != nil {
		return err
	}
	pool, address, drop, err := database(ctx, server, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drop()) }()
	err = look(ctx, program, pool, address, cfg)
	if cfg.Redrive {
		err = errors.Join(err, redrive(ctx, program, address))
	}
	return err
}
