package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/producer"
)

// backlogPlan holds the size of the backlog and the duration of the parts.
type backlogPlan struct {
	events, rate, grow int
	watch, part        time.Duration
	lease, floor       time.Duration
}

func (p *backlogPlan) parse(args []string) error {
	flags := flag.NewFlagSet("backlog", flag.ContinueOnError)
	flags.IntVar(&p.events, "events", 200_000, "events of a topic that no queue takes")
	flags.IntVar(&p.rate, "rate", 50, "healthy events a second")
	flags.IntVar(&p.grow, "grow", 5000, "events a second while the backlog grows")
	flags.DurationVar(&p.watch, "watch", 330*time.Second, "how long the backlog is there before anything happens; relays sweep every five minutes")
	flags.DurationVar(&p.part, "part", 20*time.Second, "how long each other part takes")
	flags.DurationVar(&p.lease, "lease", 2*time.Second, "leases of the relays")
	flags.DurationVar(&p.floor, "floor", 5*time.Millisecond, "what a p99 may always be: below that, a ratio says nothing")
	rest, err := parse(flags, args)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return fmt.Errorf("backlog takes no argument %q", rest[0])
	}
	if p.events < 1 || p.rate < 1 || p.grow < 1 || p.watch <= 0 || p.part < 2*p.lease {
		return errors.New("-events, -rate, -grow and -watch must be above 0, and -part at least twice -lease")
	}
	return nil
}

// backlog measures healthy events while events of a dead route pile up, beside two relay processes,
// one of which is killed.
func backlog(ctx context.Context, args []string) (err error) {
	var p backlogPlan
	if err := p.parse(args); err != nil {
		return err
	}
	all, err := startServers(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.close()) }()
	s := &stage{databaseURL: all.databaseURL, amqpURL: all.amqpURL}
	defer s.close()
	b, err := newBacklogRun(ctx, s, p)
	if err != nil {
		return err
	}
	defer b.end()
	if err := b.run(ctx); err != nil {
		return err
	}
	for _, line := range describe(ctx, all)[:3] {
		fmt.Println("- " + line)
	}
	fmt.Printf("- %d events of the dead route, %d healthy events a second\n\n", p.events, p.rate)
	b.table(os.Stdout)
	return b.judge()
}

// The topics of a backlog.
const (
	healthyTopic = "healthy"
	loadTopic    = "load" // written as fast as the backlog, and delivered
	deadTopic    = "dead" // has no queue
)

// backlogRun is one measurement of a backlog.
type backlogRun struct {
	plan   backlogPlan
	s      *stage
	pool   *pgxpool.Pool
	outbox *producer.Outbox[pgx.Tx]
	job    backlogJob
	clock  *stopwatch
	relays [2]*backlogRelay

	sent  int // healthy events
	parts []backlogPart
}

// backlogPart is a part of the run.
type backlogPart struct {
	name    string
	backlog bool
	from    int // number of its first healthy event
	samples []time.Duration
	worst   time.Duration // p99 of the worst ten seconds
	heap    float64       // MB, the peak of a relay
	rss     float64
}

func newBacklogRun(ctx context.Context, s *stage, p backlogPlan) (*backlogRun, error) {
	pool, schema, err := s.schema(ctx)
	if err != nil {
		return nil, err
	}
	store, err := s.migrated(ctx, pool, schema)
	if err != nil {
		return nil, err
	}
	outbox, err := producer.New(store, producer.Config{Name: "bench"})
	if err != nil {
		return nil, err
	}
	q, err := s.queues("classic", 1)
	if err != nil {
		return nil, err
	}
	load, err := s.bounded(q)
	if err != nil {
		return nil, err
	}
	whole := p.watch + 20*p.part + time.Duration(3*p.events/p.grow+60)*time.Second
	b := &backlogRun{plan: p, s: s, pool: pool, outbox: outbox, clock: newStopwatch(p.rate * int(3*whole/time.Second))}
	b.job = backlogJob{s.databaseURL, s.amqpURL, schema, p.lease, map[string]string{
		healthyTopic: q.names[0], loadTopic: load, deadTopic: q.names[0] + "-none",
	}}
	for i := range b.relays {
		if b.relays[i], err = startBacklogRelay(ctx, b.job); err != nil {
			b.end()
			return nil, err
		}
	}
	s.background(ctx, func(ctx context.Context) { _ = outbox.Run(ctx) })
	return b, q.each(q.names[0], b.clock.see)
}

