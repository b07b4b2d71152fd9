package child

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/internal/pace"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/archive"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/transport/amqp"
)

// outbox adds the roles that work on the outbox.
func (s *service) outbox(st *store) (closers []func(), err error) {
	outbox, err := producer.New(st.Store, producer.Config{Name: OutboxName, Logger: s.log})
	if err != nil {
		return nil, err
	}
	if s.cfg.has(Relay) {
		closers, err = s.relay(outbox)
		if err != nil {
			return closers, err
		}
	}
	if s.cfg.has(Janitor) {
		if err := s.janitor(st); err != nil {
			return closers, err
		}
	}
	if s.cfg.has(Producer) {
		w := &writers{s: s, st: st, outbox: outbox}
		s.parts = append(s.parts,
			part{name: "outbox", run: outbox.Run},
			part{name: "producer", run: w.run, tell: func(r *Report) {
				r.Placed, r.PlaceErrors = w.placed.Load(), w.failed.Load()
				r.ProducerDone = w.done.Load()
			}})
	}
	return closers, nil
}

func (s *service) janitor(st *store) error {
	cfg := producer.JanitorConfig{Retention: s.cfg.Retention, Interval: 50 * time.Millisecond, MaxBatch: 10, Logger: s.log}
	if dir := s.cfg.Archive; dir != "" {
		files, err := archive.New(dir)
		if err != nil {
			return err
		}
		cfg.Archive = files
	}
	j, err := producer.NewJanitor(st.Store, cfg)
	if err != nil {
		return err
	}
	s.parts = append(s.parts, part{name: "janitor", run: j.Run, tell: func(r *Report) { r.Removed = j.Totals().Events }})
	return nil
}

func (s *service) relay(outbox *producer.Outbox[pgx.Tx]) (closers []func(), err error) {
	c := &s.cfg
	cfg := amqp.PublisherConfig{
		AMQP: Topology(c.AMQP, ""), Window: c.Window, ConfirmTimeout: c.ConfirmTimeout, MaxBody: maxBody,
		Envelope: c.Envelope, BatchSize: c.BatchSize, Logger: s.log,
	}
	for _, name := range c.Services {
		if c.NoQueues {
			break
		}
		cfg.Queues = append(cfg.Queues, amqp.Queue{Topic: c.Topic, Name: QueueName(c.Topic, name)})
	}
	publisher, err := amqp.NewPublisher(cfg)
	if err != nil {
		return nil, err
	}
	closers = []func(){func() { _ = publisher.Close() }}
	relay, err := relay.New(outbox, publisher, relay.Config{
		LeaseTTL: c.LeaseTTL, Window: c.Window, SendTimeout: c.SendTimeout, MaxAttempts: c.MaxAttempts,
		Backoff:            relay.Backoff{Initial: 20 * time.Millisecond, Max: time.Second},
		RouteProbeInterval: 100 * time.Millisecond, PollMax: 100 * time.Millisecond,
		ShutdownTimeout: 5 * time.Second, Logger: s.log,
	})
	if err != nil {
		return closers, err
	}
	s.parts = append(s.parts, part{name: "relay", run: relay.Run, tell: func(r *Report) {
		h := relay.Health()
		r.Shards, r.Relays, r.InFlight, r.Window = h.Shards, h.Relays, h.InFlight, c.Window
		r.InMemory, r.Blocked = h.Waiting+h.Unmarked+h.InFlight, publisher.Health().Blocked
		for _, route := range h.Routes {
			r.RouteError = route.LastError
		}
		r.DatabaseError = h.DatabaseError
	}})
	return closers, nil
}

// writers place orders.
type writers struct {
	s              *service
	st             *store
	outbox         *producer.Outbox[pgx.Tx]
	placed, failed atomic.Int64
	done           atomic.Bool
}

func (w *writers) run(ctx context.Context) error {
	var wg sync.WaitGroup
	for i := range w.s.cfg.Writers {
		wg.Go(func() { w.write(ctx, int64(i)) })
	}
	wg.Wait()
	w.done.Store(ctx.Err() == nil)
	<-ctx.Done()
	return nil
}

