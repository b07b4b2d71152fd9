package lineage_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/lineage"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/transport/amqp"
)

// service is a service with a database of its own. Its process is stopped and started again, and its
// connections are cut, at random.
type service struct {
	name   string
	topic  string
	writes []string // topics that its handler writes, in order
	url    string
	looks  *pgxpool.Pool // of the test, whose connections are not cut
	store  *postgres.Store
	prefix string // of exchanges and queues
	broker string
}

func newService(t *testing.T, prefix, name, topic string, writes ...string) *service {
	t.Helper()
	s := &service{name: name, topic: topic, writes: writes, url: testenv.Postgres(t), prefix: prefix, broker: testenv.AMQPURL(t)}
	s.looks = s.pool(t, "test")
	if _, err := postgres.Migrate(t.Context(), s.looks, postgres.Config{}); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.store, err = postgres.New(s.looks, postgres.Config{}); err != nil {
		t.Fatal(err)
	}
	if _, err = s.looks.Exec(t.Context(), `CREATE TABLE effects (request text NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.looks.Close)
	subscriber, err := amqp.NewSubscriber(amqp.SubscriberConfig{AMQP: s.exchange(name), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(subscriber.SubscribeInitialize(topic), subscriber.Close()); err != nil {
		t.Fatal(err)
	}
	return s
}

var quiet = slog.New(slog.DiscardHandler)

// exchange is one exchange for each topic, and a queue of it for each service.
func (s *service) exchange(queue string) wamqp.Config {
	c := amqp.DurablePubSub(s.broker, queue)
	c.Exchange.GenerateName = func(topic string) string { return s.prefix + topic }
	if queue != "" {
		c.Queue.GenerateName = func(topic string) string { return s.prefix + topic + "." + queue }
	}
	return c
}

func (s *service) pool(t *testing.T, application string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(s.url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.RuntimeParams["application_name"] = application
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

var errChance = errors.New("fails by chance")

// handle records that a request was here, and writes the events that follow.
func (s *service) handle(ctx context.Context, w *consumer.Work[pgx.Tx], msg *message.Message) error {
	request := string(msg.Payload)
	if _, err := w.DB().Exec(ctx, `INSERT INTO effects VALUES ($1)`, request); err != nil {
		return err
	}
	for _, topic := range s.writes {
		if _, err := w.Write(ctx, producer.Event{Topic: topic, Key: request, Payload: msg.Payload}); err != nil {
			return err
		}
	}
	if rand.IntN(10) == 0 {
		return errChance
	}
	return nil
}

// run is one process of the service: it runs until ctx ends or its database is gone.
func (s *service) run(t *testing.T, ctx context.Context) error {
	pool := s.pool(t, "service")
	defer pool.Close()
	store, err := postgres.New(pool, postgres.Config{})
	if err != nil {
		return err
	}
	publisher, err := amqp.NewPublisher(amqp.PublisherConfig{AMQP: s.exchange(""), Logger: quiet})
	if err != nil {
		return err
	}
	defer func() { _ = publisher.Close() }()
	subscriber, err := amqp.NewSubscriber(amqp.SubscriberConfig{AMQP: s.exchange(s.name), Logger: quiet})
	if err != nil {
		return err
	}
	defer func() { _ = subscriber.Close() }()
	out, err := producer.New(store, producer.Config{Name: s.name, Logger: quiet})
	if err != nil {
		return err
	}
	sender, err := relay.New(out, publisher, relay.Config{
		LeaseTTL: time.Second, PollMin: 5 * time.Millisecond, PollMax: 50 * time.Millisecond, Logger: quiet,
		DropUnroutable: []string{"stock.counted"}, // which nobody expects
	})
	if err != nil {
		return err
	}
	in, err := consumer.New(store, consumer.Config{Service: s.name, PollInterval: 50 * time.Millisecond, Logger: quiet}, consumer.WithOutbox(out))
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	_, err = in.AddHandler(router, "handle", s.topic, subscriber, s.handle, consumer.HandlerConfig{
		Retry:  consumer.RetryConfig{QuickAttempts: 1, MaxAttempts: 100},
		Parked: consumer.ParkedConfig{MinBackoff: 5 * time.Millisecond, MaxBackoff: 50 * time.Millisecond},
	})
	if err != nil {
		return err
	}
	return boxpair.Group{Outbox: out, Relay: sender, Inbox: in, Router: router, NoJanitor: true, Logger: quiet}.Run(ctx)
}

// live runs processes of the service one after the other until ctx ends. Each lives a tenth longer than
// the one before: on a busy machine the first ones end before they have done anything.
func (s *service) live(t *testing.T, ctx context.Context) {
	for longer := 1.0; ctx.Err() == nil; longer *= 1.1 {
		life, end := context.WithTimeout(ctx, time.Duration(longer*float64(200+rand.IntN(800)))*time.Millisecond)
		if err := s.run(t, life); err != nil && life.Err() == nil {
			t.Logf("%s ended: %v", s.name, err) // with its connections
		}
		end()
	}
}

// cut cuts the connections of the service at random times until ctx ends, less and less often.
func (s *service) cut(t *testing.T, ctx context.Context) {
	for longer := 1.0; ; longer *= 1.05 {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(longer*float64(50+rand.IntN(300))) * time.Millisecond):
		}
		_, err := s.looks.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'service' AND random() < 0.3`)
		if err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	}
}

