package middleware_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wm "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/middleware"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
)

var errHandler = errors.New("stock is counted")

// reserve is a plain handler: it changes its database and returns two messages.
func reserve(msg *message.Message) ([]*message.Message, error) {
	if err := effect(msg); err != nil {
		return nil, err
	}
	a, b := message.NewMessage("any", []byte("a")), message.NewMessage("any", []byte("b"))
	return []*message.Message{a, b}, nil
}

func keyOf(_ string, msg *message.Message) string { return "key-" + string(msg.Payload) }

func TestPlainHandlerBecomesAConsumer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.add(plainHandler{Name: "reserve", PublishTopic: "reserved", Key: keyOf}, reserve)
	stop := r.run()
	defer stop()
	for range 3 { // the second and third are copies
		r.publish(order(1), order(2))
	}
	r.wantNumber(`SELECT count(*) FROM effects`, 2)

	// The returned messages are in the outbox, under child IDs.
	queued, err := r.store.Fetch(t.Context(), everything())
	if err != nil || len(queued) != 4 {
		t.Fatalf("%d events in the outbox, %v; want 4", len(queued), err)
	}
	want := map[string]string{}
	for _, n := range []int64{1, 2} {
		want[idgen.Child("stock/reserve", number(n), 0).String()] = "key-a"
		want[idgen.Child("stock/reserve", number(n), 1).String()] = "key-b"
	}
	for _, q := range queued {
		if q.Topic != "reserved" || q.CorrelationID != "conversation" || q.Key != want[q.ID.String()] {
			t.Errorf("event %s: topic %q, key %q, correlation %q", q.ID, q.Topic, q.Key, q.CorrelationID)
		}
	}
}

// everything returns the ranges of the whole queue.
func everything() []outbox.Range {
	ranges := make([]outbox.Range, idgen.Shards)
	for i := range ranges {
		ranges[i] = outbox.Range{Shard: i, Limit: 100}
	}
	return ranges
}

func TestFailedAttemptLeavesNoMessages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var tries atomic.Int64
	r.add(plainHandler{Name: "reserve", PublishTopic: "reserved", NoKey: true}, func(msg *message.Message) ([]*message.Message, error) {
		produced, err := reserve(msg)
		if tries.Add(1) < 3 {
			return produced, errHandler
		}
		return produced, err
	})
	stop := r.run()
	defer stop()
	r.publish(order(1))
	r.wantNumber(`SELECT count(*) FROM effects`, 1)
	r.wantNumber(`SELECT count(*) FROM boxpair_outbox_events`, 2)
	if n := tries.Load(); n != 3 {
		t.Errorf("committed by attempt %d, and the first two failed", n)
	}
}

func TestReturnedMessagesWithoutAnOutboxAreRefusedAndNothingIsCommitted(t *testing.T) {
	t.Parallel()
	for name, withOutbox := range map[string]bool{"no outbox": false, "no topic": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.restart(withOutbox)
			r.add(plainHandler{Name: "reserve", Handler: consumer.HandlerConfig{Retry: consumer.RetryConfig{QuickAttempts: 1, MaxAttempts: 1}}}, reserve)
			stop := r.run()
			defer stop()
			r.publish(order(1))
			r.wantNumber(`SELECT count(*) FROM effects`, 0)
			found, err := r.inbox.ListParked(t.Context(), inbox.Filter{})
			if err != nil || len(found) != 1 || !strings.Contains(found[0].LastError, middleware.ErrNotCommitted.Error()) {
				t.Errorf("parked: %+v, %v", found, err)
			}
		})
	}
}

func TestBadConfigurationIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	noKey := producer.PublisherConfig{NoKey: true}
	for problem, cfg := range map[string]middleware.Config{
		"PublishTopic":      {Publisher: noKey},
		"Publisher.NoKey":   {PublishTopic: "x"},
		"NoKey":             {PublishTopic: "x", Publisher: producer.PublisherConfig{NoKey: true, Key: keyOf}},
		"OwnTransaction":    {PublishTopic: "x", Publisher: producer.PublisherConfig{NoKey: true, OwnTransaction: true}},
		"Timeout":           {Handler: consumer.HandlerConfig{Timeout: -1}},
		"function is nil":   {},
		`handler "wrong"`:   {PublishTopic: "x"},
		"without a key":     {PublishTopic: "x"},
		"Retry.MaxAttempts": {Handler: consumer.HandlerConfig{Retry: consumer.RetryConfig{MaxAttempts: -1}}},
	} {
		fn := reserve
		if problem == "function is nil" {
			fn = nil
		}
		if _, err := middleware.Wrap(r.inbox, "wrong", fn, cfg); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%s: %v", problem, err)
		}
	}
	if _, err := middleware.Wrap(r.inbox, "", reserve, middleware.Config{}); err == nil || !strings.Contains(err.Error(), "name") {
		t.Errorf("no name: %v", err)
	}
	r.restart(false)
	if _, err := middleware.Wrap(r.inbox, "a", reserve, middleware.Config{PublishTopic: "x", Publisher: noKey}); !errors.Is(err, consumer.ErrNoOutbox) {
		t.Errorf("topic without an outbox: %v", err)
	}
}

func TestParkedMessagesAreTakenUpAfterARestartWithoutTheBroker(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	fail := func(*message.Message) ([]*message.Message, error) { return nil, consumer.RetryAfter(0, errHandler) }
	cfg := plainHandler{Name: "reserve", PublishTopic: "reserved", Key: keyOf}
	r.add(cfg, fail)
	stop := r.run()
	r.publish(order(1))
	stop()
	r.wantNumber(`SELECT count(*) FROM boxpair_inbox_parked`, 1)

	r.restart(true)
	r.add(cfg, reserve)
	if err := r.inbox.RunOnce(t.Context()); err != nil { // the handler is not known before the router has started
		t.Fatal(err)
	}
	r.wantNumber(`SELECT count(*) FROM boxpair_inbox_parked WHERE attempts = 1`, 1)
	stop = r.run()
	defer stop()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.inbox.Run(ctx) }()
	r.waitFor(func() bool { return r.number(`SELECT count(*) FROM boxpair_inbox_parked`) == 0 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	r.wantNumber(`SELECT count(*) FROM effects`, 1)
	r.wantNumber(`SELECT count(*) FROM boxpair_outbox_events`, 2)
}

func TestHandlerFinishesWhileTheRouterCloses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	closing, begun := make(chan context.Context, 1), make(chan struct{})
	r.router.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			closing <- msg.Context()
			return next(msg)
		}
	})
	r.add(plainHandler{Name: "reserve"}, func(msg *message.Message) ([]*message.Message, error) {
		ctx := <-closing
		close(begun)
		<-ctx.Done() // the router closes
		return nil, effect(msg)
	})
	stop := r.run()
	published := make(chan error, 1)
	go func() { published <- r.broker.Publish("orders", order(1)) }()
	<-begun
	stop()
	if err := <-published; err != nil {
		t.Errorf("publish: %v", err)
	}
	r.wantNumber(`SELECT count(*) FROM effects`, 1)
}

func TestHandlerThatPassesItsMessageOnEmitsAChild(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.add(plainHandler{Name: "pass", PublishTopic: "passed", NoKey: true}, message.PassthroughHandler)
	stop := r.run()
	defer stop()
	m := order(1)
	m.Metadata["mine"] = "yes"
	r.publish(m)
	queued, err := r.store.Fetch(t.Context(), everything())
	if err != nil || len(queued) != 1 {
		t.Fatalf("%d events, %v", len(queued), err)
	}
	e := queued[0]
	if e.ID != idgen.Child("stock/pass", number(1), 0) || e.Headers["mine"] != "yes" || len(e.Headers) != 1 || e.Key != "" {
		t.Errorf("%s %v key %q", e.ID, e.Headers, e.Key)
	}
}

