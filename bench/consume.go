package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/postgres"
)

func consumeScenario() scenario {
	group := consumer.HandlerConfig{Group: consumer.GroupConfig{Size: 64}}
	optimistic := consumer.HandlerConfig{Optimistic: true}
	stored := consumer.HandlerConfig{StoreFirst: true}
	return scenario{
		name: "consume", unit: "messages",
		about: "messages of a quorum queue, each with a row in an inbox and one in a table of effects, then acknowledged",
		variants: []variant{
			{"limit-ack", "8 workers acknowledge one by one and do nothing else", "", 50_000, 20_000, ackOnly},
			{"limit-ack-100", "one worker acknowledges 100 at once", "", 50_000, 0, ackMultiple},
			{"limit-pipelined", "8 workers, a transaction per message in one round trip", "", 30_000, 10_000, pipelined(8)},
			{"limit-pipelined-32", "32 workers, the same", "limit-pipelined", 30_000, 0, pipelined(32)},
			{"four-round-trips", "8 workers, a transaction per message in four round trips", "limit-pipelined", 30_000, 0, fourRoundTrips},
			{"message", "Watermill router, a transaction per message in one round trip (Optimistic, effect queued)",
				"limit-pipelined", 30_000, 7_000, consuming{config: optimistic, fn: lateEffect}.measure},
			{"message-claim", "the same, the claim first and the effect sent with the COMMIT", "limit-pipelined", 30_000, 0, consuming{fn: lateEffect}.measure},
			{"default", "on the defaults: the handler writes by Exec", "limit-pipelined", 30_000, 7_000, consuming{fn: effect}.measure},
			{"default-pool-8", "the same with a pool of 8 connections", "limit-pipelined", 30_000, 7_000, consuming{fn: effect, connections: 8}.measure},
			{"group", "group commit of up to 64, a handler per message, effects sent with the COMMIT",
				"limit-pipelined", 50_000, 20_000, consuming{config: group, fn: lateEffect}.measure},
			{"message-batched", "as message, 64 to an AMQP message", "limit-pipelined", 30_000, 10_000, consuming{config: optimistic, fn: lateEffect, batched: true}.measure},
			{"group-batched", "as group, 64 to an AMQP message", "limit-pipelined", 50_000, 30_000, consuming{config: group, fn: lateEffect, batched: true}.measure},
			{"group-exec", "group commit of up to 64, a handler per message that writes by Exec", "limit-pipelined", 50_000, 20_000, consuming{config: group, fn: effect}.measure},
			{"batch", "a batch handler, one statement for the effects of a group", "limit-pipelined", 50_000, 20_000,
				consuming{config: group, batch: batchEffect}.measure},
			{"batch-batched", "as batch, 64 to an AMQP message", "limit-pipelined", 50_000, 30_000,
				consuming{config: group, batch: batchEffect, batched: true}.measure},
			{"duplicates-window", "all were applied before, and are in the window of dispatch IDs", "limit-ack", 50_000, 12_000,
				consuming{fn: lateEffect, copies: true}.measure},
			{"duplicates-table", "all were applied before, and are in the table only", "limit-ack", 30_000, 0,
				consuming{fn: lateEffect, copies: true, cache: -1}.measure},
			{"watermill", "stock watermill-amqp, 8 subscribers with a prefetch of 50, an inbox by hand", "limit-pipelined", 20_000, 0, watermillConsume},
			{"processes-1", "a handler that waits for 5 ms, 8 at once in a process: one process", "", 6_000, 0, sharing{processes: 1}.measure},
			{"processes-2", "two processes, of which one is active", "processes-1", 6_000, 0, sharing{processes: 2}.measure},
			{"processes-2-competing", "two with CompetingConsumers, which lose the order of keys", "processes-1", 6_000, 0, sharing{processes: 2, competing: true}.measure},
			{"processes-2-partitions", "two with 8 Partitions", "processes-1", 6_000, 0, sharing{processes: 2, partitions: 8}.measure},
			{"store-first", "stored and acknowledged at once, then run from the database, effect sent with the COMMIT", "limit-pipelined", 10_000, 0,
				consuming{config: stored, fn: lateEffect}.measure},
			{"one-direct", "the same handler, one message in flight", "", 1_500, 500, sharing{processes: 1, inFlight: 1}.measure},
			{"one-store-first", "one message in flight, stored and acknowledged at once, then run from the database by key, 16 at once",
				"one-direct", 6_000, 2_000, sharing{processes: 1, inFlight: 1, storeFirst: true}.measure},
			{"one-store-first-2", "the same with two processes: one stores, both handle", "one-direct", 6_000, 0,
				sharing{processes: 2, inFlight: 1, storeFirst: true}.measure},
			{"in-flight-1", "one message in flight", "limit-pipelined", 10_000, 0, consuming{config: optimistic, fn: lateEffect, inFlight: 1}.measure},
			{"in-flight-8", "8 messages in flight", "limit-pipelined", 30_000, 0, consuming{config: optimistic, fn: lateEffect, inFlight: 8}.measure},
			{"in-flight-32", "32 messages in flight", "limit-pipelined", 30_000, 0, consuming{config: optimistic, fn: lateEffect, inFlight: 32}.measure},
		},
	}
}

