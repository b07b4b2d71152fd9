package operate

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/postgres"
)

const (
	liveTopic  = "order.live"
	livePeriod = 10 * time.Millisecond
	aloneFor   = 20 * time.Second
)

// live commits an event every livePeriod, and is the publisher that its relay hands them to.
type live struct {
	mu        sync.Mutex
	written   int
	committed map[uint64]time.Time
	transacts []time.Duration
	arrivals  []time.Duration // from the commit
	others    int             // redriven events that were published
}

// Publish implements message.Publisher.
func (l *live) Publish(topic string, messages ...*message.Message) error {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if topic != liveTopic {
		l.others += len(messages)
		return nil
	}
	for _, m := range messages {
		n := binary.BigEndian.Uint64(m.Payload)
		if at, ok := l.committed[n]; ok {
			l.arrivals = append(l.arrivals, now.Sub(at))
			delete(l.committed, n)
		} else { // before Transact has returned
			l.arrivals = append(l.arrivals, 0)
		}
	}
	return nil
}

// Close does nothing.
func (l *live) Close() error { return nil }

// write commits an event.
func (l *live) write(ctx context.Context, out *producer.Outbox[pgx.Tx]) error {
	l.mu.Lock()
	l.written++
	n := uint64(l.written)
	l.mu.Unlock()
	begun := time.Now()
	err := out.Transact(ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
		_, err := w.Write(ctx, producer.Event{Topic: liveTopic, Key: fmt.Sprint("live-", n%1000), Random: true, Payload: binary.BigEndian.AppendUint64(nil, n)})
		return err
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.committed[n] = time.Now()
	l.transacts = append(l.transacts, time.Since(begun))
	return err
}

// take returns the 99th percentiles since the last call.
func (l *live) take() (transact, arrival time.Duration, others int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	transact, arrival, others = p99(l.transacts), p99(l.arrivals), l.others
	l.transacts, l.arrivals, l.others = nil, nil, 0
	return transact, arrival, others
}

func p99(all []time.Duration) time.Duration {
	slices.Sort(all)
	if len(all) == 0 {
		return 0
	}
	return all[len(all)*99/100]
}

// redrive redrives all dead events beside live traffic, and prints how long transactions and events of
// the traffic take without and with it. A p99 of transactions that doubles is an error.
func redrive(ctx context.Context, program, address string) error {
	settings, err := pgxpool.ParseConfig(address)
	if err != nil {
		return err
	}
	settings.MaxConns = 20
	pool, err := pgxpool.NewWithConfig(ctx, settings)
	if err != nil {
		return err
	}
	defer pool.Close()
	store, err := postgres.New(pool, postgres.Config{})
	if err != nil {
		return err
	}
	out, err := producer.New(store, producer.Config{Name: "live"})
	if err != nil {
		return err
	}
	l := &live{committed: make(map[uint64]time.Time)}
	r, err := relay.New(out, l, relay.Config{})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	all.Go(func() { _ = r.Run(ctx) })
	all.Go(func() { l.traffic(ctx, out) })
	if err := wait(ctx, 5*time.Second); err != nil { // what was pending is sent
		return err
	}
	l.take()
	if err := wait(ctx, aloneFor); err != nil {
		return err
	}
	transact, arrival, _ := l.take()
	cmd := exec.CommandContext(ctx, program, "dead", "redrive", "--all", "--yes", "-m", "bench", "--outbox", address)
	cmd.Stdout, cmd.Stderr = io.Discard, os.Stderr
	begun := time.Now()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("redrive: %w", err)
	}
	took := time.Since(begun)
	with, late, sent := l.take()
	fmt.Printf("redrive of all in %v, %d sent meanwhile; p99 of Transact %v alone, %v beside it; from commit to publisher %v, %v\n",
		took.Round(time.Second/10), sent, round(transact), round(with), round(arrival), round(late))
	if with > 2*transact {
		return errors.New("the redrive has doubled the p99 of Transact")
	}
	return nil
}

// traffic keeps to the clock, however long transactions take.
func (l *live) traffic(ctx context.Context, out *producer.Outbox[pgx.Tx]) {
	var all sync.WaitGroup
	defer all.Wait()
	tick := time.NewTicker(livePeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			all.Go(func() {
				if err := l.write(ctx, out); err != nil && ctx.Err() == nil {
					say("write: %v", err)
				}
			})
		}
	}
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond / 10) }
