package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/transport/amqp"
)

// backlogJob configures a relay process beside a backlog.
type backlogJob struct {
	DatabaseURL, AMQPURL, Schema string
	Lease                        time.Duration
	Queues                       map[string]string // by topic; some do not exist
}

const heapEvery = 250 * time.Millisecond

// backlogRelayProcess runs a relay until its standard input ends, and prints the size of its heap
// in bytes.
func backlogRelayProcess(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	var job backlogJob
	text, err := lines.ReadBytes('\n')
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &job); err != nil {
		return err
	}
	s := &stage{databaseURL: job.DatabaseURL, amqpURL: job.AMQPURL}
	defer s.close()
	pool, err := s.pool(ctx, job.Schema)
	if err != nil {
		return err
	}
	store, err := postgres.New(pool, postgres.Config{Schema: job.Schema})
	if err != nil {
		return err
	}
	c := amqp.DurableQueue(job.AMQPURL)
	c.Queue.GenerateName = func(topic string) string { return job.Queues[topic] }
	c.Publish.GenerateRoutingKey = c.Queue.GenerateName
	quiet := slog.New(slog.DiscardHandler)
	publisher, err := amqp.NewPublisher(amqp.PublisherConfig{AMQP: c, Topology: amqp.NoTopology, Envelope: true, Logger: quiet})
	if err != nil {
		return err
	}
	s.later(func() { _ = publisher.Close() })
	relay, err := relay.NewStandalone(store, publisher, relay.Config{LeaseTTL: job.Lease, Logger: quiet})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, lines)
		stop()
	}()
	go func() {
		for ctx.Err() == nil {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			_, _ = fmt.Fprintln(out, m.HeapAlloc)
			_ = pause(ctx, heapEvery)
		}
	}()
	if err := relay.Run(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// backlogRelay is a relay process beside a backlog.
type backlogRelay struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out sync.WaitGroup

	mu   sync.Mutex
	heap float64 // the most, in MB
}

func startBacklogRelay(ctx context.Context, job backlogJob) (*backlogRelay, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	r := &backlogRelay{cmd: exec.CommandContext(ctx, self, "backlog-relay")}
	r.cmd.Stderr = os.Stderr
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	r.out.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var bytes float64
			_, _ = fmt.Sscan(lines.Text(), &bytes)
			r.mu.Lock()
			r.heap = max(r.heap, bytes/1e6)
			r.mu.Unlock()
		}
	})
	_, err = io.WriteString(r.in, string(text)+"\n")
	if err != nil {
		r.kill()
	}
	return r, err
}

// kill kills the process with SIGKILL. A second kill is harmless.
func (r *backlogRelay) kill() {
	_ = r.cmd.Process.Kill()
	_ = r.wait()
}

// stop ends the process in order.
func (r *backlogRelay) stop() error {
	_ = r.in.Close()
	return r.wait()
}

func (r *backlogRelay) wait() error {
	if r.cmd.ProcessState != nil {
		return nil
	}
	r.out.Wait()
	return r.cmd.Wait()
}

func (r *backlogRelay) forgetPeak() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heap = 0
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", r.cmd.Process.Pid), []byte("5"), 0)
}

// peak returns the peaks of heap and memory since forgetPeak, in MB; 0 if unknown.
func (r *backlogRelay) peak() (heap, rss float64) {
	r.mu.Lock()
	heap = r.heap
	r.mu.Unlock()
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid))
	for line := range strings.Lines(string(text)) {
		var kb float64
		if _, err := fmt.Sscanf(line, "VmHWM: %f", &kb); err == nil {
			rss = kb * 1024 / 1e6
		}
	}
	return heap, rss
}

// bounded declares a queue that keeps only its newest messages, and returns its name.
func (s *stage) bounded(q *queues) (string, error) {
	name := q.names[0] + "-bounded"
	_, err := q.ch.QueueDeclare(name, true, false, false, false, amqp091.Table{"x-queue-type": "classic", "x-max-length": 1000})
	if err == nil {
		s.later(func() { _, _ = q.ch.QueueDelete(name, false, false, false) })
	}
	return name, err
}

// each calls do with the payload of each message of a queue, on a channel of its own, until the
// connection ends.
func (q *queues) each(name string, do func([]byte)) error {
	ch, err := q.conn.Channel()
	if err != nil {
		return err
	}
	deliveries, err := ch.Consume(name, "", true, false, false, false, nil)
	if err != nil {
		return errors.Join(err, ch.Close())
	}
	go func() {
		for d := range deliveries {
			payload := d.Body
			if _, enveloped, is := bytes.Cut(d.Body, []byte{'\n'}); is {
				payload = enveloped
			}
			do(payload)
		}
	}()
	return nil
}
