package main

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/boxpairtest"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/middleware"
	"github.com/boxpair/boxpair/producer"
)

var quiet = slog.New(slog.DiscardHandler)

// orders are the events that the handlers get.
var orders = []producer.Event{
	{Topic: "order.placed", Key: "42", Source: "order/42", Version: 1, Payload: []byte("42")},
	{Topic: "order.placed", Key: "43", Source: "order/43", Version: 1, Payload: []byte("43")},
}

func TestOrderIsShippedOnceWhereverItsProcessCrashes(t *testing.T) {
	t.Parallel()
	boxpairtest.Explore(t, func(t testing.TB) boxpairtest.Subject {
		db, store := boxpairtest.SQLite(t)
		if err := createTables(t.Context(), db); err != nil {
			t.Fatal(err)
		}
		start := func() (message.NoPublishHandlerFunc, error) {
			inbox, err := consumer.New(store, consumer.Config{Service: "warehouse", Logger: quiet})
			if err != nil {
				return nil, err
			}
			ship, err := inbox.Handle("ship", shipOrder, consumer.HandlerConfig{})
			if err != nil {
				return nil, err
			}
			return ship.Consume, nil
		}
		return boxpairtest.Subject{Start: start, Events: orders, State: boxpairtest.Tables(db)}
	})
}

func TestOrderIsBilledOnceWhereverItsProcessCrashes(t *testing.T) {
	t.Parallel()
	boxpairtest.Explore(t, func(t testing.TB) boxpairtest.Subject {
		db, store := boxpairtest.SQLite(t)
		if err := createTables(t.Context(), db); err != nil {
			t.Fatal(err)
		}
		start := func() (message.NoPublishHandlerFunc, error) {
			inbox, err := consumer.New(store, consumer.Config{Service: "warehouse", Logger: quiet})
			if err != nil {
				return nil, err
			}
			bill := func(msg *message.Message) ([]*message.Message, error) { return nil, billOrder(msg) }
			return middleware.Wrap(inbox, "bill", bill, middleware.Config{})
		}
		return boxpairtest.Subject{Start: start, Events: orders, State: boxpairtest.Tables(db)}
	})
}

func TestPlacedOrderHasItsEvent(t *testing.T) {
	t.Parallel()
	db, store := boxpairtest.SQLite(t)
	if err := createTables(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	outbox, err := producer.New(store, producer.Config{Name: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	publisher, err := newPublisher(outbox)
	if err != nil {
		t.Fatal(err)
	}
	var written boxpairtest.Recorder
	ctx := written.Context(t.Context())
	if err := placeOrder(ctx, outbox, "42"); err != nil {
		t.Fatal(err)
	}
	if err := publishOrder(ctx, db, outbox, publisher, "43"); err != nil {
		t.Fatal(err)
	}
	boxpairtest.RequireWritten(t, &written,
		producer.Event{Topic: "order.placed", Key: "42", Source: "order/42", Version: 1, Payload: []byte("42")},
		producer.Event{Topic: "order.placed", Key: "43", Payload: []byte("43")})
}

func TestOrdersAreShippedInAnyOrderAndAfterACrash(t *testing.T) {
	t.Parallel()
	db, store := boxpairtest.SQLite(t)
	if err := createTables(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	start := func() message.NoPublishHandlerFunc {
		inbox, err := consumer.New(store, consumer.Config{Service: "warehouse", Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		handler, err := inbox.Handle("ship", shipOrder, consumer.HandlerConfig{})
		if err != nil {
			t.Fatal(err)
		}
		return handler.Consume
	}
	ship := start()
	placed := boxpairtest.Messages(t, "shop", orders...)
	boxpairtest.Crash(t, ship, boxpairtest.BeforeCommit, placed[0]) // nothing is committed
	ship = start()                                                  // a new process
	boxpairtest.Deliver(t, ship, placed[1], placed[0], placed[0])   // in another order, and one twice
	var shipped int
	if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM shipments`).Scan(&shipped); err != nil || shipped != 2 {
		t.Errorf("%d shipments, %v", shipped, err)
	}
}

// TestDocumentShowsTheseTests finds the code of docs/testing.md in this file.
func TestDocumentShowsTheseTests(t *testing.T) {
	t.Parallel()
	tests := indent.ReplaceAllString(read(t, "explore_test.go"), "")
	blocks := strings.Split(read(t, "../../docs/testing.md"), "```go\n")[1:]
	if len(blocks) != 4 {
		t.Errorf("the document shows %d pieces of Go code", len(blocks))
	}
	for _, block := range blocks {
		code, _, _ := strings.Cut(block, "```")
		if !strings.Contains(tests, indent.ReplaceAllString(code, "")) {
			t.Errorf("this code of docs/testing.md is not in the tests:\n%s", code)
		}
	}
}
