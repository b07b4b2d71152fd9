package chain

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport/memory"
	"github.com/boxpair/boxpair/transport/schema"
	"github.com/boxpair/boxpair/transport/schema/protobuf"
)

// item is what the JSON events of [TestTypedEventsAreHandledAsTheyWereWritten] carry, and itemV1
// what they did before.
type (
	item   struct{ Number, Pieces int }
	itemV1 struct{ Number int }
)

// newItem returns the type of items as it was at version 1, and as it is.
func newItem(t *testing.T) (old *schema.Type[itemV1], current *schema.Type[item]) {
	t.Helper()
	old, err := schema.New(schema.Config[itemV1]{Name: "placed", Version: 1, Key: func(itemV1) string { return "json" }})
	ok(t, err)
	current, err = schema.New(schema.Config[item]{
		Name: "placed", Version: 2, Key: func(item) string { return "json" },
		Upcast: map[int]schema.Upcaster{1: schema.Up(func(o itemV1) (item, error) { return item{Number: o.Number, Pieces: 1}, nil })},
		Validate: func(i item) error {
			if i.Pieces < 1 {
				return errors.New("no pieces")
			}
			return nil
		},
	})
	ok(t, err)
	return old, current
}

// TestTypedEventsAreHandledAsTheyWereWritten: events in JSON and in protobuf go through a real
// outbox and a real inbox. What nobody can read is dead at once, and holds nothing up.
func TestTypedEventsAreHandledAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	t.Run("on PostgreSQL", func(t *testing.T) {
		t.Parallel()
		db, _ := newPostgres(t)
		runTyped(t, db)
	})
	t.Run("on SQLite", func(t *testing.T) {
		t.Parallel()
		runTyped(t, newSQLite(t))
	})
}

func runTyped[TX any](t *testing.T, db *database[TX]) {
	t.Helper()
	old, current := newItem(t)
	counted, err := schema.New(schema.Config[*wrapperspb.Int64Value]{
		Name: "counted", Codec: protobuf.Codec{}, Key: func(*wrapperspb.Int64Value) string { return "protobuf" },
	})
	ok(t, err)
	outbox := outboxOf(t, db)
	broker, err := memory.New(memory.Config{})
	ok(t, err)
	t.Cleanup(func() { _ = broker.Close() })
	note := func(ctx context.Context, w *consumer.Work[TX], name string, n int) error {
		e := w.Event()
		return db.exec(ctx, w.DB(), insertEffect, name, e.ID.String(), e.Key, strconv.Itoa(n))
	}
	stock := startService(t, db, nil, broker.Subscriber("stock"), "placed", consumer.Config{Service: "stock"}, consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}},
		consumer.Typed(current, func(ctx context.Context, w *consumer.Work[TX], i item) error {
			return note(ctx, w, "stock", i.Number*i.Pieces)
		}))
	startService(t, db, nil, broker.Subscriber("census"), "counted", consumer.Config{Service: "census"}, consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}},
		consumer.Typed(counted, func(ctx context.Context, w *consumer.Work[TX], v *wrapperspb.Int64Value) error {
			return note(ctx, w, "census", int(v.Value))
		}))
	startRelay(t, outbox, broker, relay.Config{})

	identity := func(n int) producer.Event { return producer.Event{Source: "item", Version: int64(n)} }
	typed := func(e producer.Event, err error) producer.Event {
		t.Helper()
		ok(t, err)
		return e
	}
	unreadable := typed(producer.Typed(current, identity(2), item{Number: 9, Pieces: 1}))
	unreadable.Payload = []byte(`{"Number":9}`)
	ok(t, outbox.Transact(t.Context(), func(ctx context.Context, w *producer.Writer[TX]) error {
		_, err := w.Write(ctx,
			typed(producer.Typed(old, identity(1), itemV1{Number: 1})), unreadable,
			typed(producer.Typed(current, identity(3), item{Number: 1, Pieces: 2})),
			typed(producer.Typed(counted, identity(4), wrapperspb.Int64(1))))
		return err
	}))
	db.wantEffects(t, "stock", 2)
	db.wantOrder(t, "stock", "json", 2)
	db.wantEffects(t, "census", 1)
	db.wantOrder(t, "census", "protobuf", 1)
	parked, err := stock.inbox.ListParked(t.Context(), inbox.Filter{})
	if err != nil || len(parked) != 1 || parked[0].State != inbox.Dead {
		t.Errorf("parked: %+v, %v", parked, err)
	}
}
