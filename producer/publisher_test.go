package producer_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/transport"
)

func newPublisher(t *testing.T, outbox *producer.Outbox[*fakeTx], cfg producer.PublisherConfig) message.Publisher {
	t.Helper()
	p, err := outbox.Publisher(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// in returns a message whose context is ctx.
func in(ctx context.Context, payload string) *message.Message {
	return message.NewMessageWithContext(ctx, "m-"+payload, []byte(payload))
}

func TestPublisherSettingsThatExcludeEachOtherAreRefused(t *testing.T) {
	t.Parallel()
	outbox := newOutbox(t, &fakeEvents{}, producer.Config{})
	key := func(string, *message.Message) string { return "k" }
	identity := func(string, *message.Message) producer.Identity { return producer.Identity{} }
	for want, cfg := range map[string]producer.PublisherConfig{
		"Key or NoKey":          {Key: key, NoKey: true},
		"Identity or MessageID": {NoKey: true, Identity: identity, MessageID: true},
	} {
		if _, err := outbox.Publisher(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}

func TestPublisherFindsTheTransactionOfEachMessage(t *testing.T) {
	t.Parallel()
	store := &fakeEvents{}
	outbox := newOutbox(t, store, producer.Config{})
	publisher := newPublisher(t, outbox, producer.PublisherConfig{NoKey: true, MessageID: true})
	failed := errors.New("failed")
	for payload, err := range map[string]error{"committed": nil, "rolled back": failed} {
		got := outbox.Transact(t.Context(), func(ctx context.Context, _ *writer) error {
			return errors.Join(publisher.Publish("order", in(ctx, payload)), err)
		})
		if !errors.Is(got, err) {
			t.Fatal(got)
		}
	}
	if len(store.committed) != 1 || string(store.committed[0].Payload) != "committed" {
		t.Errorf("committed: %+v", store.committed)
	}

	tx := &fakeTx{}
	if err := publisher.Publish("order", in(outbox.WithTx(t.Context(), tx), "of the caller")); err != nil {
		t.Fatal(err)
	}
	cause := transport.Event{ID: uuid.New()}
	handled := &fakeTx{}
	publisher = newPublisher(t, outbox, producer.PublisherConfig{NoKey: true})
	ctx := outbox.Handling(handled, "stock/reserve", cause).Context(t.Context())
	if err := publisher.Publish("order", in(ctx, "first"), in(ctx, "second")); err != nil {
		t.Fatal(err)
	}
	if len(tx.records) != 1 || len(handled.records) != 2 || handled.records[1].ID != idgen.Child("stock/reserve", cause.ID, 1) {
		t.Errorf("records %+v and %+v", tx.records, handled.records)
	}
}

func TestMessageOutsideOfATransactionIsRefused(t *testing.T) {
	t.Parallel()
	store := &fakeEvents{}
	outbox := newOutbox(t, store, producer.Config{})
	cfg := producer.PublisherConfig{NoKey: true, MessageID: true}
	publisher := newPublisher(t, outbox, cfg)
	err := publisher.Publish("order", in(t.Context(), "x"))
	if !errors.Is(err, producer.ErrNoTransaction) || !strings.Contains(err.Error(), `"order"`) {
		t.Errorf("error %v", err)
	}
	if store.begun != 0 {
		t.Error("a transaction was begun")
	}

	cfg.OwnTransaction = true
	own := newPublisher(t, outbox, cfg)
	if err := own.Publish("order", in(t.Context(), "x"), in(t.Context(), "x")); err != nil {
		t.Fatal(err)
	}
	if store.begun != 1 || len(store.committed) != 2 {
		t.Errorf("%d transactions, %d events committed", store.begun, len(store.committed))
	}
	err = outbox.Transact(t.Context(), func(ctx context.Context, _ *writer) error {
		return own.Publish("order", in(ctx, "y")) // in this transaction
	})
	if err != nil {
		t.Fatal(err)
	}
	if store.begun != 2 {
		t.Errorf("%d transactions were begun", store.begun)
	}
}

// TestMessageOfAnotherOutboxForbidsTheCommit: the event would be lost if the error were ignored.
func TestMessageOfAnotherOutboxForbidsTheCommit(t *testing.T) {
	t.Parallel()
	for name, own := range map[string]bool{"refused": false, "nor in a transaction of its own": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := &fakeEvents{}
			outbox, other := newOutbox(t, store, producer.Config{}), newOutbox(t, store, producer.Config{Name: "other"})
			publisher := newPublisher(t, other, producer.PublisherConfig{NoKey: true, MessageID: true, OwnTransaction: own})
			err := outbox.Transact(t.Context(), func(ctx context.Context, w *writer) error {
				if _, err := w.Write(ctx, placed(1)); err != nil {
					return err
				}
				_ = publisher.Publish("order", in(ctx, "x"))
				return nil
			})
			if !errors.Is(err, producer.ErrNoTransaction) || !strings.Contains(err.Error(), `"other"`) || len(store.committed) != 0 {
				t.Errorf("error %v, %d events committed", err, len(store.committed))
			}
		})
	}
}

func TestMessagesOfTwoTransactionsAreNotPublishedTogether(t *testing.T) {
	t.Parallel()
	outbox := newOutbox(t, &fakeEvents{}, producer.Config{})
	publisher := newPublisher(t, outbox, producer.PublisherConfig{NoKey: true, MessageID: true, OwnTransaction: true})
	for _, other := range []context.Context{t.Context(), outbox.WithTx(t.Context(), &fakeTx{})} {
		tx := &fakeTx{}
		err := publisher.Publish("order", in(outbox.WithTx(t.Context(), tx), "x"), in(other, "y"))
		if err == nil || !strings.Contains(err.Error(), "message 1") || len(tx.records) != 0 {
			t.Errorf("error %v, %d events written", err, len(tx.records))
		}
	}
	store := &fakeEvents{}
	outbox = newOutbox(t, store, producer.Config{})
	publisher = newPublisher(t, outbox, producer.PublisherConfig{NoKey: true, MessageID: true})
	err := outbox.Transact(t.Context(), func(ctx context.Context, _ *writer) error {
		_ = publisher.Publish("order", in(ctx, "x"), in(t.Context(), "y"))
		return nil
	})
	if !errors.Is(err, producer.ErrNoTransaction) || len(store.committed) != 0 {
		t.Errorf("a transaction without one of its events: %v, %d committed", err, len(store.committed))
	}
}

func TestTransactionThatHasEndedTakesNoEvents(t *testing.T) {
	t.Parallel()
	store := &fakeEvents{}
	outbox := newOutbox(t, store, producer.Config{})
	publisher := newPublisher(t, outbox, producer.PublisherConfig{NoKey: true, MessageID: true, OwnTransaction: true})
	var kept context.Context
	var w *writer
	err := outbox.Transact(t.Context(), func(ctx context.Context, of *writer) error {
		kept, w = ctx, of
		return publisher.Publish("order", in(ctx, "x"), in(of.Context(ctx), "y"))
	})
	if err != nil || len(store.committed) != 2 {
		t.Fatal(err, store.committed)
	}
	_, byWrite := w.Write(t.Context(), placed(1))
	_, byWriter := outbox.Writer(kept)
	for what, err := range map[string]error{"Publish": publisher.Publish("order", in(kept, "z")), "Write": byWrite, "Writer": byWriter} {
		if !errors.Is(err, producer.ErrNoTransaction) || !strings.Contains(err.Error(), "has ended") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if len(store.committed) != 2 {
		t.Errorf("%d events committed", len(store.committed))
	}
}

// TestForeignNotesAreNoIdentity: what another process has noted on a message, which is passed on,
// would make an event of one that was written before.
func TestForeignNotesAreNoIdentity(t *testing.T) {
	t.Parallel()
	outbox, tx := newOutbox(t, &fakeEvents{}, producer.Config{}), &fakeTx{}
	cause := transport.Event{ID: uuid.New()}
	msg := in(outbox.Handling(tx, "pass", cause).Context(t.Context()), "x")
	for _, name := range []string{"key", "source", "version", "idempotency-key"} {
		for _, process := range []string{"", "-", uuid.NewString() + "-"} {
			msg.Metadata[transport.LocalPrefix+process+name] = "1"
		}
	}
	if err := newPublisher(t, outbox, producer.PublisherConfig{NoKey: true}).Publish("order", msg); err != nil {
		t.Fatal(err)
	}
	if r := tx.records[0]; r.ID != idgen.Child("pass", cause.ID, 0) || r.Key != "" || len(r.Headers) > 0 {
		t.Errorf("record %+v", r)
	}
}

func TestForbiddenByAnotherGoroutine(t *testing.T) {
	t.Parallel()
	store := &fakeEvents{}
	outbox, other := newOutbox(t, store, producer.Config{}), newOutbox(t, store, producer.Config{Name: "other"})
	publisher := newPublisher(t, other, producer.PublisherConfig{NoKey: true, MessageID: true})
	err := outbox.Transact(t.Context(), func(ctx context.Context, w *writer) error {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = publisher.Publish("order", in(ctx, "x"))
		}()
		_, err := w.Write(ctx, placed(1))
		<-done
		return err
	})
	if !errors.Is(err, producer.ErrNoTransaction) {
		t.Errorf("error %v", err)
	}
}

func TestMessageWithoutKeyOrIdentityIsRefused(t *testing.T) {
	t.Parallel()
	outbox, tx := newOutbox(t, &fakeEvents{}, producer.Config{}), &fakeTx{}
	ctx := outbox.WithTx(t.Context(), tx)
	err := newPublisher(t, outbox, producer.PublisherConfig{MessageID: true}).Publish("order", in(ctx, "x"))
	if err == nil || !strings.Contains(err.Error(), "Key or NoKey") {
		t.Errorf("without a key: %v", err)
	}
	none := func(string, *message.Message) producer.Identity { return producer.Identity{} }
	for name, cfg := range map[string]producer.PublisherConfig{"none": {NoKey: true}, "zero": {NoKey: true, Identity: none}} {
		if err := newPublisher(t, outbox, cfg).Publish("order", in(ctx, "x")); !errors.Is(err, producer.ErrNoIdentity) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := newPublisher(t, outbox, producer.PublisherConfig{NoKey: true, MessageID: true}).Publish("order", message.NewMessageWithContext(ctx, "", nil)); !errors.Is(err, producer.ErrNoIdentity) {
		t.Errorf("empty UUID: %v", err)
	}
	if len(tx.records) != 0 {
		t.Errorf("%d events were written", len(tx.records))
	}
}

func TestPublisherWritesMessagesAsEvents(t *testing.T) {
	t.Parallel()
	outbox, tx := newOutbox(t, &fakeEvents{}, producer.Config{}), &fakeTx{}
	publisher := newPublisher(t, outbox, producer.PublisherConfig{
		MessageID: true,
		Key:       func(_ string, msg *message.Message) string { return msg.Metadata["customer"] },
	})
	msg := in(outbox.WithTx(t.Context(), tx), "body")
	msg.Metadata = message.Metadata{"customer": "c", "name": "Placed", transport.MetaCorrelationID: "corr", transport.MetaDigest: "of another"}
	if err := publisher.Publish("order", msg); err != nil {
		t.Fatal(err)
	}
	r := tx.records[0]
	if r.ID != idgen.OfKey("orders", "message", "m-body", 0) || r.Key != "c" || r.CorrelationID != "corr" || string(r.Payload) != "body" {
		t.Errorf("record %+v", r)
	}
	if len(r.Headers) != 2 || r.Headers["name"] != "Placed" {
		t.Errorf("headers %v", r.Headers)
	}
}

func TestMessagePublishedTwiceInOneTransactionIsOneEvent(t *testing.T) {
	t.Parallel()
	outbox, tx := newOutbox(t, &fakeEvents{}, producer.Config{}), &fakeTx{}
	publisher := newPublisher(t, outbox, producer.PublisherConfig{MessageID: true, NoKey: true})
	ctx := outbox.WithTx(t.Context(), tx)
	for range 2 {
		if err := publisher.Publish("order", in(ctx, "body")); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range tx.records {
		if r.ID != idgen.OfKey("orders", "message", "m-body", 0) || r.Index != 0 {
			t.Errorf("record has ID %s and index %d, want those of the first", r.ID, r.Index)
		}
	}
}

// OrderShipped knows its key and identity; by its pointer, OrderLost does.
type (
	OrderShipped struct{ Order string }
	OrderLost    struct{ Order string }
)

func (e OrderShipped) EventKey() string { return e.Order }
func (e OrderShipped) EventIdentity() producer.Identity {
	return producer.Identity{Source: "order/" + e.Order, Version: 7}
}
func (e *OrderLost) EventKey() string { return e.Order }

// described is a marshaler that notes keys and identities of events.
var described = cqrs.CommandEventMarshalerDecorator{
	CommandEventMarshaler: cqrs.JSONMarshaler{GenerateName: cqrs.StructName},
	DecorateFunc:          producer.Describe,
}

func newEventBus(t *testing.T, publisher message.Publisher) *cqrs.EventBus {
	t.Helper()
	bus, err := cqrs.NewEventBusWithConfig(publisher, cqrs.EventBusConfig{
		GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) { return p.EventName, nil },
		Marshaler:            described,
	})
	if err != nil {
		t.Fatal(err)
	}
	return bus
}

// TestWatermillsEventBusIsMadeOnce: one bus, behind a decorator, publishes in every transaction.
func TestWatermillsEventBusIsMadeOnce(t *testing.T) {
	t.Parallel()
	store := &fakeEvents{}
	outbox := newOutbox(t, store, producer.Config{})
	decorate := message.MessageTransformPublisherDecorator(func(msg *message.Message) { msg.Metadata["decorated"] = "yes" })
	publisher, err := decorate(newPublisher(t, outbox, producer.PublisherConfig{}))
	if err != nil {
		t.Fatal(err)
	}
	bus := newEventBus(t, publisher)
	for _, order := range []string{"42", "43"} {
		if err := outbox.Transact(t.Context(), func(ctx context.Context, _ *writer) error { return bus.Publish(ctx, OrderShipped{order}) }); err != nil {
			t.Fatal(err)
		}
	}
	if len(store.committed) != 2 {
		t.Fatalf("%d events committed", len(store.committed))
	}
	r := store.committed[1]
	if r.ID != idgen.Of("orders", "order/43", 7, 0) || r.Topic != "OrderShipped" || r.Key != "43" || string(r.Payload) != `{"Order":"43"}` {
		t.Errorf("record %+v", r)
	}
	if r.Headers["decorated"] != "yes" || r.Headers["name"] != "OrderShipped" || len(r.Headers) != 2 {
		t.Errorf("headers %v", r.Headers)
	}
	if err := bus.Publish(t.Context(), OrderShipped{"44"}); !errors.Is(err, producer.ErrNoTransaction) {
		t.Errorf("outside of a transaction: %v", err)
	}
}

func TestWatermillsCommandBusWritesToTheOutbox(t *testing.T) {
	t.Parallel()
	store := &fakeEvents{}
	outbox := newOutbox(t, store, producer.Config{})
	bus, err := cqrs.NewCommandBusWithConfig(newPublisher(t, outbox, producer.PublisherConfig{}), cqrs.CommandBusConfig{
		GeneratePublishTopic: func(p cqrs.CommandBusGeneratePublishTopicParams) (string, error) { return p.CommandName, nil },
		Marshaler:            described,
	})
	if err != nil {
		t.Fatal(err)
	}
	err = outbox.Transact(t.Context(), func(ctx context.Context, _ *writer) error { return bus.Send(ctx, OrderShipped{"42"}) })
	if err != nil || len(store.committed) != 1 || store.committed[0].Key != "42" {
		t.Errorf("error %v, committed %+v", err, store.committed)
	}
}

func TestDescribedEventComesBeforeTheSettings(t *testing.T) {
	t.Parallel()
	outbox, tx := newOutbox(t, &fakeEvents{}, producer.Config{}), &fakeTx{}
	bus := newEventBus(t, newPublisher(t, outbox, producer.PublisherConfig{
		Key: func(topic string, _ *message.Message) string { return "key of " + topic },
		Identity: func(topic string, _ *message.Message) producer.Identity {
			return producer.Identity{Source: topic, Version: 1}
		},
	}))
	ctx := outbox.WithTx(t.Context(), tx)
	type Plain struct{}
	for _, event := range []any{OrderShipped{"42"}, Plain{}, &OrderLost{"43"}} {
		if err := bus.Publish(ctx, event); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []struct{ key, source string }{{"42", "order/42"}, {"key of Plain", "Plain"}, {"43", "OrderLost"}} {
		if r := tx.records[i]; r.Key != want.key || r.Source != want.source {
			t.Errorf("event %d has key %q and source %q, want %+v", i, r.Key, r.Source, want)
		}
	}
	if err := bus.Publish(ctx, OrderLost{"43"}); err == nil || !strings.Contains(err.Error(), "publish a pointer") {
		t.Errorf("a value whose pointer has a key: %v", err)
	}
}
