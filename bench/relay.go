package main

import (
	"context"
	"fmt"
	"math/rand"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/transport/amqp"
)

func relayScenario() scenario {
	return scenario{
		name: "relay", unit: "events",
		about: "committed events to a durable RabbitMQ queue: fetched, published, confirmed, marked",
		variants: []variant{
			{"limit-classic", "amqp091, 1000 unconfirmed publishes, one classic queue, no database", "", 100_000, 20_000, rawPublish("classic", 1000, rawMessage)},
			{"limit-classic-headers", "the same, each message with the properties of an event", "limit-classic", 100_000, 20_000, sampled("classic")},
			{"limit-classic-envelope", "the same, each message with an event's envelope and no headers", "limit-classic", 100_000, 0, rawPublish("classic", 1000, envelopedMessage)},
			{"limit-classic-batch", "amqp091, 15 unconfirmed publishes of 64 such envelopes each, one classic queue", "", 300_000, 60_000, rawBatches("classic")},
			{"classic", "distinct keys, in batches of up to 64", "limit-classic", 300_000, 60_000, relaying{queue: "classic"}.measure},
			{"classic-envelope", "the same, an envelope per AMQP message", "limit-classic", 100_000, 20_000, relaying{queue: "classic", form: enveloped}.measure},
			{"classic-headers", "the same with headers, as by default", "limit-classic", 100_000, 20_000, relaying{queue: "classic", form: headers}.measure},
			{"classic-zipf", "1,000 keys by Zipf's law, each in order", "limit-classic", 100_000, 30_000, relaying{queue: "classic", keys: zipfKeys}.measure},
			{"classic-no-key", "events without a key", "limit-classic", 100_000, 0, relaying{queue: "classic", keys: noKey}.measure},
			{"classic-hot-key", "all events of one key", "limit-classic-1", 10_000, 0, relaying{queue: "classic", keys: hotKey}.measure},
			{"limit-classic-1", "amqp091, one confirm at a time", "", 10_000, 0, rawPublish("classic", 1, rawMessage)},
			{"classic-snapshot", "while another session holds an old snapshot", "classic", 300_000, 60_000, relaying{queue: "classic", snapshot: true}.measure},
			{"classic-retained-small", "beside 200,000 delivered events", "classic", 0, 60_000, relaying{queue: "classic", retained: 200_000}.measure},
			{"classic-retained-1m", "beside 1 M delivered events", "classic", 300_000, 0, relaying{queue: "classic", retained: 1_000_000}.measure},
			{"classic-retained-10m", "beside 10 M delivered events", "classic", 300_000, 0, relaying{queue: "classic", retained: 10_000_000}.measure},
			{"classic-4-queues", "4 topics, a queue each, one relay", "limit-classic", 300_000, 40_000, relaying{queue: "classic", queues: 4}.measure},
			{"classic-200-topics", "200 topics of one queue, in batches of up to 64", "limit-classic", 300_000, 40_000, relaying{queue: "classic", topics: 200}.measure},
			{"classic-2-relays", "two relay processes", "limit-classic", 300_000, 0, relaying{queue: "classic", processes: 2}.measure},
			{"limit-quorum", "amqp091, 1000 unconfirmed publishes, one quorum queue, no database", "", 100_000, 30_000, rawPublish("quorum", 1000, rawMessage)},
			{"limit-quorum-headers", "the same, each message with the properties of an event", "limit-quorum", 100_000, 30_000, sampled("quorum")},
			{"limit-quorum-envelope", "the same, each message with an event's envelope and no headers", "limit-quorum", 100_000, 0, rawPublish("quorum", 1000, envelopedMessage)},
			{"limit-quorum-batch", "amqp091, 15 unconfirmed publishes of 64 such envelopes each, one quorum queue", "", 300_000, 60_000, rawBatches("quorum")},
			{"quorum", "distinct keys, quorum queue, in batches of up to 64", "limit-quorum", 300_000, 60_000, relaying{queue: "quorum"}.measure},
			{"quorum-envelope", "the same, an envelope per AMQP message", "limit-quorum", 100_000, 30_000, relaying{queue: "quorum", form: enveloped}.measure},
			{"quorum-headers", "the same with headers, as by default", "limit-quorum", 100_000, 30_000, relaying{queue: "quorum", form: headers}.measure},
			{"quorum-zipf", "1,000 keys by Zipf's law, quorum queue", "limit-quorum", 100_000, 0, relaying{queue: "quorum", keys: zipfKeys}.measure},
			{"quorum-4-queues", "4 topics, a quorum queue each", "limit-quorum", 300_000, 0, relaying{queue: "quorum", queues: 4}.measure},
			{"limit-database", "plain SQL: fetch 1,000, delete 1,000, nothing published", "", 100_000, 0, databaseOnly},
			{"database", "this relay with a transport that confirms at once", "limit-database", 100_000, 0, relaying{}.measure},
			{"forwarder", "Watermill's forwarder, watermill-sql, watermill-amqp with confirms; defaults", "limit-classic", 10_000, 2_000, forward(false)},
			{"forwarder-tuned", "the same with batches of 1,000, a poll of 10 ms, a pool of 10 channels", "limit-classic", 20_000, 6_000, forward(true)},
			{"river", "River, 1,000 workers that publish with a confirm each", "limit-classic", 40_000, 0, riverRelay},
			{"backlog-10k", "a backlog of 10,000", "limit-classic", 10_000, 0, relaying{queue: "classic"}.measure},
			{"backlog-30k", "a backlog of 30,000", "limit-classic", 30_000, 0, relaying{queue: "classic"}.measure},
			{"backlog-300k", "a backlog of 300,000", "limit-classic", 300_000, 0, relaying{queue: "classic"}.measure},
		},
	}
}