// effects counts the effects of a request.
func (s *service) effects(t *testing.T, request string) (n int) {
	if err := s.looks.QueryRow(t.Context(), `SELECT count(*) FROM effects WHERE request = $1`, request).Scan(&n); err != nil {
		t.Error(err)
	}
	return n
}

// TestAllEffectsAreThereWhenTheWaitEnds places orders, which are reserved, twice charged and
// confirmed by three services whose processes and connections do not last, and looks at the effects
// as soon as WaitDone returns, and at the reservation as soon as WaitApplied returns.
func TestAllEffectsAreThereWhenTheWaitEnds(t *testing.T) {
	t.Parallel()
	prefix := testenv.Name(t) + "."
	orders := newService(t, prefix, "orders", "payment.charged")
	stock := newService(t, prefix, "stock", "order.placed", "stock.reserved", "stock.reserved", "stock.counted")
	payment := newService(t, prefix, "payment", "stock.reserved", "payment.charged")
	var cfg lineage.Config
	for _, s := range []*service{orders, stock, payment} {
		cfg.Outboxes = append(cfg.Outboxes, lineage.Outbox{Name: s.name, Events: s.store})
		cfg.Inboxes = append(cfg.Inboxes, lineage.Inbox{Name: s.name, Messages: s.store})
	}
	cfg.Consumers = map[string][]string{"stock/handle": {"order.placed"}, "payment/handle": {"stock.reserved"}, "orders/handle": {"payment.*"}}
	cfg.MaxInterval = 20 * time.Millisecond
	l, err := lineage.New(cfg)
	if err != nil {
		t.Fatal(err)
	}

	ctx, stop := context.WithCancel(t.Context())
	var parts, requests sync.WaitGroup
	defer parts.Wait()
	defer stop()
	for _, s := range []*service{orders, stock, payment} {
		parts.Go(func() { s.live(t, ctx) })
		parts.Go(func() { s.cut(t, ctx) })
	}
	out, err := producer.New(orders.store, producer.Config{Name: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	for customer := range 8 {
		requests.Go(func() {
			for n := range 5 {
				request := fmt.Sprintf("order %d of customer %d", n, customer)
				id := place(t, out, request)
				requests.Go(func() { stock.waitApplied(t, l, id, request) })
				wait, end := context.WithTimeout(t.Context(), 3*time.Minute)
				err := l.WaitDone(wait, id)
				end()
				if err != nil {
					t.Errorf("%s: %v", request, err)
					return
				}
				if s, p, o := stock.effects(t, request), payment.effects(t, request), orders.effects(t, request); s != 1 || p != 2 || o != 2 {
					t.Errorf("%s: done with %d reservations, %d charges and %d confirmations, want 1, 2 and 2", request, s, p, o)
				}
			}
		})
	}
	requests.Wait()
}

// waitApplied waits until the service has applied the event of a request, which has one effect.
func (s *service) waitApplied(t *testing.T, l *lineage.Lineage, id uuid.UUID, request string) {
	wait, end := context.WithTimeout(t.Context(), 3*time.Minute)
	defer end()
	if err := l.WaitApplied(wait, id, s.name+"/handle"); err != nil {
		t.Errorf("%s: %v", request, err)
	} else if n := s.effects(t, request); n != 1 {
		t.Errorf("%s: applied with %d effects, want 1", request, n)
	}
}

func place(t *testing.T, out *producer.Outbox[pgx.Tx], request string) (id uuid.UUID) {
	err := out.Transact(t.Context(), func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
		written, err := w.Write(ctx, producer.Event{Topic: "order.placed", Key: request, Random: true, Payload: []byte(request)})
		if err == nil {
			id = written[0]
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return id
}
