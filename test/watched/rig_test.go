package watched

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/audit"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/consumer/effects"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/telemetry"
	"github.com/boxpair/boxpair/telemetry/prometheus"
	"github.com/boxpair/boxpair/test/shop"
	"github.com/boxpair/boxpair/transport"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(status int) {
		shop.Cleanup()
		os.Exit(status)
	}))
}

// patience bounds the waits of a test, on a machine that is busy with many tests.
const patience = time.Minute

type work = consumer.Work[pgx.Tx]

// rig is a service that writes and receives, with its metrics, on a database of its own.
type rig struct {
	t         *testing.T
	command   string
	variables map[string]string // of the runbook
	relays    []func()

	pool    *pgxpool.Pool
	store   *postgres.Store
	outbox  *producer.Outbox[pgx.Tx]
	inbox   *consumer.Inbox[pgx.Tx]
	handler *consumer.Handler[pgx.Tx]
	charges *effects.Handler[pgx.Tx]
	tel     *telemetry.Telemetry
	metrics *prometheus.Metrics
	topic   string

	mu     sync.Mutex
	broken error  // of the handler, and of the other side of effects
	broker answer // of the broker to the service's relay
}

// answer is how the broker of a service takes a message. The zero answer is a confirmation.
type answer struct {
	refuses bool
	outcome transport.Outcome // of what is refused
	only    string            // refuse only messages of this key
	deliver bool              // hand confirmed messages to the handler
}

func newRig(t *testing.T, command string) *rig {
	t.Helper()
	url := testenv.Postgres(t)
	r := &rig{t: t, command: command, topic: testenv.Name(t)}
	r.variables = map[string]string{
		"OUTBOX": url, "INBOX": url, "AMQP": testenv.AMQPURL(t), "TOPIC": r.topic, "CONSUMER": "stock/reserve", "ID": uuid.NewString(),
	}
	var err error
	r.pool, err = pgxpool.New(context.Background(), url)
	ok(t, err)
	t.Cleanup(r.pool.Close)
	_, err = postgres.Migrate(t.Context(), r.pool, postgres.Config{})
	ok(t, err)
	r.store, err = postgres.New(r.pool, postgres.Config{})
	ok(t, err)
	r.outbox, err = producer.New(r.store, producer.Config{Name: "shop"})
	ok(t, err)
	r.inbox, err = consumer.New(r.store, consumer.Config{Service: "stock"})
	ok(t, err)
	r.handler, err = r.inbox.Handle("reserve", func(context.Context, *work, *message.Message) error { return r.fault() },
		consumer.HandlerConfig{Topic: r.topic, Retry: consumer.RetryConfig{QuickAttempts: 1}})
	ok(t, err)
	r.charges, err = effects.Handle(r.inbox, "charge", effects.Effect[pgx.Tx, string, any]{
		Prepare: func(context.Context, *work, *message.Message) (string, error) { return "", nil },
		Do:      func(context.Context, uuid.UUID, string) (any, error) { return "done", r.fault() },
		Finish:  func(context.Context, *work, string, any) error { return nil },
	}, effects.Config{Handler: consumer.HandlerConfig{Topic: r.topic}})
	ok(t, err)
	r.measure()
	t.Cleanup(r.removeQueue)
	return r
}

// measure watches everything.
func (r *rig) measure() {
	r.t.Helper()
	var err error
	r.metrics, err = prometheus.New(prometheus.Config{OnlyInstruments: true})
	ok(r.t, err)
	r.tel, err = telemetry.New(telemetry.Config{MeterProvider: r.metrics.Provider(), StatsTimeout: patience})
	ok(r.t, err)
	r.t.Cleanup(func() { ok(r.t, r.tel.Shutdown(context.Background())) })
	ok(r.t, r.tel.WatchOutbox("shop", r.outbox))
	ok(r.t, r.tel.WatchConsumer(r.handler))
	ok(r.t, r.tel.WatchConsumer(r.charges))
}

// removeQueue removes what relays have declared.
func (r *rig) removeQueue() {
	conn, err := amqp091.Dial(r.variables["AMQP"])
	ok(r.t, err)
	defer conn.Close()
	channel, err := conn.Channel()
	ok(r.t, err)
	_, err = channel.QueueDelete(r.topic, false, false, false)
	ok(r.t, err)
}

// breaks has the handler, and the other side of effects, fail with err; nil repairs them.
func (r *rig) breaks(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = err
}