// keying returns the key of the i-th event.
type keying func() func(i int) string

func distinctKeys() func(int) string { return func(i int) string { return fmt.Sprint("key-", i) } }
func hotKey() func(int) string       { return func(int) string { return "hot" } }
func noKey() func(int) string        { return func(int) string { return "" } }

// zipfKeys returns equal keys in every run. The generator needs an exponent above 1, which is
// Zipf's: the most frequent key has 14 % of the events.
func zipfKeys() func(int) string {
	z := rand.NewZipf(rand.New(rand.NewSource(1)), 1.01, 1, 999)
	return func(int) string { return fmt.Sprint("key-", z.Uint64()) }
}

// relaying configures a measurement of this library's relay.
type relaying struct {
	queue     string // type of queue; "" publishes to nothing
	keys      keying // defaults to distinctKeys
	queues    int    // and topics; defaults to 1
	topics    int    // of one queue, if there are several
	retained  int    // delivered events in the log
	snapshot  bool   // another session holds a snapshot from before the events
	processes int    // defaults to 1: in this process
	form      form
}

// form is the form of messages of a relay.
type form int

const (
	batched   form = iota // many events per AMQP message
	enveloped             // one event per AMQP message, without headers
	headers               // the default
)

// eventsOfBatch is the number of this library's events in an AMQP message.
const eventsOfBatch = 64

// publisher publishes to q.
func (s *stage) publisher(q *queues, f form) (*amqp.Publisher, error) {
	c := amqp.PublisherConfig{AMQP: config(s.amqpURL, q.kind, q.names), Envelope: f != headers}
	if f == batched {
		c.BatchSize = eventsOfBatch
	}
	publisher, err := amqp.NewPublisher(c)
	if err == nil {
		s.later(func() { _ = publisher.Close() })
	}
	return publisher, err
}

func (r relaying) measure(ctx context.Context, s *stage) error {
	r.queues, r.processes = max(1, r.queues), max(1, r.processes)
	if r.keys == nil {
		r.keys = distinctKeys
	}
	store, pool, schema, err := r.store(ctx, s)
	if err != nil {
		return err
	}
	if r.snapshot {
		if err := holdSnapshot(ctx, s); err != nil {
			return err
		}
	}
	outbox, err := producer.New(store, producer.Config{Name: "bench"})
	if err != nil {
		return err
	}
	if err := s.fillOutbox(ctx, outbox, max(r.queues, r.topics), r.keys()); err != nil {
		return err
	}
	if err := s.warm(ctx, pool, 4); err != nil {
		return err
	}
	if r.queue == "" {
		relay, err := relay.New(outbox, sink{}, relay.Config{})
		if err != nil {
			return err
		}
		return s.drain(ctx, relay)
	}
	q, err := s.queues(r.queue, r.queues)
	if err != nil {
		return err
	}
	if r.processes > 1 {
		return s.drainByProcesses(ctx, pool, schema, q, r.processes)
	}
	relay, err := s.relay(ctx, outbox, q, r.form)
	if err != nil {
		return err
	}
	return s.drain(ctx, relay)
}

