package chain

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
)

// neighbour returns a key that shares its shard with key.
func neighbour(key string) string {
	for i := 0; ; i++ {
		if other := fmt.Sprint(key, "-neighbour-", i); idgen.Shard(other, uuid.Nil) == idgen.Shard(key, uuid.Nil) {
			return other
		}
	}
}

// late writes the events of key in pairs. The first event of a pair gets its ID; then events of a
// neighbour in the same shard are committed with higher IDs, and are often delivered, before the
// first event is committed. The second event follows at once. A relay that only reads above its
// position loses the first event, or sends it after the second.
type late struct {
	db     *database[pgx.Tx]
	outbox *producer.Outbox[pgx.Tx]
	topic  string
	wire   *wire
	rnd    *rand.Rand
}

func (l *late) pair(ctx context.Context, key, neighbour string) error {
	return l.outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
		if _, err := l.db.place(ctx, w, l.topic, key); err != nil {
			return err
		}
		last := 0
		for range l.rnd.IntN(3) {
			err := l.outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) (err error) {
				last, err = l.db.place(ctx, w, l.topic, neighbour)
				return err
			})
			if err != nil {
				return err
			}
		}
		switch {
		case last > 0 && l.rnd.IntN(3) > 0:
			return l.wire.has(ctx, neighbour, strconv.Itoa(last))
		default:
			pause(time.Duration(l.rnd.IntN(8)) * time.Millisecond)
		}
		return nil
	})
}

func (l *late) next(ctx context.Context, key string) error {
	return l.outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
		_, err := l.db.place(ctx, w, l.topic, key)
		return err
	})
}

func TestLowerIDThatCommitsLateIsDeliveredInTheOrderOfItsKey(t *testing.T) {
	t.Parallel()
	const keys, pairs = 6, 12
	db, _ := newPostgres(t)
	topic := newTopic(t, "stock")
	seen := record(t, topic)
	outbox := outboxOf(t, db)
	apply(t, db, newSubscriber(t, "stock"), topic, "stock", consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}})
	startRelay(t, outbox, newPublisher(t), relay.Config{PollMin: time.Millisecond})

	var names []string
	var writers sync.WaitGroup
	for k := range keys {
		key := fmt.Sprint("key-", k)
		other := neighbour(key)
		names = append(names, key, other)
		writers.Go(func() {
			l := &late{db, outbox, topic, seen, rand.New(rand.NewPCG(rand.Uint64(), uint64(k)))}
			for range pairs {
				if err := l.pair(t.Context(), key, other); err != nil {
					t.Error(err)
					return
				}
				if err := l.next(t.Context(), key); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
	db.wantEffects(t, "stock", db.number(`SELECT count(*) FROM boxpair.outbox_events`))
	for _, key := range names {
		n := db.number(`SELECT coalesce(max(n), 0) FROM aggregates WHERE key = $1`, key)
		wantAscending(t, "on the wire, key "+key, seen.first(key), n)
		db.wantOrder(t, "stock", key, n)
	}
	db.wantDrained(t)
}

func TestIdleTransactionsThatWriteNoEventDoNotStallDelivery(t *testing.T) {
	t.Parallel()
	for name, elsewhere := range map[string]bool{"in another database": true, "in the same database": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, url := newPostgres(t)
			topic := newTopic(t, "stock")
			if elsewhere {
				url = testenv.Postgres(t)
			}
			other, err := pgxpool.New(t.Context(), url)
			ok(t, err)
			defer other.Close()
			tx, err := other.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.Serializable})
			ok(t, err)
			defer tx.Rollback(context.WithoutCancel(t.Context()))
			_, err = tx.Exec(t.Context(), `CREATE TABLE idle AS SELECT pg_current_xact_id()::text`) // has a snapshot and an ID
			ok(t, err)

			outbox := outboxOf(t, db)
			apply(t, db, newSubscriber(t, "stock"), topic, "stock", consumer.HandlerConfig{})
			startRelay(t, outbox, newPublisher(t), relay.Config{})
			placeAll(t, db, outbox, topic, 5, "a", "b", neighbour("a"))
			db.wantEffects(t, "stock", 15)
			db.wantDrained(t)
		})
	}
}
