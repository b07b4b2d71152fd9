package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
)

// BenchmarkAppend writes events in transactions of several sizes, beside plain
// inserts of as many rows into a table with a random unique key.
func BenchmarkAppend(b *testing.B) {
	pool := newPool(b, nil)
	store := newStore(b, pool, postgres.Config{})
	if _, err := pool.Exec(b.Context(), `CREATE TABLE plain (id bigserial PRIMARY KEY, key uuid UNIQUE, payload bytea)`); err != nil {
		b.Fatal(err)
	}
	payload := string(make([]byte, 256))
	for _, n := range []int{1, 10, 100} {
		perEvent := func(b *testing.B, fn func(ctx context.Context, tx pgx.Tx) error) {
			b.ReportAllocs()
			for b.Loop() {
				if err := store.Transact(b.Context(), fn); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/event")
		}
		b.Run(fmt.Sprintf("%d/outbox", n), func(b *testing.B) {
			perEvent(b, func(ctx context.Context, tx pgx.Tx) error {
				records := make([]outbox.Record, n)
				for i := range records {
					records[i] = event("key", payload)
				}
				_, err := store.Append(ctx, tx, uuid.New(), records)
				return err
			})
		})
		b.Run(fmt.Sprintf("%d/plain", n), func(b *testing.B) {
			perEvent(b, func(ctx context.Context, tx pgx.Tx) error {
				keys, payloads := make([][16]byte, n), make([][]byte, n)
				for i := range keys {
					keys[i], payloads[i] = uuid.New(), []byte(payload)
				}
				_, err := tx.Exec(ctx, `INSERT INTO plain (key, payload) SELECT * FROM unnest($1::uuid[], $2::bytea[])`, keys, payloads)
				return err
			})
		})
	}
}

// BenchmarkFetchAndMark drains a queue as a relay does, 512 events at a time.
func BenchmarkFetchAndMark(b *testing.B) {
	pool := newPool(b, nil)
	store := newStore(b, pool, postgres.Config{})
	grants, err := store.Acquire(b.Context(), "relay", time.Hour, idgen.Shards)
	if err != nil {
		b.Fatal(err)
	}
	const batch = 512
	fill := func() {
		_, err := pool.Exec(b.Context(), `WITH e AS (
			INSERT INTO boxpair.outbox_events (dispatch_id, shard, digest, topic, payload)
			SELECT gen_random_uuid(), i % 64, decode(repeat('00', 16), 'hex'), 'topic', decode(repeat('00', 256), 'hex')
			FROM generate_series(1, $1::int) i RETURNING shard, id)
			INSERT INTO boxpair.outbox_queue (shard, id) SELECT shard, id FROM e`, 100*batch)
		if err != nil {
			b.Fatal(err)
		}
	}
	ranges := make([]outbox.Range, idgen.Shards)
	for i := range ranges {
		ranges[i] = outbox.Range{Shard: i, Limit: batch / idgen.Shards}
	}
	left := 0
	b.ReportAllocs()
	for b.Loop() {
		if left == 0 {
			b.StopTimer()
			fill()
			left = 100
			b.StartTimer()
		}
		left--
		events, err := store.Fetch(b.Context(), ranges)
		if err != nil {
			b.Fatal(err)
		}
		marks := make([]outbox.Mark, len(events))
		for i, q := range events {
			marks[i] = markOf(grants[q.Shard].Lease, q)
			ranges[q.Shard].After = q.Seq
		}
		if lost, err := store.Mark(b.Context(), "relay", marks); err != nil || len(lost) > 0 || len(events) != batch {
			b.Fatal(lost, err, len(events))
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/event")
}
