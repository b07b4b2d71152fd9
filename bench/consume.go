package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	wamqp "github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/transport/amqp"
)

// variant is something that is measured, in events or messages per second.
type variant struct {
	name    string
	measure func(context.Context, options) (float64, error)
}

// grouped is group commit of up to 64 messages.
var grouped = consumer.HandlerConfig{GroupSize: 64}

// consumeVariants are ways to apply messages of a queue, and what they are compared to.
var consumeVariants = []variant{
	{"acknowledge only", ackOnly},
	{"pipelined workers", pipelinedConsume},
	{"router per message", routerConsume(setup{})},
	{"router writes at commit", routerConsume(setup{fn: lateEffect})},
	{"router group", routerConsume(setup{handler: grouped})},
	{"router group at commit", routerConsume(setup{handler: grouped, fn: lateEffect})},
	{"router batch", routerConsume(setup{handler: grouped, batch: batchEffect})},
	{"router duplicates window", routerConsume(setup{copies: true})},
	{"router duplicates table", routerConsume(setup{copies: true, cache: -1})},
}

// consumePairs are what is divided by what.
var consumePairs = [][2]string{
	{"router per message", "pipelined workers"},
	{"router writes at commit", "pipelined workers"},
	{"router group", "pipelined workers"},
	{"router group at commit", "pipelined workers"},
	{"router batch", "pipelined workers"},
	{"router duplicates window", "acknowledge only"},
	{"router duplicates table", "acknowledge only"},
}

// queued is a queue with messages, and the connection on which they are consumed.
type queued struct {
	conn  *wamqp.Connection
	ch    *wamqp.Channel
	queue string
}

func (q *queued) close() {
	_, _ = q.ch.QueueDelete(q.queue, false, false, false)
	_ = q.conn.Close()
}

func filled(ctx context.Context, o options) (*queued, error) {
	conn, ch, queue, err := newQueue(o)
	if err != nil {
		if conn != nil {
			_ = conn.Close()
		}
		return nil, err
	}
	q := &queued{conn: conn, ch: ch, queue: queue}
	if err := fillQueue(ctx, ch, queue, o.events); err != nil {
		q.close()
		return nil, err
	}
	return q, nil
}

// deliveries begins to consume with a prefetch of 100.
func (q *queued) deliveries() (<-chan wamqp.Delivery, error) {
	ch, err := q.conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Qos(100, 0, false); err != nil {
		return nil, err
	}
	return ch.Consume(q.queue, "", false, false, false, false, nil)
}

// ackOnly acknowledges each message and does nothing else.
func ackOnly(ctx context.Context, o options) (float64, error) {
	return workers(ctx, o, func(d wamqp.Delivery) error { return d.Ack(false) })
}

// pipelinedConsume applies each message in a transaction that is one round trip: an
// insert of the ID, which fails for a copy, an effect, and COMMIT.
func pipelinedConsume(ctx context.Context, o options) (float64, error) {
	pool, _, drop, err := schema(ctx, o)
	if err != nil {
		return 0, err
	}
	defer drop()
	if _, err := pool.Exec(ctx, `CREATE TABLE inbox (id uuid PRIMARY KEY, at timestamptz DEFAULT now()); CREATE TABLE effects (id uuid, body bytea)`); err != nil {
		return 0, err
	}
	return workers(ctx, o, func(d wamqp.Delivery) error {
		if err := applyPipelined(ctx, pool, d); err != nil {
			return err
		}
		return d.Ack(false)
	})
}

func applyPipelined(ctx context.Context, pool *pgxpool.Pool, d wamqp.Delivery) error {
	b := &pgx.Batch{}
	b.Queue("begin")
	b.Queue(`INSERT INTO inbox (id) VALUES ($1)`, d.MessageId)
	b.Queue(`INSERT INTO effects VALUES ($1, $2)`, d.MessageId, d.Body)
	b.Queue("commit")
	return pool.SendBatch(ctx, b).Close()
}

