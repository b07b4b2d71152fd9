package brokers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	natspkg "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/amqp"
)

const (
	storedKeys = 8
	storedMany = 160
	// storedPause is how long a handler takes.
	storedPause = 20 * time.Millisecond
	// storedWait is how long handlers wait for each other at most.
	storedWait = 20 * time.Second
)

// source is a transport with stock subscribers, which have one message in flight (of a partition).
type source struct {
	publish   func(topic string, messages ...*message.Message) error
	subscribe func() (message.Subscriber, error)
	// shared tells that two processes may read at the same time without losing the order of keys.
	shared bool
}

// shop is a service in a database, with what its handlers did.
type shop struct {
	t     *testing.T
	url   string
	admin *pgxpool.Pool
	topic string

	// together is how many handlers wait for each other, so that the number of handlers at once does
	// not depend on the speed of the machine. With 0, a handler takes storedPause.
	together int
	met      chan struct{} // closed when together handlers ran at once

	mu   sync.Mutex
	now  map[string]int // running handlers by key
	most int            // running handlers at once
}

func newShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{t: t, url: testenv.Postgres(t), topic: "orders" + uuid.NewString()[:8], now: make(map[string]int), met: make(chan struct{})}
	s.admin = s.pool("admin")
	_, err := postgres.Migrate(t.Context(), s.admin, postgres.Config{})
	ok(t, err)
	_, err = s.admin.Exec(t.Context(), `CREATE TABLE effects (id bigint GENERATED ALWAYS AS IDENTITY, key text NOT NULL, n integer NOT NULL)`)
	ok(t, err)
	return s
}

func (s *shop) pool(name string) *pgxpool.Pool {
	s.t.Helper()
	cfg, err := pgxpool.ParseConfig(s.url)
	ok(s.t, err)
	cfg.MaxConns, cfg.ConnConfig.RuntimeParams["application_name"] = 24, name
	pool, err := pgxpool.NewWithConfig(s.t.Context(), cfg)
	ok(s.t, err)
	s.t.Cleanup(pool.Close)
	return pool
}

func (s *shop) handle(ctx context.Context, w *consumer.Work[pgx.Tx], msg *message.Message) error {
	key := w.Event().Key
	s.enter(key)
	defer s.leave(key)
	wait := time.After(storedPause)
	if s.together > 0 {
		wait = time.After(storedWait)
	}
	select {
	case <-s.met:
	case <-wait:
	case <-ctx.Done():
		return ctx.Err()
	}
	_, err := w.DB().Exec(ctx, `INSERT INTO effects (key, n) VALUES ($1, $2::text::integer)`, key, string(msg.Payload))
	return err
}

func (s *shop) enter(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now[key]++
	running := 0
	for _, n := range s.now {
		running += n
	}
	if running <= s.most {
		return
	}
	s.most = running
	if running == s.together {
		close(s.met)
	}
}

func (s *shop) leave(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now[key]--
}

// replica is a process of the service, but for its memory.
type replica struct {
	shop   *shop
	name   string
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// start starts a replica, which reads from the source unless it is nil.
func (s *shop) start(name string, from *source, cfg consumer.HandlerConfig) *replica {
	s.t.Helper()
	store, err := postgres.New(s.pool(name), postgres.Config{})
	ok(s.t, err)
	in, err := consumer.New(store, consumer.Config{Service: "shop", PollInterval: 200 * time.Millisecond, MaxHold: time.Second, Logger: slog.New(slog.DiscardHandler)})
	ok(s.t, err)
	cfg.Order.ByKey = true
	h, err := in.Handle("reserve", s.handle, cfg)
	ok(s.t, err)
	ctx, cancel := context.WithCancel(s.t.Context())
	r := &replica{shop: s, name: name, cancel: cancel}
	s.t.Cleanup(func() { cancel(); r.wg.Wait() })
	r.wg.Go(func() { _ = in.Run(ctx) })
	if from == nil {
		return r
	}
	sub, err := from.subscribe()
	ok(s.t, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 3 * time.Second}, watermill.NopLogger{})
	ok(s.t, err)
	router.AddConsumerHandler("reserve", s.topic, sub, h.Consume)
	r.wg.Go(func() {
		_ = router.Run(ctx)
		_ = sub.Close()
	})
	select {
	case <-router.Running():
	case <-ctx.Done():
	}
	return r
}

