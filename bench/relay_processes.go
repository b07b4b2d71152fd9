package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/postgres"
)

// relayJob configures a relay process, as a line of JSON on its standard input.
type relayJob struct {
	DatabaseURL, AMQPURL, Schema, Kind string
	Queues                             []string
	Form                               form
	Connections                        int           // of the pool
	Pooled                             bool          // behind a pooler in transaction mode
	DirectURL                          string        // of the server past the pooler; "": relays poll
	LeaseTTL                           time.Duration // 0: the default
}

// relayProcess runs a relay. It prints a line when ready, begins when it reads a line, and ends
// with its standard input.
func relayProcess(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	var job relayJob
	text, err := lines.ReadBytes('\n')
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &job); err != nil {
		return err
	}
	s := &stage{databaseURL: job.DatabaseURL, amqpURL: job.AMQPURL, connections: job.Connections}
	defer s.close()
	path := job.Schema
	if job.Pooled {
		path = "" // which a pooler refuses
	}
	pool, err := s.pool(ctx, path)
	if err != nil {
		return err
	}
	cfg := postgres.Config{Schema: job.Schema}
	if job.DirectURL != "" {
		cfg.Direct = func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, job.DirectURL) }
	}
	store, err := postgres.New(pool, cfg)
	if err != nil {
		return err
	}
	outbox, err := producer.New(store, producer.Config{Name: "bench"})
	if err != nil {
		return err
	}
	sender, err := s.configured(ctx, outbox, &queues{kind: job.Kind, names: job.Queues}, job.Form, relay.Config{PollOnly: job.Pooled && job.DirectURL == "", LeaseTTL: job.LeaseTTL, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	if err := s.warm(ctx, pool, job.Connections); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, "ready"); err != nil {
		return err
	}
	if _, err := lines.ReadString('\n'); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, lines)
		stop()
	}()
	if err := sender.Run(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// relayProcesses starts relay processes, which begin to send with begin.
func (s *stage) relayProcesses(ctx context.Context, schema string, q *queues, f form, n int) ([]*helper, error) {
	job, err := json.Marshal(relayJob{DatabaseURL: s.databaseURL, AMQPURL: s.amqpURL, Schema: schema, Kind: q.kind, Queues: q.names, Form: f, Connections: 3})
	if err != nil {
		return nil, err
	}
	var relays []*helper
	s.later(func() {
		for _, h := range relays {
			_ = h.end()
		}
	})
	for range n {
		h, err := startHelper(ctx, job)
		if err != nil {
			return nil, err
		}
		relays = append(relays, h)
	}
	return relays, nil
}

func begin(relays []*helper) error {
	for _, h := range relays {
		if err := h.say("go"); err != nil {
			return err
		}
	}
	return nil
}

// drainByProcesses measures how long relays in separate processes take for all events.
func (s *stage) drainByProcesses(ctx context.Context, pool *pgxpool.Pool, schema string, q *queues, n int) error {
	relays, err := s.relayProcesses(ctx, schema, q, batched, n)
	if err != nil {
		return err
	}
	return s.timed(ctx, func() (int, error) {
		if err := errors.Join(begin(relays), untilEmpty(ctx, pool, "outbox_queue")); err != nil {
			return 0, err
		}
		var errs []error
		for _, h := range relays {
			errs = append(errs, h.end()) // their CPU time counts from here
		}
		return s.n, errors.Join(errs...)
	})
}

// untilEmpty waits until a table is empty.
func untilEmpty(ctx context.Context, pool *pgxpool.Pool, table string) error {
	for {
		var left bool
		if err := pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM `+table+`)`).Scan(&left); err != nil || !left {
			return err
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// helper is a relay process.
type helper struct {
	cmd *exec.Cmd
	in  io.WriteCloser
}

func startHelper(ctx context.Context, job []byte) (*helper, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	h := &helper{cmd: exec.CommandContext(ctx, self, "relay-process")}
	h.cmd.Stderr = os.Stderr
	if h.in, err = h.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := h.cmd.Start(); err != nil {
		return nil, err
	}
	err = h.say(string(job))
	if err == nil {
		_, err = bufio.NewReader(out).ReadString('\n')
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a relay process: %w", err), h.end())
	}
	return h, nil
}

func (h *helper) say(line string) error {
	_, err := io.WriteString(h.in, line+"\n")
	return err
}

// kill ends the process with SIGKILL.
func (h *helper) kill() {
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait()
}

// end waits until the process has ended. Ending twice is harmless.
func (h *helper) end() error {
	if h.cmd.ProcessState != nil {
		return nil
	}
	_ = h.in.Close()
	return h.cmd.Wait()
}
