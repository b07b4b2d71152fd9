package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/postgres"
)

func enqueueScenario() scenario {
	s := scenario{
		name: "enqueue", unit: "events",
		about: "transactions of one business row and its events, by 1, 8 or 32 producers, of 1 or 100 events",
	}
	for _, producers := range []int{1, 8, 32} {
		full, quick := 40_000, 0
		switch producers {
		case 1:
			full, quick = 15_000, 2_000
		case 8:
			quick = 6_000
		}
		add := func(name, about, limit string, quick int, do enqueuer) {
			if limit != "" {
				limit = fmt.Sprintf("%s-%d", limit, producers)
			}
			s.variants = append(s.variants, variant{fmt.Sprintf("%s-%d", name, producers), about, limit, full, quick,
				enqueuing{producers: producers, events: 1, make: do}.measure})
		}
		add("limit-plain", "by hand: a row in a plain outbox table, in four round trips", "", quick, plain)
		add("readme", "Outbox.Transact with Exec and Write, as README shows", "limit-plain", quick, readme)
		add("limit-raw", "the same statements as Transact's in one round trip", "", quick, rawOnce)
		add("transact", "Outbox.Transact", "limit-raw", quick, transact)
		add("limit-statements", "a transaction with the same statements by hand, in four round trips", "", quick, byHand)
		add("write", "Writer.Write in the caller's transaction", "limit-statements", quick, write)
		add("watermill", "watermill-sql and the forwarder's publisher in the caller's transaction", "limit-statements", 0, watermillEnqueue)
		add("river", "River's InsertTx", "limit-statements", 0, riverEnqueue)
	}
	for _, producers := range []int{1, 8} {
		add := func(name, about, limit string, quick int, do enqueuer) {
			if limit != "" {
				limit = fmt.Sprintf("%s-100x%d", limit, producers)
			}
			s.variants = append(s.variants, variant{fmt.Sprintf("%s-100x%d", name, producers), about, limit, 200_000, quick,
				enqueuing{producers: producers, events: 100, make: do}.measure})
		}
		quick := map[int]int{8: 60_000}[producers]
		add("limit-plain", "by hand: 100 rows in a plain outbox table by INSERT with unnest", "", quick, plainMany)
		add("readme", "Outbox.Transact with Exec and Write of 100 events", "limit-plain", quick, readme)
		add("limit-unnest", "100 events by a plain INSERT with unnest into the same tables", "", quick, unnest)
		add("write", "Writer.Write of 100 events", "limit-unnest", quick, write)
		add("transact", "Outbox.Transact of 100 events", "limit-unnest", 0, transact)
		add("watermill", "watermill-sql and the forwarder's publisher, 100 events", "limit-unnest", 0, watermillEnqueue)
	}
	for _, retained := range []struct {
		name string
		n    int
	}{{"1m", 1_000_000}, {"10m", 10_000_000}} {
		s.variants = append(s.variants, variant{"transact-8-retained-" + retained.name, "beside " + retained.name + " delivered events",
			"transact-8", 40_000, 0, enqueuing{producers: 8, events: 1, retained: retained.n, make: transact}.measure})
	}
	return s
}

// enqueuing configures how events are committed.
type enqueuing struct {
	producers, events, retained int
	make                        enqueuer
}

// desk is the equipment of a producer.
type desk struct {
	pool   *pgxpool.Pool
	outbox *producer.Outbox[pgx.Tx]
	append statement // this library's statement
	events int       // per transaction
	number *atomic.Int64
}

// newNumber begins above the numbers of all earlier measurements on the tables.
func newNumber() *atomic.Int64 {
	n := &atomic.Int64{}
	n.Store(time.Now().UnixNano())
	return n
}

// enqueuer returns a function that commits one transaction.
type enqueuer func(ctx context.Context, d *desk) (func(context.Context) error, error)

func (e enqueuing) measure(ctx context.Context, s *stage) error {
	store, pool, _, err := relaying{retained: e.retained}.store(ctx, s)
	if err != nil {
		return err
	}
	outbox, err := producer.New(store, producer.Config{Name: "bench"})
	if err != nil {
		return err
	}
	d := &desk{pool: pool, outbox: outbox, events: e.events, number: newNumber()}
	if d.append, err = captured(ctx, pool, outbox, d.batch()); err != nil {
		return err
	}
	once, err := e.make(ctx, d)
	if err != nil {
		return err
	}
	if err := s.warm(ctx, pool, e.producers); err != nil {
		return err
	}
	transactions := max(1, s.n/e.events)
	if err := concurrently(ctx, e.producers, 2*e.producers, once); err != nil { // prepares the statements
		return err
	}
	return s.timed(ctx, func() (int, error) {
		return transactions * e.events, concurrently(ctx, e.producers, transactions, once)
	})
}

// concurrently calls fn n times, in the given number of goroutines.
func concurrently(ctx context.Context, goroutines, n int, fn func(context.Context) error) error {
	var left atomic.Int64
	left.Store(int64(n))
	errs := make([]error, goroutines)
	var all sync.WaitGroup
	for i := range goroutines {
		all.Go(func() {
			for left.Add(-1) >= 0 && errs[i] == nil {
				errs[i] = fn(ctx)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// batch returns the new events of a transaction.
func (d *desk) batch() []producer.Event {
	events := make([]producer.Event, d.events)
	source := uuid.NewString()
	for i := range events {
		events[i] = event("topic-0", source, source, d.number.Add(1), payload)
	}
	return events
}

const insertOrder = `INSERT INTO orders VALUES ($1, $2)`

// transact sends the order and its events through Transact.
func transact(_ context.Context, d *desk) (func(context.Context) error, error) {
	return func(ctx context.Context) error {
		return d.outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			if err := business(ctx, w.DB()); err != nil {
				return err
			}
			_, err := w.Write(ctx, d.batch()...)
			return err
		})
	}, nil
}

// business writes an order: together with the COMMIT, if the transaction supports that.
func business(ctx context.Context, tx pgx.Tx) error {
	id := uuid.New()
	if postgres.AtCommit(tx, insertOrder, id, payload) == nil {
		return nil
	}
	_, err := tx.Exec(ctx, insertOrder, id, payload)
	return err
}

// write uses a transaction of the caller.
func write(_ context.Context, d *desk) (func(context.Context) error, error) {
	return func(ctx context.Context) error {
		err := d.transaction(ctx, func(tx pgx.Tx) error {
			_, err := d.outbox.Tx(tx).Write(ctx, d.batch()...)
			return err
		})
		if err == nil {
			d.outbox.Committed()
		}
		return err
	}, nil
}

// transaction writes an order, calls fn and commits, each in a round trip.
func (d *desk) transaction(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, insertOrder, uuid.New(), payload); err != nil {
			return err
		}
		return fn(tx)
	})
}