// crash ends all that a replica does, in the midst of its transactions.
func (r *replica) crash() {
	r.shop.t.Helper()
	r.cancel()
	for range 3 {
		_, err := r.shop.admin.Exec(r.shop.t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1`, r.name)
		ok(r.shop.t, err)
	}
	r.wg.Wait()
}

// publish publishes messages from one number to another; number i is of key i mod storedKeys.
func (s *shop) publish(from *source, at, to int) {
	s.t.Helper()
	for i := at; i < to; i++ {
		e := transport.Event{ID: uuid.New(), Topic: s.topic, Key: fmt.Sprint("key-", i%storedKeys), Payload: fmt.Append(nil, i), Stamp: time.Now()}
		e.Digest = transport.ContentDigest(&e)
		ok(s.t, from.publish(s.topic, e.Message()))
	}
}

// await waits until so many effects are committed.
func (s *shop) await(many int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for n := 0; n < many; {
		ok(s.t, s.admin.QueryRow(s.t.Context(), `SELECT count(*) FROM effects`).Scan(&n))
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.t.Fatalf("%d effects of %d", n, many)
		}
	}
}

// check checks that each message has one effect, in the order of its key.
func (s *shop) check(many int) {
	s.t.Helper()
	rows, err := s.admin.Query(s.t.Context(), `SELECT key, n FROM effects ORDER BY id`)
	ok(s.t, err)
	type effect struct {
		Key string
		N   int
	}
	effects, err := pgx.CollectRows(rows, pgx.RowToStructByPos[effect])
	ok(s.t, err)
	next := make(map[string]int)
	for _, e := range effects {
		if want := next[e.Key]; e.N/storedKeys != want {
			s.t.Errorf("effect of message %d of %s comes as number %d", e.N/storedKeys, e.Key, want)
		}
		next[e.Key]++
	}
	if len(effects) != many {
		s.t.Errorf("%d effects of %d messages", len(effects), many)
	}
}

// TestStoredFirst reads from transports that have one message in flight: many keys are handled at
// once, each in its order, while processes die and others take over.
func TestStoredFirst(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T, topic string) *source{
		"watermill-kafka": kafkaSource, "watermill-nats": natsSource, "watermill-amqp": rabbitSource,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			s.together = storedKeys - 2
			from := open(t, s.topic)
			stored := consumer.HandlerConfig{StoreFirst: true}

			s.publish(from, 0, storedMany/2)
			first := s.start("first", from, stored)
			var second *source
			if from.shared {
				second = from
			}
			helper := s.start("helper", second, stored) // if it must not read, it runs what the other stores
			s.await(storedMany / 8)
			first.crash()
			again := s.start("again", from, stored)
			s.publish(from, storedMany/2, storedMany)
			s.await(storedMany / 2)
			helper.crash()
			s.await(storedMany)
			s.check(storedMany)
			again.crash()
			if s.most < s.together {
				t.Errorf("%d handlers ran at once, with %d keys", s.most, storedKeys)
			}
		})
	}
}

// TestStoredFirstIsNotBoundByOneMessageInFlight compares with the direct way.
func TestStoredFirstIsNotBoundByOneMessageInFlight(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T, topic string) *source{"watermill-nats": natsSource, "watermill-amqp": rabbitSource} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			most := make(map[bool]int)
			for _, first := range []bool{false, true} {
				s := newShop(t)
				if first {
					s.together = storedKeys - 2
				}
				from := open(t, s.topic)
				s.publish(from, 0, storedMany/2)
				begun := time.Now()
				r := s.start("one", from, consumer.HandlerConfig{StoreFirst: first})
				s.await(storedMany / 2)
				t.Logf("StoreFirst %v: %d messages in %v, %d at once", first, storedMany/2, time.Since(begun).Round(time.Millisecond), s.most)
				r.crash()
				s.check(storedMany / 2)
				most[first] = s.most
			}
			if most[false] != 1 || most[true] < storedKeys-2 {
				t.Errorf("%d handlers ran at once directly and %d stored first, with %d keys", most[false], most[true], storedKeys)
			}
		})
	}
}

func kafkaSource(t *testing.T, topic string) *source {
	t.Helper()
	k := newKafka(t)
	ok(t, k.prepare(t.Context(), topic))
	opened, err := k.safe().Open(t.Context(), k.address())
	ok(t, err)
	t.Cleanup(func() { _ = opened.Close() })
	return &source{publish: opened.Publish, shared: true, subscribe: func() (message.Subscriber, error) {
		config := kafka.DefaultSaramaSubscriberConfig()
		config.Version = sarama.V2_0_0_0 // above, sarama cannot read the answers of a kfake to a group
		config.Consumer.Offsets.Initial = sarama.OffsetOldest
		config.Consumer.Group.Session.Timeout, config.Consumer.Group.Heartbeat.Interval = 6*time.Second, 500*time.Millisecond
		config.Net.Proxy.Enable, config.Net.Proxy.Dialer = true, through(k.address())
		return kafka.NewSubscriber(kafka.SubscriberConfig{
			Brokers: []string{k.address()}, ConsumerGroup: "shop", Unmarshaler: kafka.DefaultMarshaler{}, OverwriteSaramaConfig: config,
		}, watermill.NopLogger{})
	}}
}

// natsSource has one message in flight in all, so that a redelivered message comes before its
// successors.
func natsSource(t *testing.T, topic string) *source {
	t.Helper()
	j := newJetStream(t, natspkg.JSONMarshaler{})
	ok(t, j.prepare(t.Context(), topic))
	opened, err := j.stable().Open(t.Context(), j.address())
	ok(t, err)
	t.Cleanup(func() { _ = opened.Close() })
	return &source{publish: opened.Publish, subscribe: func() (message.Subscriber, error) {
		return natspkg.NewSubscriber(natspkg.SubscriberConfig{
			URL: "nats://" + j.address(), NatsOptions: options(), Unmarshaler: j.marshaler, QueueGroupPrefix: "shop",
			SubscribersCount: 1, CloseTimeout: 2 * time.Second, AckWaitTimeout: 3 * time.Second, SubscribeTimeout: 10 * time.Second,
			JetStream: natspkg.JetStreamConfig{
				DurablePrefix:    "shop",
				SubscribeOptions: []nats.SubOpt{nats.MaxAckPending(1), nats.DeliverAll(), nats.AckExplicit()},
			},
		}, watermill.NopLogger{})
	}}
}

func rabbitSource(t *testing.T, topic string) *source {
	t.Helper()
	config := amqp.DurableQueue(testenv.AMQPURL(t))
	config.Consume.Qos.PrefetchCount = 1
	publisher, err := wamqp.NewPublisher(config, watermill.NopLogger{})
	ok(t, err)
	sub, err := wamqp.NewSubscriber(config, watermill.NopLogger{})
	ok(t, err)
	ok(t, errors.Join(sub.SubscribeInitialize(topic), sub.Close())) // declares the queue
	t.Cleanup(func() {
		conn, err := amqp091.Dial(config.Connection.AmqpURI)
		ok(t, err)
		defer conn.Close()
		ch, err := conn.Channel()
		ok(t, err)
		_, err = ch.QueueDelete(topic, false, false, false)
		ok(t, errors.Join(err, publisher.Close()))
	})
	return &source{publish: publisher.Publish, subscribe: func() (message.Subscriber, error) {
		return wamqp.NewSubscriber(config, watermill.NopLogger{})
	}}
}
