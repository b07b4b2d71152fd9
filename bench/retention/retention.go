// Package retention measures how a janitor keeps up, on one PostgreSQL.
//
// It makes a database of its own, which it drops in the end, and measures
//
//   - outbox: a producer.Janitor that removes delivered events, beside a writer that commits one
//     event at a time; the writer with and without the janitor;
//   - inbox: the removal of half of the dispatch IDs by stamp in batches, as in store/postgres,
//     beside the drop of partitions of a table that is partitioned by the day of the stamp; and the
//     cost of an insert into either table.
//
// The last line is one JSON object.
package retention

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Config sets the amounts of a measurement.
type Config struct {
	// Events is the number of delivered events in the outbox, and Inbox the number of dispatch IDs
	// in the inbox; 0 skips that part.
	Events, Inbox int
	// Share is the janitor's share of the time.
	Share float64
}

// Run measures on a server whose role may create databases, and prints the results to standard
// output.
func Run(ctx context.Context, databaseURL string, cfg Config) error {
	pool, drop, err := database(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer drop()
	results := map[string]any{"events": cfg.Events, "inbox": cfg.Inbox}
	if cfg.Events > 0 {
		if err := outbox(ctx, pool, cfg.Events, cfg.Share, results); err != nil {
			return fmt.Errorf("outbox: %w", err)
		}
	}
	if cfg.Inbox > 0 {
		if err := forgetting(ctx, pool, cfg.Inbox, results); err != nil {
			return fmt.Errorf("inbox: %w", err)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(results)
}

// database makes a database for this run.
func database(ctx context.Context, admin string) (*pgxpool.Pool, func(), error) {
	name := "boxpair_bench_" + strings.ToLower(rand.Text()[:10])
	if err := execute(ctx, admin, "CREATE DATABASE "+name); err != nil {
		return nil, nil, err
	}
	target, err := url.Parse(admin)
	if err != nil {
		return nil, nil, fmt.Errorf("DATABASE_URL is not a URL") // the value may hold a password
	}
	target.Path = "/" + name
	pool, err := pgxpool.New(ctx, target.String())
	drop := func() {
		if pool != nil {
			pool.Close()
		}
		if err := execute(context.WithoutCancel(ctx), admin, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			fmt.Fprintln(os.Stderr, "drop the database:", err)
		}
	}
	if err != nil {
		drop()
		return nil, nil, err
	}
	return pool, drop, nil
}

func execute(ctx context.Context, target, sql string) error {
	conn, err := pgx.Connect(ctx, target)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

// timed runs statements and returns their total duration.
func timed(ctx context.Context, pool *pgxpool.Pool, statements ...string) (time.Duration, error) {
	begun := time.Now()
	for _, sql := range statements {
		if _, err := pool.Exec(ctx, sql); err != nil {
			return 0, fmt.Errorf("%.40s…: %w", sql, err)
		}
	}
	return time.Since(begun), nil
}

func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }
