// Command auditbench measures boxpair verify on an outbox and an inbox of a given size. It makes
// and fills two databases, runs the command as a separate process, prints the command's duration
// and memory, and drops the databases.
//
//	make audit-bench ROWS=10000000
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/audit"
	"github.com/boxpair/boxpair/store/postgres"
)

func main() {
	rows := flag.Int("rows", 1_000_000, "how many events, and how many claims")
	payload := flag.Int("payload", 256, "how many bytes of payload an event has")
	flag.Parse()
	if err := run(context.Background(), os.Getenv("DATABASE_URL"), *rows, *payload); err != nil {
		log.Fatal(err)
	}
}

// side is one of the two databases.
type side struct {
	name, url string
	fill      []string
}

func run(ctx context.Context, server string, rows, payload int) (err error) {
	dir, err := os.MkdirTemp("", "boxpair-auditbench-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	program := filepath.Join(dir, "boxpair")
	if out, err := exec.CommandContext(ctx, "go", "-C", "cmd/boxpair", "build", "-o", program, ".").CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w: %s", err, out)
	}
	times := timesOf(rows)
	sides := []*side{{name: "outbox", fill: outboxOf(times, payload)}, {name: "inbox", fill: inboxOf(times)}}
	for _, s := range sides {
		drop, failed := s.make(ctx, server)
		if failed != nil {
			return fmt.Errorf("%s: %w", s.name, failed)
		}
		defer func() { err = errors.Join(err, drop()) }()
	}
	return measure(ctx, program, sides, rows)
}

// timesOf returns a query for the numbers and times of the events, equal in both databases: even
// intervals, from 25 hours ago to an hour ago.
func timesOf(rows int) string {
	begin := time.Now().Add(-25 * time.Hour).UTC().Format(time.RFC3339)
	return fmt.Sprintf(`(SELECT i, timestamptz '%s' + i * interval '24 hours' / %d AS at FROM generate_series(1, %[2]d) i) x`, begin, rows)
}

// outboxOf returns statements that fill an outbox with delivered events. Constraints are checked
// once, at the end.
func outboxOf(times string, payload int) []string {
	return []string{
		`ALTER TABLE boxpair.outbox_events DROP CONSTRAINT outbox_events_dispatch`,
		fmt.Sprintf(`INSERT INTO boxpair.outbox_events (dispatch_id, digest, shard, topic, key, payload, occurred_at, created_at)
			SELECT md5('event ' || i)::uuid, decode(md5('content ' || i), 'hex'), i %% 64, 'order.placed', 'key ' || i %% 1000,
			       convert_to(repeat('x', %d), 'UTF8'), at, at FROM `, payload) + times,
		`ALTER TABLE boxpair.outbox_events ADD CONSTRAINT outbox_events_dispatch UNIQUE (dispatch_id)`,
		`VACUUM ANALYZE boxpair.outbox_events`,
		// The claim of this event becomes a claim without a committed event.
		`DELETE FROM boxpair.outbox_events WHERE id = 1000`,
	}
}

// inboxOf returns statements that fill the inbox of a consumer that has applied the events.
func inboxOf(times string) []string {
	return []string{
		`INSERT INTO boxpair.inbox_consumers (name, window_size, registered_at) VALUES ('inventory/reserve', '7 days', now() - interval '2 days')`,
		`ALTER TABLE boxpair.inbox DROP CONSTRAINT inbox_pk`,
		`DROP INDEX boxpair.inbox_stamp`,
		`INSERT INTO boxpair.inbox (stamp, applied_at, dispatch_id, consumer, digest)
			SELECT at, at + interval '50 ms', md5('event ' || i)::uuid, 1, decode(md5('content ' || i), 'hex') FROM ` + times,
		`ALTER TABLE boxpair.inbox ADD CONSTRAINT inbox_pk PRIMARY KEY (consumer, dispatch_id)`,
		`CREATE INDEX inbox_stamp ON boxpair.inbox (consumer, stamp)`,
		`VACUUM ANALYZE boxpair.inbox`,
		`DELETE FROM boxpair.inbox WHERE dispatch_id = md5('event 2000')::uuid`,
	}
}

// make creates and fills the database, and returns a function that drops it.
func (s *side) make(ctx context.Context, server string) (drop func() error, err error) {
	u, err := url.Parse(server)
	if err != nil || u.Host == "" {
		return nil, errors.New("DATABASE_URL: want the URL of a PostgreSQL server, with a role that may create databases")
	}
	name := fmt.Sprintf("boxpair_auditbench_%s_%s", s.name, rand.Text()[:8])
	if err := execute(ctx, server, fmt.Sprintf(`CREATE DATABASE "%s"`, name)); err != nil {
		return nil, err
	}
	drop = func() error {
		return execute(context.WithoutCancel(ctx), server, fmt.Sprintf(`DROP DATABASE "%s" WITH (FORCE)`, name))
	}
	u.Path = "/" + name
	s.url = u.String()
	begin := time.Now()
	pool, err := pgxpool.New(ctx, s.url)
	if err == nil {
		_, err = postgres.Migrate(ctx, pool, postgres.Config{})
		pool.Close()
	}
	if err == nil {
		err = execute(ctx, s.url, append([]string{`SET synchronous_commit = off`, `SET maintenance_work_mem = '256MB'`}, s.fill...)...)
	}
	if err != nil {
		return nil, errors.Join(err, drop())
	}
	fmt.Printf("%s filled in %v\n", s.name, time.Since(begin).Round(time.Second))
	return drop, nil
}

func execute(ctx context.Context, url string, statements ...string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%.40s: %w", statement, err)
		}
	}
	return nil
}

// measure runs verify over all events and over their last hour, and prints the cost.
func measure(ctx context.Context, program string, sides []*side, rows int) error {
	fmt.Printf("%d events, %d claims\n", rows, rows)
	for _, span := range [][]string{nil, {"-from", "2h"}} {
		args := append([]string{
			"verify", "-o", "json", "--outbox", sides[0].url, "--inbox", sides[1].url, "--consumer", "inventory/reserve=order.*",
		}, span...)
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Stderr = os.Stderr
		begin := time.Now()
		out, err := cmd.Output()
		took := time.Since(begin)
		if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() > 1 {
			return fmt.Errorf("verify: %w", err)
		}
		var report audit.Report
		if err := json.Unmarshal(out, &report); err != nil {
			return err
		}
		usage, _ := cmd.ProcessState.SysUsage().(*syscall.Rusage)
		if usage == nil {
			return errors.New("the system does not tell what a process has used")
		}
		fmt.Printf("%v: %v, %d events and %d claims compared, %d not applied, %d not committed; peak memory %d MB, CPU %v\n",
			span, took.Round(100*time.Millisecond), report.Outboxes[0].Events, report.Consumers[0].Claims,
			report.Findings[audit.NotApplied], report.Findings[audit.NotCommitted], usage.Maxrss/1024, // kilobytes on Linux
			(cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Round(100*time.Millisecond))
	}
	return nil
}