func TestMiddlewaresOfRouterAndHandlerRunOnceForADelivery(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var calls atomic.Int64
	r.router.AddMiddleware(counting(&calls))
	r.router.AddMiddleware(wm.CorrelationID, wm.Timeout(time.Minute),
		wm.Retry{MaxRetries: 2, InitialInterval: time.Millisecond}.Middleware)
	r.add(plainHandler{Name: "reserve", PublishTopic: "reserved", Key: keyOf}, reserve,
		wm.CorrelationID, wm.Timeout(time.Minute), wm.Recoverer, counting(&calls))
	stop := r.run()
	defer stop()
	r.publish(order(1), order(1))
	if n := calls.Load(); n != 4 {
		t.Errorf("%d calls of two middlewares for two deliveries", n)
	}
	r.wantNumber(`SELECT count(*) FROM effects`, 1)
	r.wantNumber(`SELECT count(*) FROM boxpair_outbox_events`, 2)
}

func TestWorkIsFoundUnderItsOwnTypeOnly(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.add(plainHandler{Name: "reserve"}, func(msg *message.Message) ([]*message.Message, error) {
		if _, ok := middleware.WorkFrom[pgx.Tx](msg.Context()); ok {
			t.Error("found under the type of another store")
		}
		w, ok := middleware.WorkFrom[*sql.Tx](msg.Context())
		if !ok || w.Message() != msg || w.Event().ID != number(1) {
			t.Error("not found under its own")
		}
		return nil, nil
	})
	if _, ok := middleware.WorkFrom[*sql.Tx](context.Background()); ok {
		t.Error("found outside of a handler")
	}
	stop := r.run()
	defer stop()
	r.publish(order(1))
}

// A middleware of the user's own runs the handler again, in a transaction that PostgreSQL has
// aborted. The error must say so, and name the way out.
func TestHandlerThatGoesOnInAnAbortedTransactionIsExplained(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := postgres.Migrate(t.Context(), pool, postgres.Config{}); err != nil {
		t.Fatal(err)
	}
	store, err := postgres.New(pool, postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	in, err := consumer.New(store, consumer.Config{Service: "stock"})
	if err != nil {
		t.Fatal(err)
	}
	handler, err := middleware.Wrap(in, "reserve", func(msg *message.Message) ([]*message.Message, error) {
		w, _ := middleware.WorkFrom[pgx.Tx](msg.Context())
		_, err := w.DB().Exec(msg.Context(), `SELECT * FROM no_such_table`)
		if err != nil {
			_, err = w.DB().Exec(msg.Context(), `SELECT 1`)
		}
		return nil, err
	}, middleware.Config{Handler: consumer.HandlerConfig{Retry: consumer.RetryConfig{MaxAttempts: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := handler(order(1)); err != nil {
		t.Fatal(err)
	}
	found, err := in.ListParked(t.Context(), inbox.Filter{})
	if err != nil || len(found) != 1 || !strings.Contains(found[0].LastError, "use a savepoint") {
		t.Errorf("parked: %+v, %v", found, err)
	}
}

// Watermill's own publishers set no digest, stamp or key, and its subscribers do not mark
// redelivered messages.
func TestStockPublisherAndSubscriberWork(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pubSub := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	r.router.AddConsumerHandler("reserve", "orders", pubSub, effect)
	stop := r.run()
	defer stop()
	for _, uuid := range []string{watermill.NewUUID(), watermill.NewShortUUID(), watermill.NewULID(), ""} {
		for range 2 {
			if err := pubSub.Publish("orders", message.NewMessage(uuid, []byte(uuid))); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.wantNumber(`SELECT count(*) FROM effects`, 1)
	r.wantNumber(`SELECT count(*) FROM boxpair_inbox_parked WHERE state = 'dead'`, 4) // without an ID, equal messages count as two
}
