package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/boxpairtest"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
)

// step is an event about an order, which has an item and a customer of its own.
func step(t *testing.T, topic, kind, id string) producer.Event {
	t.Helper()
	payload, err := json.Marshal(order{ID: id, Run: 1, Customer: "customer of " + id, Seq: 1, SKU: "tea", Quantity: 2, Amount: 20})
	if err != nil {
		t.Fatal(err)
	}
	return producer.Event{Topic: topic, Type: kind, Key: "customer of " + id, Source: kind + "/" + id, Version: 1, Payload: payload}
}

// TestStepsOfTheSagaAreTakenOnceWhereverAProcessCrashes explores the handlers of all services.
func TestStepsOfTheSagaAreTakenOnceWhereverAProcessCrashes(t *testing.T) {
	t.Parallel()
	const placed = `INSERT INTO orders (id, run, customer, sku, quantity, amount, status)
		SELECT value, 1, 'customer of ' || value, 'tea', 2, 20, 'placed' FROM json_each('["a", "b"]')`
	for _, c := range []struct {
		subscription
		filled string
		events []producer.Event
	}{
		{subscriptions[0], `INSERT INTO stock VALUES ('tea', 5)`, []producer.Event{
			step(t, topicOrder, orderPlaced, "a"), step(t, topicOrder, orderPlaced, "b"),
			step(t, topicOrder, orderConfirmed, "a"), step(t, topicOrder, orderCancelled, "b"),
		}},
		{subscriptions[1], `INSERT INTO accounts VALUES ('customer of a', 30), ('customer of b', 10)`, []producer.Event{
			step(t, topicStock, stockReserved, "a"), step(t, topicStock, stockReserved, "b"), step(t, topicStock, stockReleased, "b"),
		}},
		{subscriptions[2], placed, []producer.Event{
			step(t, topicStock, stockRefused, "a"), step(t, topicStock, stockReserved, "b"),
		}},
		{subscriptions[3], placed, []producer.Event{
			step(t, topicPayment, paymentCaptured, "a"), step(t, topicPayment, paymentDeclined, "b"),
		}},
	} {
		t.Run(c.service+" "+c.topic, func(t *testing.T) {
			t.Parallel()
			boxpairtest.Explore(t, func(t testing.TB) boxpairtest.Subject {
				db, err := openSQLite(t.Context(), options{Dir: t.TempDir()}, c.service)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(db.Close)
				if err := db.Migrate(t.Context(), append(schemaOf(c.service, "integer PRIMARY KEY AUTOINCREMENT"), c.filled)); err != nil {
					t.Fatal(err)
				}
				return subjectOf(db, c.subscription, c.events)
			})
		})
	}
}

func subjectOf(db database[*sql.Tx], sub subscription, events []producer.Event) boxpairtest.Subject {
	return boxpairtest.Subject{
		Start: func() (message.NoPublishHandlerFunc, error) {
			outbox, err := producer.New(db.Store(), producer.Config{Name: sub.service})
			if err != nil {
				return nil, err
			}
			inbox, err := consumer.New(db.Store(), consumer.Config{Service: sub.service}, consumer.WithOutbox(outbox))
			if err != nil {
				return nil, err
			}
			handler, err := inbox.Handle(sub.topic, saga[*sql.Tx]{db}.handle(sub), consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}})
			if err != nil {
				return nil, err
			}
			return handler.Consume, nil
		},
		Events: events,
		State: func(ctx context.Context) (any, error) {
			// Numbers of a sequence follow the order of arrival.
			return boxpairtest.Tables(db.(*onSQLite).db, "effects.id")(ctx)
		},
		OrderByKey: true,
	}
}