func (b *backlogRun) end() {
	for _, r := range b.relays {
		if r != nil {
			r.kill()
		}
	}
}

// run measures every part first without a backlog and then with one.
func (b *backlogRun) run(ctx context.Context) error {
	if err := b.during(ctx, "warming up", false, b.plan.part, nil); err != nil {
		return err
	}
	b.parts = nil
	seconds := int(b.plan.part / time.Second)
	for _, with := range []bool{false, true} {
		topic, n, watch := loadTopic, b.plan.grow*seconds, 2*b.plan.part
		if with {
			topic, n, watch = deadTopic, b.plan.events, b.plan.watch
		}
		for _, part := range []struct {
			name  string
			start func(context.Context) error
			lasts time.Duration
		}{
			{"as many events are written", func(ctx context.Context) error { return b.write(ctx, topic, n) }, 0},
			{"nothing happens", nil, watch},
			{"kill -9 of a relay, takeover", b.kill, 2*b.plan.lease + time.Second},
			{"after the takeover", nil, b.plan.part},
			{"the relay is back", b.revive, b.plan.part},
			{"restart of all relays", b.restart, 2*b.plan.lease + time.Second},
			{"after the restart", nil, b.plan.part},
		} {
			if err := b.during(ctx, part.name, with, part.lasts, part.start); err != nil {
				return fmt.Errorf("%s: %w", part.name, err)
			}
			last := b.parts[len(b.parts)-1]
			say("%s, backlog %t: p99 %v, heap %.0f MB", last.name, with, last.percentile(0.99), last.heap)
		}
	}
	var left int
	err := b.pool.QueryRow(ctx, `SELECT count(*) FROM outbox_queue`).Scan(&left)
	if err == nil && left < b.plan.events {
		err = fmt.Errorf("%d events are left of a backlog of %d", left, b.plan.events)
	}
	return err
}

// during commits healthy events while start runs, and for at least lasts.
func (b *backlogRun) during(ctx context.Context, name string, with bool, lasts time.Duration, start func(context.Context) error) error {
	part := backlogPart{name: name, backlog: with, from: b.sent}
	for _, r := range b.relays {
		r.forgetPeak()
	}
	begun := time.Now()
	busy, done := make(chan error, 1), start == nil
	if start != nil {
		go func() { busy <- start(ctx) }()
	}
	for i := 0; !done || time.Since(begun) < lasts; i++ {
		select {
		case err := <-busy:
			if err != nil {
				return err
			}
			done = true
		default:
		}
		if err := pause(ctx, time.Until(begun.Add(time.Duration(i)*time.Second/time.Duration(b.plan.rate)))); err != nil {
			return err
		}
		if err := b.commit(ctx); err != nil {
			return err
		}
	}
	if err := b.seen(ctx, b.sent); err != nil {
		return err
	}
	part.measure(b.clock, b.sent, 10*b.plan.rate)
	for _, r := range b.relays {
		heap, rss := r.peak()
		part.heap, part.rss = max(part.heap, heap), max(part.rss, rss)
	}
	b.parts = append(b.parts, part)
	return nil
}

// commit commits the next healthy event.
func (b *backlogRun) commit(ctx context.Context) error {
	i := b.sent
	if i == len(b.clock.seen) {
		return errors.New("this machine is too slow for the run")
	}
	err := b.outbox.Transact(ctx, func(_ context.Context, w *producer.Writer[pgx.Tx]) error {
		_, err := w.Write(ctx, producer.Event{Topic: healthyTopic, Key: fmt.Sprint(healthyTopic, i%1000), Random: true, Payload: body(i)})
		return err
	})
	b.clock.committed[i].Store(int64(time.Since(b.clock.base)))
	b.sent++
	return err
}