// filled returns a quorum queue with n messages.
func (s *stage) filled(ctx context.Context) (*queues, error) { return s.filledBy(ctx, 1) }

// filledBy returns a quorum queue with n messages, each of them in an AMQP message of that many.
func (s *stage) filledBy(ctx context.Context, each int) (*queues, error) {
	q, err := s.queues("quorum", 1)
	if err != nil {
		return nil, err
	}
	if err := q.ch.Confirm(false); err != nil {
		return nil, err
	}
	defer s.spend("messages")()
	return q, q.fill(ctx, s.n, each)
}

// fill publishes n messages, each of them in an AMQP message of that many. Every call uses equal
// dispatch IDs.
func (q *queues) fill(ctx context.Context, n, each int) error {
	var last *amqp.DeferredConfirmation
	stamp := time.Now().UTC().Format(time.RFC3339Nano)
	for i := 0; i < n; i += each {
		pub := consumedMessage(i, stamp)
		if each > 1 {
			pub = consumedBatch(i, min(i+each, n), stamp)
		}
		var err error
		if last, err = q.ch.PublishWithDeferredConfirm("", q.names[0], true, false, pub); err != nil {
			return err
		}
	}
	n = (n + each - 1) / each
	if _, err := last.WaitContext(ctx); err != nil {
		return err
	}
	_, err := q.await(ctx, n) // confirms of a quorum queue may come out of order
	return err
}

func consumedMessage(i int, stamp string) amqp.Publishing {
	id := uuid.NewSHA1(uuid.NameSpaceOID, fmt.Append(nil, i))
	return amqp.Publishing{
		DeliveryMode: amqp.Persistent, MessageId: id.String(), Body: payload,
		Headers: amqp.Table{
			"_watermill_message_uuid": id.String(), "boxpair-key": fmt.Sprint("key-", i%1000),
			"boxpair-digest": hex.EncodeToString(id[:]), "boxpair-stamp": stamp,
		},
	}
}

// consumedBatch returns an AMQP message with the messages from one number to another.
func consumedBatch(from, to int, stamp string) amqp.Publishing {
	body := []byte("publish-seq=1\n")
	for i := from; i < to; i++ {
		id := uuid.NewSHA1(uuid.NameSpaceOID, fmt.Append(nil, i))
		envelope := fmt.Appendf(nil, "publish-seq=1&key=key-%d&digest=%x&stamp=%s\n%s", i%1000, id[:], stamp, payload)
		body = append(fmt.Appendf(body, "%s %d\n", id, len(envelope)), envelope...)
	}
	return amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body, ContentEncoding: "boxpair-batch"}
}

