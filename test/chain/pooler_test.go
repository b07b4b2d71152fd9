package chain

import (
	"context"
	"errors"
	"net/url"
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
)

// pooled returns the address of a database through a pooler in transaction mode of this test's own,
// for connections that run statements in mode.
func pooled(t *testing.T, database, mode string) string {
	t.Helper()
	u, err := url.Parse(testenv.PgBouncer(t, database))
	ok(t, err)
	q := u.Query()
	q.Set("default_query_exec_mode", mode)
	u.RawQuery = q.Encode()
	return u.String()
}

// TestChainBehindAPoolerInTransactionMode: writers, relays, consumers, operators and janitors reach
// their databases through PgBouncer alone, which gives every transaction another session. Handlers
// fail, and write events of their own; one event of each key is deferred; one of the relays listens
// for signals, which no pooler passes on.
func TestChainBehindAPoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	const each = 10
	keys := []string{"a", "b", "c", "d", "e", "f", neighbour("a")}
	for _, mode := range []string{"cache_describe", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			direct := testenv.Postgres(t)
			setUpPostgres(t, direct)
			through := pooled(t, direct, mode)
			placed, shipped := newTopic(t, "stock"), newTopic(t, "mail")
			shop, stock := openPostgres(t, through), openPostgres(t, through)
			outbox := outboxOf(t, shop)

			hc := consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}, Retry: consumer.RetryConfig{QuickAttempts: 1}, Parked: consumer.ParkedConfig{MinBackoff: 1}}
			var runs atomic.Int64
			s := startService(t, stock, outboxOf(t, stock), newSubscriber(t, "stock"), placed, consumer.Config{Service: "stock"}, hc,
				func(ctx context.Context, w *consumer.Work[pgx.Tx], _ *message.Message) error {
					_, err := w.Write(ctx, producer.Event{Topic: shipped, Key: w.Event().Key, Payload: w.Event().Payload})
					if err != nil || runs.Add(1)%5 == 0 {
						return errors.Join(err, errors.New("after its writes"))
					}
					return stock.effect(ctx, w, "stock")
				})
			apply(t, openPostgres(t, through), newSubscriber(t, "mail"), shipped, "mail", consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}, Group: consumer.GroupConfig{Size: 4}})
			for _, pollOnly := range []bool{true, false} {
				relay, err := relay.NewStandalone(openPostgres(t, through).store, thrice(newPublisher(t)),
					relay.Config{PollOnly: pollOnly})
				ok(t, err)
				start(t, relay.Run)
			}

			var writers sync.WaitGroup
			for _, key := range keys {
				writers.Go(func() {
					for range each {
						err := outbox.Transact(t.Context(), func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
							n, err := shop.next(ctx, w.DB(), key)
							if err != nil {
								return err
							}
							e := numbered(placed, key, n)
							if n == each {
								e.DeliverAt = time.Now().Add(2 * time.Second)
							}
							_, err = w.Write(ctx, e)
							return err
						})
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			writers.Wait()
			for _, name := range []string{"stock", "mail"} {
				stock.wantEffects(t, name, each*len(keys))
				for _, key := range keys {
					stock.wantOrder(t, name, key, each)
				}
			}
			shop.wantDrained(t)
			if n := shop.number(`SELECT count(*) FROM boxpair.outbox_events`); n != 2*each*len(keys) {
				t.Errorf("%d events were written", n)
			}
			if n := shop.number(`SELECT count(*) FROM boxpair.outbox_events WHERE due_at IS NOT NULL`); n < 1 || n > len(keys) { // an event that is due before it is written is not deferred
				t.Errorf("%d events were deferred", n)
			}
			replayAndRemove(t, shop, outbox, shop.store, placed, each*len(keys))
			eventually(t, "copies of what was replayed", func() bool { return s.handler.Counters().Duplicates() >= 5*int64(each*len(keys)) })
			stock.wantEffects(t, "stock", each*len(keys))
			if n := sessionsBehind(t, through); n < 2 {
				t.Error("transactions share a session: the pooler is not in transaction mode")
			}
		})
	}
}

// sessionsBehind tells in how many sessions the transactions of one connection run.
func sessionsBehind(t *testing.T, url string) int {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	ok(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	sessions := map[int]bool{}
	for range 10 {
		var pid int
		ok(t, conn.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid))
		sessions[pid] = true
	}
	return len(sessions)
}
