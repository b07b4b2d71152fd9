package after

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/boxpair/boxpair/boxpairtest"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/middleware"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/postgres"
)

func TestOrderIsShippedOnceWhereverTheProcessCrashes(t *testing.T) {
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
		if _, err := pool.Exec(t.Context(), `CREATE TABLE shipments (id text)`); err != nil {
			t.Fatal(err)
		}
		store, err := postgres.New(pool, postgres.Config{})
		if err != nil {
			t.Fatal(err)
		}
		db := stdlib.OpenDBFromPool(pool)
		t.Cleanup(func() { _ = db.Close() })
		start := func() (message.NoPublishHandlerFunc, error) {
			inbox, err := consumer.New(store, consumer.Config{Service: "shop"})
			if err != nil {
				return nil, err
			}
			s := &shop{}
			ship := func(msg *message.Message) ([]*message.Message, error) { return nil, s.ship(msg) }
			return middleware.Wrap(inbox, "ship", ship, middleware.Config{})
		}
		return boxpairtest.Subject{Start: start, State: boxpairtest.Tables(db), Events: []producer.Event{
			{Topic: "order.placed", Key: "1", Source: "order/1", Version: 1, Payload: []byte("1")},
			{Topic: "order.placed", Key: "2", Source: "order/2", Version: 1, Payload: []byte("2")},
		}}
	})
}