// deliveries starts to consume.
func (q *queues) deliveries(prefetch int) (<-chan amqp.Delivery, error) {
	ch, err := q.conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Qos(prefetch, 0, false); err != nil {
		return nil, err
	}
	return ch.Consume(q.names[0], "", false, false, false, false, nil)
}

// consuming configures how a Watermill router and an inbox apply messages.
type consuming struct {
	config   consumer.HandlerConfig
	fn       consumer.HandlerFunc[pgx.Tx]
	batch    consumer.BatchFunc[pgx.Tx] // instead of fn
	copies   bool                       // all messages were applied before
	cache    int
	batched  bool // eventsOfBatch messages per AMQP message
	inFlight int  // defaults to four groups, or to the subscriber's default
	// connections is the size of the pool; defaults to 40.
	connections int
}

func (c consuming) measure(ctx context.Context, s *stage) error {
	s.connections = c.connections
	store, pool, _, err := s.store(ctx)
	if err != nil {
		return err
	}
	inbox, err := consumer.New(store, consumer.Config{Service: "bench", CacheSize: c.cache})
	if err != nil {
		return err
	}
	handler, err := c.handler(inbox)
	if err != nil {
		return err
	}
	q, err := s.filledBy(ctx, c.each())
	if err != nil {
		return err
	}
	if err := s.warm(ctx, pool, min(34, int(pool.Config().MaxConns))); err != nil {
		return err
	}
	if c.copies { // the first pass is not measured
		done := s.spend("first copies")
		r, err := s.route(ctx, q, inbox, handler, c.subscriber())
		if err != nil {
			return err
		}
		if err := errors.Join(r.wait(ctx), r.stop(), q.fill(ctx, s.n, c.each())); err != nil {
			return err
		}
		done()
	}
	return s.timed(ctx, func() (int, error) {
		r, err := s.route(ctx, q, inbox, handler, c.subscriber())
		if err != nil {
			return 0, err
		}
		s.later(func() { _ = r.stop() })
		if err := r.wait(ctx); err != nil || !c.config.StoreFirst {
			return s.n, err
		}
		for handler.Counters().Applied < int64(s.n) {
			if err := pause(ctx, time.Millisecond); err != nil {
				return 0, err
			}
		}
		return s.n, nil
	})
}

func (c consuming) handler(inbox *consumer.Inbox[pgx.Tx]) (*consumer.Handler[pgx.Tx], error) {
	if c.batch != nil {
		return inbox.HandleBatch("effect", c.batch, c.config)
	}
	return inbox.Handle("effect", c.fn, c.config)
}

func (c consuming) each() int {
	if c.batched {
		return eventsOfBatch
	}
	return 1
}

// subscriber returns the number of messages in flight; 0 is the subscriber's default.
func (c consuming) subscriber() int {
	if c.inFlight == 0 {
		return 4 * c.config.Group.Size
	}
	return c.inFlight
}

// effect is a write of the handler that waits for its result.
func effect(ctx context.Context, w *consumer.Work[pgx.Tx], msg *message.Message) error {
	_, err := w.DB().Exec(ctx, `INSERT INTO effects VALUES ($1, $2)`, msg.UUID, []byte(msg.Payload))
	return err
}

// lateEffect sends the effect together with the COMMIT.
func lateEffect(_ context.Context, w *consumer.Work[pgx.Tx], msg *message.Message) error {
	return postgres.AtCommit(w.DB(), `INSERT INTO effects VALUES ($1, $2)`, msg.UUID, []byte(msg.Payload))
}

// batchEffect writes the effects of a group in one statement.
func batchEffect(_ context.Context, b *consumer.Batch[pgx.Tx], messages []*message.Message) error {
	ids, bodies := make([]string, len(messages)), make([][]byte, len(messages))
	for i, msg := range messages {
		ids[i], bodies[i] = msg.UUID, msg.Payload
	}
	return postgres.AtCommit(b.DB(), `INSERT INTO effects SELECT * FROM unnest($1::uuid[], $2::bytea[])`, ids, bodies)
}
