package main

import (
	"context"
	"database/sql"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/boxpairtest"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/consumer/effects"
	"github.com/boxpair/boxpair/producer"
)

// TestIntentIsWrittenOnceWhereverTheProcessCrashes explores the handler of an effect, which must
// leave the call of the provider to later.
func TestIntentIsWrittenOnceWhereverTheProcessCrashes(t *testing.T) {
	t.Parallel()
	boxpairtest.Explore(t, func(t testing.TB) boxpairtest.Subject {
		p, err := newProvider(0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.close)
		db, store := boxpairtest.SQLite(t)
		for _, statement := range tables {
			if _, err := db.ExecContext(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		rows := boxpairtest.Tables(db)
		return boxpairtest.Subject{
			Start: func() (message.NoPublishHandlerFunc, error) {
				outbox, err := producer.New(store, producer.Config{Name: "shop"})
				if err != nil {
					return nil, err
				}
				inbox, err := consumer.New(store, consumer.Config{Service: "shop"}, consumer.WithOutbox(outbox))
				if err != nil {
					return nil, err
				}
				pay, err := effects.Handle(inbox, "pay", payment(&database[*sql.Tx]{store: store, outbox: outbox}, p.url), effects.Config{Idempotent: true})
				if err != nil {
					return nil, err
				}
				return pay.Consume, nil
			},
			Events: []producer.Event{
				{Topic: "order.placed", Key: "1", Source: "order/1", Version: 1, Payload: []byte("1")},
				{Topic: "order.placed", Key: "2", Source: "order/2", Version: 1, Payload: []byte("2")},
			},
			State: func(ctx context.Context) (any, error) {
				var intents int
				if err := db.QueryRowContext(ctx, `SELECT count(*) FROM boxpair_inbox_effects`).Scan(&intents); err != nil {
					return nil, err
				}
				state, err := rows(ctx)
				var r Report
				p.report(&r)
				return []any{state, intents, r}, err
			},
		}
	})
}