// seen waits until all healthy events have arrived.
func (b *backlogRun) seen(ctx context.Context, n int) error {
	until := time.Now().Add(time.Minute)
	for i := 0; i < n; {
		if b.clock.seen[i].Load() > 0 {
			i++
			continue
		}
		if time.Now().After(until) {
			return fmt.Errorf("healthy event %d of %d has not come within a minute", i, n)
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// write commits n events of a topic, 500 to a transaction.
func (b *backlogRun) write(ctx context.Context, topic string, n int) error {
	const atOnce = 500
	begun := time.Now()
	for at := 0; at < n; at += atOnce {
		if err := pause(ctx, time.Until(begun.Add(time.Duration(at)*time.Second/time.Duration(b.plan.grow)))); err != nil {
			return err
		}
		events := make([]producer.Event, min(atOnce, n-at))
		for i := range events {
			events[i] = producer.Event{Topic: topic, Key: fmt.Sprint(topic, (at+i)%100_000), Random: true, Payload: payload}
		}
		if err := b.outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			_, err := w.Write(ctx, events...)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func (b *backlogRun) kill(context.Context) error {
	b.relays[0].kill()
	return nil
}

func (b *backlogRun) revive(ctx context.Context) (err error) {
	b.relays[0], err = startBacklogRelay(ctx, b.job)
	return err
}

// restart ends all relays in order, and starts them again.
func (b *backlogRun) restart(ctx context.Context) (err error) {
	for _, r := range b.relays {
		err = errors.Join(err, r.stop())
	}
	for i := range b.relays {
		if err != nil {
			return err
		}
		b.relays[i], err = startBacklogRelay(ctx, b.job)
	}
	return err
}

// measure computes the latencies of a part, and the worst of its windows of that many events.
func (p *backlogPart) measure(w *stopwatch, to, window int) {
	for i := p.from; i < to; i++ {
		p.samples = append(p.samples, time.Duration(max(0, w.seen[i].Load()-w.committed[i].Load())))
	}
	for at := 0; at+window <= len(p.samples); at += window {
		few := backlogPart{samples: slices.Sorted(slices.Values(p.samples[at : at+window]))}
		p.worst = max(p.worst, few.percentile(0.99))
	}
	slices.Sort(p.samples)
	p.worst = max(p.worst, p.percentile(0.99))
}

func (p *backlogPart) percentile(part float64) time.Duration {
	return p.samples[min(len(p.samples)-1, int(part*float64(len(p.samples))))]
}

// twin returns the equal part without a backlog.
func (b *backlogRun) twin(p *backlogPart) *backlogPart {
	i := slices.IndexFunc(b.parts, func(o backlogPart) bool { return o.name == p.name && !o.backlog })
	return &b.parts[i]
}

func (b *backlogRun) table(w io.Writer) {
	ms := func(d time.Duration) string { return fmt.Sprintf("%.1f", d.Seconds()*1000) }
	fmt.Fprintln(w, "| | events | p50 ms | p99 ms | p99 of the worst 10 s | longest ms | heap MB | RSS MB |\n|---|---|---|---|---|---|---|---|")
	for _, p := range b.parts {
		name := p.name
		if p.backlog {
			name = "**backlog**: " + name
		}
		fmt.Fprintf(w, "| %s | %d | %s | %s | %s | %s | %.0f | %.0f |\n", name, len(p.samples), ms(p.percentile(0.5)), ms(p.percentile(0.99)),
			ms(p.worst), ms(p.percentile(1)), p.heap, p.rss)
	}
}

// moreHeap is how many MB more heap a relay may have with a backlog than without: a few windows.
const moreHeap = 16

// judge reports the broken bounds.
func (b *backlogRun) judge() error {
	var errs []error
	for _, p := range b.parts {
		if !p.backlog {
			continue
		}
		before := b.twin(&p)
		if got, most := p.percentile(0.99), max(2*before.percentile(0.99), b.plan.floor); got > most {
			errs = append(errs, fmt.Errorf("%s: p99 is %v with the backlog and %v without", p.name, got, before.percentile(0.99)))
		}
		if p.heap > before.heap+moreHeap {
			errs = append(errs, fmt.Errorf("%s: a relay's heap is %.0f MB with the backlog and %.0f MB without", p.name, p.heap, before.heap))
		}
	}
	return errors.Join(errs...)
}