// write places the batches of one writer, every Writers-th batch.
func (w *writers) write(ctx context.Context, me int64) {
	c := &w.s.cfg
	batch, ok := w.first(ctx, me)
	for ; ok; batch += int64(c.Writers) {
		first, last := batch*int64(c.Batch)+1, (batch+1)*int64(c.Batch)
		if c.Orders > 0 {
			last = min(last, int64(c.Orders))
		}
		if first > last {
			return
		}
		if ok = w.again(ctx, func() error { return w.place(ctx, first, last) }); ok {
			w.placed.Add(last - first + 1)
			ok = sleep(ctx, c.Pause)
		}
	}
}

// first returns the writer's last batch, to be placed again: after a crash the outcome of its
// commit is unknown.
func (w *writers) first(ctx context.Context, me int64) (batch int64, ok bool) {
	c := &w.s.cfg
	batch = me
	return batch, w.again(ctx, func() error {
		var last int64
		err := w.st.pool.QueryRow(ctx, `SELECT coalesce(max(number), 0) FROM orders
			WHERE producer = $1 AND (number - 1) / $2 % $3 = $4`, c.Producer, c.Batch, c.Writers, me).Scan(&last)
		if err == nil && last > 0 {
			batch = (last - 1) / int64(c.Batch)
		}
		return err
	})
}

// again calls do until it succeeds, and returns false if ctx ended before.
func (w *writers) again(ctx context.Context, do func() error) bool {
	for {
		err := attempt(do)
		if err == nil {
			return true
		}
		if !errors.Is(err, errHeld) {
			w.failed.Add(1)
			w.s.log.Warn("producer", "error", err)
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return false
		}
	}
}

// attempt turns a panic and a Goexit into an error, like a server with a goroutine per request.
func attempt(do func() error) error {
	done := make(chan error, 1)
	go func() {
		err := fmt.Errorf("goroutine ended")
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("panic: %v", v)
			}
			done <- err
		}()
		err = do()
	}()
	return <-done
}

// place places orders in one transaction.
func (w *writers) place(ctx context.Context, first, last int64) error {
	c := &w.s.cfg
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	return w.outbox.Transact(ctx, func(ctx context.Context, tx *producer.Writer[pgx.Tx]) error {
		orders := make([]Order, 0, last-first+1)
		for n := first; n <= last; n++ {
			orders = append(orders, NewOrder(c.Producer, n, c.Keys))
		}
		if err := w.placeAll(ctx, tx.DB(), orders); err != nil {
			return err
		}
		events := make([]producer.Event, len(orders))
		for i := range orders {
			var err error
			size := c.PayloadBytes
			if c.Huge > 0 && orders[i].Number%int64(c.Huge) == 0 {
				size = maxBody
			}
			if events[i], err = orders[i].event(c.Topic, size); err != nil {
				return err
			}
		}
		if c.Queue {
			_, err := tx.Write(ctx, events...)
			return err
		}
		_, err := tx.Write(ctx, events...)
		return err
	})
}

// errHeld means that the brake holds producers back.
var errHeld = errors.New("the brake is on")

// placeAll places orders in one round trip.
func (w *writers) placeAll(ctx context.Context, tx pgx.Tx, orders []Order) error {
	if w.s.cfg.Bulk {
		return w.placeBulk(ctx, tx, orders)
	}
	b := &pgx.Batch{}
	for i := range orders {
		o := &orders[i]
		b.Queue(`SELECT place($1, $2, $3, $4)`, o.Producer, o.Number, o.Key, o.Amount).QueryRow(func(row pgx.Row) error {
			return row.Scan(&o.N)
		})
	}
	return tx.SendBatch(ctx, b).Close()
}

// placeBulk places orders in one statement.
func (w *writers) placeBulk(ctx context.Context, tx pgx.Tx, orders []Order) error {
	first, last := orders[0].Number, orders[len(orders)-1].Number
	rows, err := tx.Query(ctx, `SELECT num, place FROM place_all($1, $2, $3, $4)`, w.s.cfg.Producer, first, last, w.s.cfg.Keys)
	if err != nil {
		return err
	}
	var number, place int64
	n := 0
	_, err = pgx.ForEachRow(rows, []any{&number, &place}, func() error {
		orders[number-first].N = place
		n++
		return nil
	})
	switch {
	case err != nil:
		return err
	case n == 0:
		return errHeld
	case n != len(orders):
		return fmt.Errorf("%d of %d orders are there", n, len(orders))
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	return pace.Sleep(ctx, d) == nil
}
