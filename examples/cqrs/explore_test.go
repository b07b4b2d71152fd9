package main

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/boxpairtest"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/middleware"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/sqlite"
)

// explore explores a handler of the service.
func explore[E any](t *testing.T, handler func(s *service) func(ctx context.Context, event *E) error, events ...producer.Event) {
	t.Helper()
	boxpairtest.Explore(t, func(t testing.TB) boxpairtest.Subject {
		db, err := open(t.Context(), filepath.Join(t.TempDir(), "shop.db"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		store, err := sqlite.New(db, sqlite.Config{})
		if err != nil {
			t.Fatal(err)
		}
		start := func() (message.NoPublishHandlerFunc, error) {
			outbox, err := producer.New(store, producer.Config{Name: "shop"})
			if err != nil {
				return nil, err
			}
			inbox, err := consumer.New(store, consumer.Config{Service: "shop"}, consumer.WithOutbox(outbox))
			if err != nil {
				return nil, err
			}
			s, err := newService(outbox)
			if err != nil {
				return nil, err
			}
			handle := handler(s)
			plain := func(msg *message.Message) ([]*message.Message, error) {
				var event E
				if err := marshaler.Unmarshal(msg, &event); err != nil {
					return nil, err
				}
				return nil, handle(msg.Context(), &event)
			}
			return middleware.Wrap(inbox, "handler", plain, middleware.Config{})
		}
		return boxpairtest.Subject{Start: start, Events: events, State: boxpairtest.Tables(db)}
	})
}

func TestStockIsReservedOnceWhereverTheProcessCrashes(t *testing.T) {
	t.Parallel()
	explore(t, func(s *service) func(context.Context, *OrderPlaced) error { return s.reserve },
		producer.Event{Topic: "OrderPlaced", Key: "42", Source: "order/42", Version: 1, Payload: []byte(`{"order": "42", "item": "lamp"}`)},
		producer.Event{Topic: "OrderPlaced", Key: "43", Source: "order/43", Version: 1, Payload: []byte(`{"order": "43", "item": "lamp"}`)})
}

func TestOrderIsConfirmedOnceWhereverTheProcessCrashes(t *testing.T) {
	t.Parallel()
	explore(t, func(s *service) func(context.Context, *StockReserved) error { return s.confirm },
		producer.Event{Topic: "StockReserved", Key: "42", Source: "stock/42", Version: 1, Payload: []byte(`{"order": "42"}`)},
		producer.Event{Topic: "StockReserved", Key: "43", Source: "stock/43", Version: 1, Payload: []byte(`{"order": "43"}`)})
}
