package main

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/boxpair/boxpair/boxpairtest"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/postgres"
)

func TestEveryStepIsTakenOnceWhereverTheProcessCrashes(t *testing.T) {
	t.Parallel()
	for name, s := range services {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			boxpairtest.Explore(t, func(t testing.TB) boxpairtest.Subject {
				pool, err := pgxpool.New(t.Context(), testenv.Postgres(t))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(pool.Close)
				if _, err := postgres.Migrate(t.Context(), pool, postgres.Config{}); err != nil {
					t.Fatal(err)
				}
				if _, err := pool.Exec(t.Context(), s.tables); err != nil {
					t.Fatal(err)
				}
				store, err := postgres.New(pool, postgres.Config{})
				if err != nil {
					t.Fatal(err)
				}
				outbox, err := producer.New(store, producer.Config{Name: name})
				if err != nil {
					t.Fatal(err)
				}
				db := stdlib.OpenDBFromPool(pool)
				t.Cleanup(func() { _ = db.Close() })
				start := func() (message.NoPublishHandlerFunc, error) {
					inbox, err := consumer.New(store, consumer.Config{Service: name}, consumer.WithOutbox(outbox))
					if err != nil {
						return nil, err
					}
					handler, err := inbox.Handle(s.handler, s.handle, consumer.HandlerConfig{})
					if err != nil {
						return nil, err
					}
					return handler.Consume, nil
				}
				return boxpairtest.Subject{Start: start, State: boxpairtest.Tables(db), Events: []producer.Event{
					{Topic: s.topic, Key: "1", Source: "order/1", Version: 1, Payload: []byte("1")},
					{Topic: s.topic, Key: "2", Source: "order/2", Version: 1, Payload: []byte("2")},
				}}
			})
		})
	}
}
