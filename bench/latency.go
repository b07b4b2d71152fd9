package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/postgres"
)

func latencyScenario() scenario {
	return scenario{
		name: "latency", unit: "events",
		about: "200 transactions a second, by 8 producers that keep to the clock: from COMMIT returned to the message",
		variants: []variant{
			{"limit-listen", "received; a relay by hand that waits for NOTIFY, which each transaction sends", "", 4000, 500, listeningByHand},
			{"woken", "received; relay in the producers' process, woken by it", "limit-listen", 4000, 500, clocking{}.measure},
			{"notified", "received; relay that is woken by NOTIFY", "limit-listen", 4000, 500, clocking{relay: notified}.measure},
			{"poll-only", "received; relay that only polls", "", 4000, 500, clocking{relay: pollOnly}.measure},
			{"effect", "effect committed; relay woken, inbox through a Watermill router", "", 4000, 500, clocking{effect: true}.measure},
			{"idle", "nothing, for a while: relay that listens and inbox, on defaults", "", 500, 500, clocking{effect: true, idle: true}.measure},
		},
	}
}

// The ways in which a relay learns of commits.
const (
	woken    = iota // by the outbox in its process
	notified        // by NOTIFY: it has another store
	pollOnly
)

const perSecond = 200

// clocking configures a measurement of latency.
type clocking struct {
	relay  int
	effect bool // measure until the effect is committed
	idle   bool // … and the time without events that follows
}

// stopwatch records when transactions were committed and their messages seen, by number.
type stopwatch struct {
	base            time.Time
	committed, seen []atomic.Int64 // since base; 0 is not yet
	left            atomic.Int64
	all             chan struct{}
}

func newStopwatch(n int) *stopwatch {
	w := &stopwatch{committed: make([]atomic.Int64, n), seen: make([]atomic.Int64, n), all: make(chan struct{}), base: time.Now()}
	w.left.Store(int64(n))
	return w
}

const numberAt = len(`{"n":"`)

// body returns a payload with a number.
func body(n int) []byte { return sizedBody(n, len(payload)) }

// sizedBody returns a payload of size bytes with a number.
func sizedBody(n, size int) []byte {
	text := fmt.Sprintf(`{"n":"%08d","order":"`, n)
	return []byte(text + strings.Repeat("x", size-len(text)-2) + `"}`)
}

// see records the time of a message. Copies are ignored.
func (w *stopwatch) see(body []byte) {
	n, err := strconv.Atoi(string(body[numberAt : numberAt+8]))
	if err == nil && w.seen[n].CompareAndSwap(0, int64(time.Since(w.base))) && w.left.Add(-1) == 0 {
		close(w.all)
	}
}

// latencies returns the sorted latencies. A message that arrives before COMMIT has returned counts
// as 0.
func (w *stopwatch) latencies() []time.Duration {
	list := make([]time.Duration, len(w.seen))
	for i := range list {
		list[i] = time.Duration(max(0, w.seen[i].Load()-w.committed[i].Load()))
	}
	slices.Sort(list)
	return list
}

func (c clocking) measure(ctx context.Context, s *stage) error {
	store, pool, schema, err := s.store(ctx)
	if err != nil {
		return err
	}
	outbox, q, err := s.outbox(store)
	if err != nil {
		return err
	}
	if err := s.warm(ctx, pool, 12); err != nil {
		return err
	}
	relay, err := c.newRelay(ctx, s, schema, outbox, q)
	if err != nil {
		return err
	}
	watch := newStopwatch(s.n)
	if err := c.consume(ctx, s, store, q, watch); err != nil {
		return err
	}
	s.background(ctx, func(ctx context.Context) { _ = relay.Run(ctx) })
	if c.relay != pollOnly {
		s.background(ctx, func(ctx context.Context) { _ = outbox.Run(ctx) })
	}
	done := s.spend("quiet")
	if err := pause(ctx, 500*time.Millisecond); err != nil { // all parts run and are quiet
		return err
	}
	done()
	if err := s.timed(ctx, func() (int, error) { return s.n, clocked(ctx, watch, writing(outbox)) }); err != nil {
		return err
	}
	s.latencies(watch)
	switch {
	case c.idle:
		return s.idle(ctx, 15*time.Second, 20*time.Second)
	case s.quick && c.relay != pollOnly:
		return nil
	default:
		return s.idle(ctx, 1500*time.Millisecond, 3*time.Second)
	}
}

// latencies reports the latencies.
func (s *stage) latencies(watch *stopwatch) {
	list := watch.latencies()
	for name, part := range map[string]float64{"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "max_ms": 1} {
		s.extra(name, list[min(len(list)-1, int(part*float64(len(list))))].Seconds()*1000)
	}
}

