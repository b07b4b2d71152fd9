package main

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/boxpair/boxpair/boxpairtest"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/postgres"
)

func TestUserIsWelcomedAndCountedOnceWhereverTheProcessCrashes(t *testing.T) {
	t.Parallel()
	for name, handle := range map[string]consumer.HandlerFunc[pgx.Tx]{"welcome": welcome, "count": count} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			boxpairtest.Explore(t, func(t testing.TB) boxpairtest.Subject {
				pool, err := pgxpool.New(t.Context(), testenv.Postgres(t))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(pool.Close)
				if err := migrate(t.Context(), pool); err != nil {
					t.Fatal(err)
				}
				store, err := postgres.New(pool, postgres.Config{})
				if err != nil {
					t.Fatal(err)
				}
				db := stdlib.OpenDBFromPool(pool)
				t.Cleanup(func() { _ = db.Close() })
				start := func() (message.NoPublishHandlerFunc, error) {
					inbox, err := consumer.New(store, consumer.Config{Service: "signup"})
					if err != nil {
						return nil, err
					}
					handler, err := inbox.Handle(name, handle, consumer.HandlerConfig{})
					if err != nil {
						return nil, err
					}
					return handler.Consume, nil
				}
				return boxpairtest.Subject{Start: start, State: boxpairtest.Tables(db), Events: []producer.Event{
					{Topic: "user.signed_up", Key: "ada@example.org", Source: "user/ada@example.org", Version: 1, Payload: []byte("ada@example.org")},
					{Topic: "user.signed_up", Key: "bob@example.org", Source: "user/bob@example.org", Version: 1, Payload: []byte("bob@example.org")},
				}}
			})
		})
	}
}