func (r *rig) fault() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.broken
}

// answers sets what the broker answers.
func (r *rig) answers(a answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broker = a
}

// write writes events of a topic, each with a key of its own, and returns the ID of the last.
func (r *rig) write(topic string, n int) (id uuid.UUID) {
	r.t.Helper()
	events := make([]producer.Event, n)
	for i := range events {
		key := strconv.Itoa(i)
		events[i] = producer.Event{Topic: topic, Key: key, Source: uuid.NewString(), Version: 1, Payload: []byte("{}")}
	}
	ok(r.t, r.outbox.Transact(r.t.Context(), func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
		written, err := w.Write(ctx, events...)
		if err == nil {
			id = written[n-1]
		}
		return err
	}))
	return id
}

// send runs a relay in the service, on its broker, until the test ends.
func (r *rig) send() {
	r.t.Helper()
	one, err := relay.New(r.outbox, r.tel.Publisher(sender{r}), relay.Config{
		MaxAttempts: 3, LeaseTTL: 2 * time.Second, Backoff: relay.Backoff{Initial: 100 * time.Millisecond, Max: time.Second},
	})
	ok(r.t, err)
	ok(r.t, r.tel.WatchRelay("relay", one))
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = one.Run(ctx) }) // it ends with ctx
	r.t.Cleanup(func() {
		stop()
		running.Wait()
	})
}

// sender is the service's way to its broker.
type sender struct{ r *rig }

func (s sender) Send(_ context.Context, topic string, msg *message.Message, done func(transport.Result)) {
	s.r.mu.Lock()
	a := s.r.broker
	s.r.mu.Unlock()
	if topic == s.r.topic && a.refuses && (a.only == "" || a.only == msg.Metadata[transport.MetaKey]) {
		done(transport.Result{Outcome: a.outcome, Err: errors.New("queue is full")})
		return
	}
	if a.deliver {
		if err := s.r.handler.Consume(msg.Copy()); err != nil {
			done(transport.Result{Outcome: transport.Unavailable, Err: err})
			return
		}
	}
	done(transport.Result{Outcome: transport.Confirmed})
}

func (s sender) Route(topic string) string { return topic }

func (s sender) Publish(string, ...*message.Message) error { return errors.New("not called") }

func (s sender) Close() error { return nil }

// receive has a handler take a message, and returns its dispatch ID.
func (r *rig) receive(consume func(*message.Message) error, e transport.Event) uuid.UUID {
	r.t.Helper()
	if e.ID == uuid.Nil {
		e.ID = uuid.New()
	}
	if e.Stamp.IsZero() {
		e.Stamp = time.Now()
	}
	e.Topic, e.Key = r.topic, "order 42"
	ok(r.t, consume(e.Message()))
	return e.ID
}

// once does the work of the inbox once.
func (r *rig) once() {
	r.t.Helper()
	ok(r.t, r.inbox.RunOnce(r.t.Context()))
}

// audit compares the outbox with the inbox, and measures the result.
func (r *rig) audit() {
	r.t.Helper()
	source, err := postgres.NewAuditor(r.pool, postgres.AuditorConfig{})
	ok(r.t, err)
	one, err := audit.New(audit.Config{
		Outboxes: []audit.NamedOutbox{{Name: "shop", Outbox: source}}, Inboxes: []audit.NamedInbox{{Name: "stock", Inbox: source}},
		Expect: []audit.Expectation{{Consumer: "stock/reserve", Topics: []string{r.topic}}}, Grace: time.Millisecond,
	})
	ok(r.t, err)
	report, err := one.Run(r.t.Context())
	ok(r.t, err)
	r.tel.Audited(r.t.Context(), report)
}

// scrape returns the metrics of the service.
func (r *rig) scrape() string {
	w := httptest.NewRecorder()
	r.metrics.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String()
}

// metric returns the sum of a metric with labels, such as boxpair_state="dead", and -1 without any.
func (r *rig) metric(name string, labels ...string) float64 {
	r.t.Helper()
	sum, there := 0.0, false
	for line := range strings.Lines(r.scrape()) {
		rest, is := strings.CutPrefix(strings.TrimSpace(line), name+"{")
		for _, label := range labels {
			is = is && strings.Contains(rest, label)
		}
		if !is {
			continue
		}
		n, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		ok(r.t, err)
		sum, there = sum+n, true
	}
	if !there {
		return -1
	}
	return sum
}

var _ transport.Sender = sender{}
