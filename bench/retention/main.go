// Command retention measures how a janitor keeps up, on one PostgreSQL.
//
//	DATABASE_URL=… go run ./retention [-events N] [-inbox N] [-share F]
//
// It fills a database of its own, which it drops in the end, and measures
//
//   - outbox: a producer.Janitor that removes so many delivered events, beside a writer that
//     commits one event at a time, with and without it;
//   - inbox: removing half of so many dispatch IDs by stamp in batches, as store/postgres does,
//     beside dropping the partitions of a table that is partitioned by the day of the
//     stamp; and what an insert into either costs.
//
// The last line is one JSON object.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "retention:", err)
		os.Exit(1)
	}
}

func run() error {
	events := flag.Int("events", 1_000_000, "delivered events in the outbox; 0 leaves that out")
	inbox := flag.Int("inbox", 1_000_000, "dispatch IDs in the inbox; 0 leaves that out")
	share := flag.Float64("share", 0.5, "the janitor's share of the time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	pool, drop, err := database(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer drop()
	results := map[string]any{"events": *events, "inbox": *inbox}
	if *events > 0 {
		if err := outbox(ctx, pool, *events, *share, results); err != nil {
			return fmt.Errorf("outbox: %w", err)
		}
	}
	if *inbox > 0 {
		if err := forgetting(ctx, pool, *inbox, results); err != nil {
			return fmt.Errorf("inbox: %w", err)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(results)
}

// database makes a database of this run's own.
func database(ctx context.Context, admin string) (*pgxpool.Pool, func(), error) {
	if admin == "" {
		return nil, nil, fmt.Errorf("set DATABASE_URL")
	}
	name := "boxpair_bench_" + strings.ToLower(rand.Text()[:10])
	if err := execute(ctx, admin, "CREATE DATABASE "+name); err != nil {
		return nil, nil, err
	}
	target, err := url.Parse(admin)
	if err != nil {
		return nil, nil, fmt.Errorf("DATABASE_URL is not a URL") // which may hold a password
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

// timed runs statements and returns how long they took.
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