// store makes an outbox, or returns one with retained delivered events.
func (r relaying) store(ctx context.Context, s *stage) (*postgres.Store, *pgxpool.Pool, string, error) {
	if r.retained > 0 {
		return s.retained(ctx, s.retainedSize(r.retained))
	}
	return s.store(ctx)
}

// relay returns a relay in this process that publishes to q.
func (s *stage) relay(ctx context.Context, outbox *producer.Outbox[pgx.Tx], q *queues, f form) (*relay.Relay, error) {
	return s.configured(ctx, outbox, q, f, relay.Config{})
}

func (s *stage) configured(ctx context.Context, outbox *producer.Outbox[pgx.Tx], q *queues, f form, c relay.Config) (*relay.Relay, error) {
	publisher, err := s.publisher(q, f)
	if err != nil {
		return nil, err
	}
	if err := publisher.Connect(ctx); err != nil {
		return nil, err
	}
	return relay.New(outbox, publisher, c)
}

// standalone returns a relay with a store of its own, as in another process.
func (s *stage) standalone(ctx context.Context, schema string, q *queues, f form, c relay.Config) (*relay.Relay, error) {
	pool, err := s.pool(ctx, schema)
	if err != nil {
		return nil, err
	}
	store, err := postgres.New(pool, postgres.Config{Schema: schema})
	if err != nil {
		return nil, err
	}
	publisher, err := s.publisher(q, f)
	if err != nil {
		return nil, err
	}
	return relay.NewStandalone(store, publisher, c)
}

// drain measures how long a relay takes for all events.
func (s *stage) drain(ctx context.Context, relay *relay.Relay) error {
	return s.timed(ctx, func() (int, error) {
		report, err := relay.RunOnce(ctx)
		if err == nil && report.Delivered != s.n {
			err = fmt.Errorf("%d of %d events delivered", report.Delivered, s.n)
		}
		return report.Delivered, err
	})
}

// config publishes to and consumes from queues through the default exchange. Topic i belongs to
// queue i.
func config(url, kind string, queues []string) wamqp.Config {
	c := amqp.DurableQueue(url)
	name := func(topic string) string {
		var i int
		_, _ = fmt.Sscanf(topic, "topic-%d", &i)
		return queues[i%len(queues)]
	}
	c.Queue.GenerateName = name
	c.Publish.GenerateRoutingKey = name
	c.Queue.Arguments = map[string]any{"x-queue-type": kind}
	return c
}

func topic(i, topics int) string { return fmt.Sprint("topic-", i%topics) }

// fillOutbox commits the events to measure.
func (s *stage) fillOutbox(ctx context.Context, outbox *producer.Outbox[pgx.Tx], topics int, key func(int) string) error {
	return s.fill(ctx, outbox, func(i int) producer.Event { return event(topic(i, topics), key(i), "order", 0, payload) })
}

// fill commits the events to measure, 1,000 in a transaction, with versions of their own.
func (s *stage) fill(ctx context.Context, outbox *producer.Outbox[pgx.Tx], event func(i int) producer.Event) error {
	defer s.spend("events")()
	base := time.Now().UnixNano() // the outbox may hold events of an earlier measurement
	for at := 0; at < s.n; at += 1000 {
		events := make([]producer.Event, min(1000, s.n-at))
		for i := range events {
			events[i] = event(at + i)
			events[i].Version = base + int64(at+i)
		}
		err := outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			_, err := w.Write(ctx, events...)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// holdSnapshot makes another session hold a snapshot while the variant is measured.
func holdSnapshot(ctx context.Context, s *stage) error {
	conn, err := pgx.Connect(ctx, s.databaseURL)
	if err != nil {
		return hidden(err)
	}
	s.later(func() { _ = conn.Close(context.WithoutCancel(ctx)) })
	_, err = conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class")
	return err
}