// background runs fn until the variant has been measured.
func (s *stage) background(ctx context.Context, fn func(context.Context)) {
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { fn(ctx) })
	s.later(func() {
		stop()
		running.Wait()
	})
}

func (c clocking) newRelay(ctx context.Context, s *stage, schema string, outbox *producer.Outbox[pgx.Tx], q *queues) (*relay.Relay, error) {
	if c.relay == woken {
		return s.relay(ctx, outbox, q, enveloped)
	}
	return s.standalone(ctx, schema, q, enveloped, relay.Config{PollOnly: c.relay == pollOnly})
}

// consume records the times of messages: of their arrival, or of their effect's commit.
func (c clocking) consume(ctx context.Context, s *stage, store *postgres.Store, q *queues, watch *stopwatch) error {
	if c.effect {
		inbox, err := consumer.New(store, consumer.Config{Service: "bench"})
		if err != nil {
			return err
		}
		handler, err := inbox.Handle("effect", lateEffect, consumer.HandlerConfig{Optimistic: true})
		if err != nil {
			return err
		}
		r, err := s.route(ctx, q, inbox, handler, 0, func(msg *message.Message) { watch.see(msg.Payload) })
		if err == nil {
			s.later(func() { _ = r.stop() })
		}
		return err
	}
	return q.each(q.names[0], watch.see)
}

// writing writes a business row and a numbered event in one transaction.
func writing(outbox *producer.Outbox[pgx.Tx]) func(ctx context.Context, i int) error {
	return func(ctx context.Context, i int) error {
		return outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			if err := business(ctx, w.DB()); err != nil {
				return err
			}
			_, err := w.Write(ctx, event("topic-0", strconv.Itoa(i), "order", int64(i)+1, body(i)))
			return err
		})
	}
}

// clocked commits a transaction every 5 ms, and waits for all messages.
func clocked(ctx context.Context, watch *stopwatch, commit func(ctx context.Context, i int) error) error {
	n, base := len(watch.seen), time.Now()
	const producers = 8
	errs := make([]error, producers)
	var all sync.WaitGroup
	for p := range producers {
		all.Go(func() {
			for i := p; i < n && errs[p] == nil; i += producers {
				if err := pause(ctx, time.Until(base.Add(time.Duration(i)*time.Second/perSecond))); err != nil {
					errs[p] = err
					return
				}
				errs[p] = commit(ctx, i)
				watch.committed[i].Store(int64(time.Since(watch.base)))
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	select {
	case <-watch.all:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(30 * time.Second):
		return fmt.Errorf("%d of %d messages did not arrive within 30 s", watch.left.Load(), n)
	}
}

// idle measures the share of a core used without any events, by this process and by PostgreSQL, and
// the transactions. Polls have slowed down after calm.
func (s *stage) idle(ctx context.Context, calm, length time.Duration) error {
	defer s.spend("idle")()
	if err := pause(ctx, calm); err != nil {
		return err
	}
	if !s.quick {
		length = max(length, time.Duration(s.scaled(int(10*time.Second))))
	}
	before, err := s.transactions(ctx)
	if err != nil {
		return err
	}
	begun, client, database, statements := time.Now(), ownCPU(), treeRunTime(s.meter.postgres), s.wire.statements.Load()
	if err := pause(ctx, length); err != nil {
		return err
	}
	used := ownCPU() - client + treeRunTime(s.meter.postgres) - database
	took := time.Since(begun).Seconds()
	s.extra("idle_core_percent", 100*used.Seconds()/took)
	s.extra("idle_statements", float64(s.wire.statements.Load()-statements)/took)
	after, err := s.transactions(ctx)
	s.extra("idle_transactions", float64(after-before)/took)
	return err
}

// transactions returns how many transactions the database has seen. It includes those of the server
// itself, and the pings of pools, but not its own: it asks in another database.
func (s *stage) transactions(ctx context.Context) (n int64, err error) {
	cfg, err := pgx.ParseConfig(s.databaseURL)
	if err != nil {
		return 0, hidden(err)
	}
	measured := cfg.Database
	cfg.Database = "template1"
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return 0, hidden(err)
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, `SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1`, measured).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count transactions: %w", err)
	}
	return n, nil
}

// treeRunTime returns the run time of a process and its children, in nanoseconds and not in ticks.
// Ended children and further threads are not included: PostgreSQL's processes have one thread.
func treeRunTime(root int) (total time.Duration) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if len(fields) < 2 || fields[1] != strconv.Itoa(root) && !strings.HasPrefix(string(text), strconv.Itoa(root)+" ") {
			continue
		}
		run, err := os.ReadFile(filepath.Join(filepath.Dir(file), "schedstat"))
		if err != nil {
			continue
		}
		first, _, _ := strings.Cut(string(run), " ")
		ns, _ := strconv.ParseInt(first, 10, 64)
		total += time.Duration(ns)
	}
	return total
}
