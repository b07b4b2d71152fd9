package chain

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/transport/memory"
)

// onOneConnection returns a database whose store has a pool of one connection, and which the test
// looks at on others.
func onOneConnection(t *testing.T) *database[pgx.Tx] {
	t.Helper()
	url := testenv.Postgres(t)
	setUpPostgres(t, url)
	db, err := postgresOn(newPool(t, url, 1), postgres.Config{})
	ok(t, err)
	looks := openPostgres(t, url)
	db.list, db.number = looks.list, looks.number
	return db
}

// TestAllPartsAtOnceShareAPoolOfOneConnection: writers, a relay, two services with handlers that
// write events and fail, one of them in groups, and a janitor all work at the same time. None waits
// for a second connection while it holds the one.
func TestAllPartsAtOnceShareAPoolOfOneConnection(t *testing.T) {
	t.Parallel()
	const each = 10
	keys := []string{"a", "b", "c", "d"}
	db := onOneConnection(t)
	outbox := outboxOf(t, db)
	broker, err := memory.New(memory.Config{})
	ok(t, err)
	t.Cleanup(func() { _ = broker.Close() })
	var runs atomic.Int64
	s := startService(t, db, outbox, broker.Subscriber("stock"), "placed", consumer.Config{Service: "stock", CacheSize: 1},
		consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}, Retry: consumer.RetryConfig{QuickAttempts: 1}, Parked: consumer.ParkedConfig{MinBackoff: 1}},
		func(ctx context.Context, w *consumer.Work[pgx.Tx], _ *message.Message) error {
			_, err := w.Write(ctx, producer.Event{Topic: "shipped", Key: w.Event().Key, Payload: w.Event().Payload})
			if err != nil || runs.Add(1)%5 == 0 {
				return errors.Join(err, errors.New("after its writes"))
			}
			return db.effect(ctx, w, "stock")
		})
	apply(t, db, broker.Subscriber("mail"), "shipped", "mail", consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}, Group: consumer.GroupConfig{Size: 4}})
	startRelay(t, outbox, thrice(broker), relay.Config{PollOnly: true})
	janitor, err := producer.NewJanitor(db.store, producer.JanitorConfig{Retention: time.Second, Interval: 50 * time.Millisecond})
	ok(t, err)
	start(t, janitor.Run)

	var writers sync.WaitGroup
	for _, key := range keys {
		writers.Go(func() { placeAll(t, db, outbox, "placed", each, key) })
	}
	t.Cleanup(writers.Wait)
	for _, name := range []string{"stock", "mail"} {
		db.wantEffects(t, name, each*len(keys))
		for _, key := range keys {
			db.wantOrder(t, name, key, each)
		}
	}
	db.wantDrained(t)
	db.wantRemoved(t)
	if c := s.handler.Counters(); c.Parked == 0 || c.Duplicates() == 0 {
		t.Errorf("counters: %+v", c)
	}
}