// workers has 8 workers handle the messages of a queue.
func workers(ctx context.Context, o options, handle func(d wamqp.Delivery) error) (float64, error) {
	q, err := filled(ctx, o)
	if err != nil {
		return 0, err
	}
	defer q.close()
	start := time.Now()
	deliveries, err := q.deliveries()
	if err != nil {
		return 0, err
	}
	todo := make(chan wamqp.Delivery)
	errs := make(chan error, 8)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for d := range todo {
				if err := handle(d); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	for range o.events {
		select {
		case todo <- <-deliveries:
		case err := <-errs:
			return 0, err
		}
	}
	close(todo)
	all.Wait()
	return float64(o.events) / time.Since(start).Seconds(), nil
}

// setup is how messages are consumed by a Watermill router and an inbox.
type setup struct {
	handler consumer.HandlerConfig
	fn      consumer.HandlerFunc[pgx.Tx] // defaults to effect
	batch   consumer.BatchFunc[pgx.Tx]   // instead of fn
	copies  bool                         // all messages were applied before
	cache   int
}

// inFlight is four groups, or the subscriber's default.
func (s setup) inFlight(o options) int {
	if o.inFlight == 0 && s.handler.GroupSize > 0 {
		return 4 * s.handler.GroupSize
	}
	return o.inFlight
}

// stand is an inbox on a database of its own.
type stand struct {
	inbox   *consumer.Inbox[pgx.Tx]
	handler *consumer.Handler[pgx.Tx]
	drop    func()
}

func (s setup) build(ctx context.Context, o options) (*stand, error) {
	store, drop, err := newStore(ctx, o)
	if err != nil {
		return nil, err
	}
	st := &stand{drop: drop}
	if st.inbox, err = consumer.New(store, nil, consumer.Config{Service: "bench", CacheSize: s.cache}); err == nil {
		switch {
		case s.batch != nil:
			st.handler, err = st.inbox.HandleBatch("effect", s.batch, s.handler)
		case s.fn != nil:
			st.handler, err = st.inbox.Handle("effect", s.fn, s.handler)
		default:
			st.handler, err = st.inbox.Handle("effect", effect, s.handler)
		}
	}
	if err != nil {
		drop()
		return nil, err
	}
	return st, nil
}

func effect(ctx context.Context, w *consumer.Work[pgx.Tx], msg *message.Message) error {
	_, err := w.DB().Exec(ctx, `INSERT INTO effects VALUES ($1, $2)`, msg.UUID, []byte(msg.Payload))
	return err
}

// lateEffect sends the effect together with the COMMIT.
func lateEffect(_ context.Context, w *consumer.Work[pgx.Tx], msg *message.Message) error {
	return postgres.AtCommit(w.DB(), `INSERT INTO effects VALUES ($1, $2)`, msg.UUID, []byte(msg.Payload))
}

// batchEffect writes the effects of a set in one statement.
func batchEffect(_ context.Context, b *consumer.Batch[pgx.Tx], msgs []*message.Message) error {
	ids, bodies := make([]string, len(msgs)), make([][]byte, len(msgs))
	for i, msg := range msgs {
		ids[i], bodies[i] = msg.UUID, msg.Payload
	}
	return postgres.AtCommit(b.DB(), `INSERT INTO effects SELECT * FROM unnest($1::uuid[], $2::bytea[])`, ids, bodies)
}

// routerConsume applies messages through a Watermill router and an inbox, with
// the subscriber's defaults.
func routerConsume(s setup) func(context.Context, options) (float64, error) {
	return func(ctx context.Context, o options) (float64, error) {
		st, err := s.build(ctx, o)
		if err != nil {
			return 0, err
		}
		defer st.drop()
		q, err := filled(ctx, o)
		if err != nil {
			return 0, err
		}
		defer q.close()
		if s.copies { // the first time is not measured
			if _, err := st.route(ctx, o, q, s); err != nil {
				return 0, err
			}
			if err := fillQueue(ctx, q.ch, q.queue, o.events); err != nil {
				return 0, err
			}
		}
		return st.route(ctx, o, q, s)
	}
}

// route runs a router until all messages are handled.
func (st *stand) route(ctx context.Context, o options, q *queued, s setup) (float64, error) {
	subscriber, err := amqp.NewSubscriber(amqp.SubscriberConfig{AMQP: config(o, q.queue), InFlight: s.inFlight(o)})
	if err != nil {
		return 0, err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return 0, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var done atomic.Int64
	var took time.Duration
	start := time.Now()
	router.AddConsumerHandler("effect", "bench", subscriber, func(msg *message.Message) error {
		if err := st.handler.Consume(msg); err != nil {
			return err
		}
		if done.Add(1) == int64(o.events) {
			took = time.Since(start)
			stop()
		}
		return nil
	})
	var parts sync.WaitGroup
	parts.Go(func() { _ = st.inbox.Run(ctx) })
	err = router.Run(ctx)
	stop()
	parts.Wait()
	if done.Load() < int64(o.events) {
		return 0, errors.Join(err, fmt.Errorf("%d of %d messages applied", done.Load(), o.events))
	}
	return float64(o.events) / took.Seconds(), errors.Join(err, subscriber.Close())
}
