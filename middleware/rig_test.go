package middleware_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/middleware"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a service on a database in a file: an inbox, an outbox, a broker and a Watermill router.
type rig struct {
	t      *testing.T
	db     *sql.DB
	store  *sqlite.Store
	outbox *producer.Outbox[*sql.Tx]
	inbox  *consumer.Inbox[*sql.Tx]
	broker *memory.Broker
	router *message.Router
	config middleware.RouterConfig
}

// plainHandler is how a Watermill handler of these tests is added to a router with an inbox.
type plainHandler struct {
	Name         string
	PublishTopic string
	Key          func(topic string, msg *message.Message) string
	NoKey        bool
	Handler      consumer.HandlerConfig
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t}
	var err error
	if r.db, err = sqlite.Open(filepath.Join(t.TempDir(), "stock.db")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.db.Close() })
	if _, err := sqlite.Migrate(t.Context(), r.db, sqlite.Config{}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.db.Exec(`CREATE TABLE effects (id TEXT NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	if r.store, err = sqlite.New(r.db, sqlite.Config{}); err != nil {
		t.Fatal(err)
	}
	if r.outbox, err = producer.New(r.store, producer.Config{Name: "stock"}); err != nil {
		t.Fatal(err)
	}
	if r.broker, err = memory.New(memory.Config{CloseTimeout: 5 * time.Second}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.broker.Close() })
	r.restart(true)
	return r
}

// restart makes a new inbox and a new router, as a new process does.
func (r *rig) restart(withOutbox bool) {
	r.t.Helper()
	var options []consumer.Option[*sql.Tx]
	if withOutbox {
		options = append(options, consumer.WithOutbox(r.outbox))
	}
	var err error
	if r.inbox, err = consumer.New(r.store, consumer.Config{Service: "stock"}, options...); err != nil {
		r.t.Fatal(err)
	}
	r.config = middleware.RouterConfig{Handlers: make(map[string]consumer.HandlerConfig)}
	if r.router, err = message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{}); err != nil {
		r.t.Fatal(err)
	}
}

// add adds a handler to the router.
func (r *rig) add(h plainHandler, fn message.HandlerFunc, around ...message.HandlerMiddleware) {
	r.t.Helper()
	r.config.Handlers[h.Name] = h.Handler
	r.config.Publisher.Key, r.config.Publisher.NoKey = h.Key, h.NoKey
	r.router.AddHandler(h.Name, "orders", r.broker.Subscriber(h.Name), h.PublishTopic, noPublisher{r.t}, fn).AddMiddleware(around...)
}

// counting returns a middleware that counts its calls.
func counting(calls *atomic.Int64) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			calls.Add(1)
			return next(msg)
		}
	}
}

// run runs the router, with the inbox around its handlers, until the returned function is called.
func (r *rig) run() (stop func()) {
	r.t.Helper()
	router := r.router
	router.AddPlugin(middleware.Router(r.inbox, r.config))
	done := make(chan error, 1)
	go func() { done <- router.Run(context.Background()) }()
	select {
	case <-router.Running():
	case err := <-done:
		r.t.Fatalf("run the router: %v", err)
	}
	return func() {
		r.t.Helper()
		if err := router.Close(); err != nil {
			r.t.Errorf("close the router: %v", err)
		}
		if err := <-done; err != nil {
			r.t.Errorf("run the router: %v", err)
		}
	}
}

// publish publishes messages and waits until every subscription has acknowledged them.
func (r *rig) publish(msgs ...*message.Message) {
	r.t.Helper()
	if err := r.broker.Publish("orders", msgs...); err != nil {
		r.t.Fatalf("publish: %v", err)
	}
}

func (r *rig) number(query string) (n int) {
	r.t.Helper()
	if err := r.db.QueryRow(query).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

func (r *rig) wantNumber(query string, want int) {
	r.t.Helper()
	if got := r.number(query); got != want {
		r.t.Errorf("%s: %d, want %d", query, got, want)
	}
}

// waitFor waits until cond holds.
func (r *rig) waitFor(cond func() bool) {
	r.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatal("waited for too long")
		}
	}
}

// effect is the change that the plain handlers of these tests make in their transaction.
func effect(msg *message.Message) error {
	w, ok := middleware.WorkFrom[*sql.Tx](msg.Context())
	if !ok {
		return fmt.Errorf("no work in the context of %s", msg.UUID)
	}
	_, err := w.DB().ExecContext(msg.Context(), `INSERT INTO effects VALUES (?)`, msg.UUID)
	return err
}

// noPublisher is the router's publisher. It must get no messages.
type noPublisher struct{ t *testing.T }

func (p noPublisher) Publish(topic string, msgs ...*message.Message) error {
	p.t.Errorf("the router published %d messages to %s", len(msgs), topic)
	return nil
}

func (p noPublisher) Close() error { return nil }

func number(n int64) uuid.UUID { return idgen.Of("shop", "order", n, 0) }

// order returns the n-th message of the tests.
func order(n int64) *message.Message {
	e := transport.Event{ID: number(n), Topic: "orders", Key: "k", Payload: []byte("x"), CorrelationID: "conversation", Stamp: time.Now()}
	e.Digest = transport.ContentDigest(&e)
	return e.Message()
}
