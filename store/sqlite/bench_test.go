package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/sqlite"
)

func benchmarkWrite(b *testing.B, events int) {
	db, _ := database(b)
	s := newStore(b, db)
	payload := string(make([]byte, 300))
	n := int64(0)
	for b.Loop() {
		err := s.Transact(b.Context(), func(ctx context.Context, tx *sql.Tx) error {
			records := make([]outbox.Record, events)
			for i := range records {
				n++
				records[i] = record(fmt.Sprint("order-", n%1000), n, payload)
			}
			_, err := s.Append(ctx, tx, uuid.New(), records)
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*events)/b.Elapsed().Seconds(), "events/s")
}

func BenchmarkWriteOneEvent(b *testing.B)  { benchmarkWrite(b, 1) }
func BenchmarkWriteTenEvents(b *testing.B) { benchmarkWrite(b, 10) }
func BenchmarkWrite500Events(b *testing.B) { benchmarkWrite(b, 500) }

// lease acquires all shards.
func leaseAll(t testing.TB, s *sqlite.Store, relay string) map[int]outbox.Lease {
	t.Helper()
	grants, err := s.Acquire(t.Context(), relay, time.Minute, 64)
	if err != nil {
		t.Fatal(err)
	}
	leases := make(map[int]outbox.Lease)
	for _, g := range grants {
		leases[g.Shard] = g.Lease
	}
	return leases
}

// BenchmarkFetchAndMark drains a filled queue, a few hundred events at a time.
func BenchmarkFetchAndMark(b *testing.B) {
	const batch = 256
	db, _ := database(b)
	s := newStore(b, db)
	leases := leaseAll(b, s, "relay")
	n := int64(0)
	events := 0
	for b.Loop() {
		b.StopTimer()
		records := make([]outbox.Record, batch)
		for i := range records {
			n++
			records[i] = record(fmt.Sprint("order-", n%1000), n, string(make([]byte, 300)))
		}
		write(b, s, records...)
		b.StartTimer()
		var ranges []outbox.Range
		for shard := range leases {
			ranges = append(ranges, outbox.Range{Shard: shard, Limit: 100})
		}
		queued, err := s.Fetch(b.Context(), ranges)
		if err != nil {
			b.Fatal(err)
		}
		marks := make([]outbox.Mark, len(queued))
		for i, q := range queued {
			marks[i] = outbox.Mark{Lease: leases[q.Shard], Seq: q.Seq, Round: q.Round}
		}
		if _, err := s.Mark(b.Context(), "relay", marks); err != nil {
			b.Fatal(err)
		}
		events += len(queued)
	}
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
}

func BenchmarkMarkOnly(b *testing.B) {
	const batch = 256
	db, _ := database(b)
	s := newStore(b, db)
	leases := leaseAll(b, s, "relay")
	n := int64(0)
	for b.Loop() {
		b.StopTimer()
		records := make([]outbox.Record, batch)
		for i := range records {
			n++
			records[i] = record(fmt.Sprint("order-", n%1000), n, "")
		}
		write(b, s, records...)
		marks := make([]outbox.Mark, batch)
		for i := range marks {
			marks[i] = outbox.Mark{Lease: leases[records[i].Shard], Seq: n - batch + 1 + int64(i)}
		}
		b.StartTimer()
		if _, err := s.Mark(b.Context(), "relay", marks); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "events/s")
}

func BenchmarkFetchNothing(b *testing.B) {
	db, _ := database(b)
	s := newStore(b, db)
	var ranges []outbox.Range
	for shard := range 64 {
		ranges = append(ranges, outbox.Range{Shard: shard, Limit: 100})
	}
	for b.Loop() {
		if _, err := s.Fetch(b.Context(), ranges); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFetchFilled reads a few hundred events and leaves them in the queue.
func BenchmarkFetchFilled(b *testing.B) {
	db, _ := database(b)
	s := newStore(b, db)
	records := make([]outbox.Record, 256)
	for i := range records {
		records[i] = record(fmt.Sprint("order-", i), 1, string(make([]byte, 300)))
	}
	write(b, s, records...)
	var ranges []outbox.Range
	for shard := range 64 {
		ranges = append(ranges, outbox.Range{Shard: shard, Limit: 100})
	}
	for b.Loop() {
		if queued, err := s.Fetch(b.Context(), ranges); err != nil || len(queued) != len(records) {
			b.Fatal(len(queued), err)
		}
	}
}

// BenchmarkApply handles a message whose handler makes one change.
func BenchmarkApply(b *testing.B) {
	for _, workers := range []int{1, 8} {
		b.Run(fmt.Sprint(workers, "_workers"), func(b *testing.B) {
			db, _ := database(b)
			s := newStore(b, db)
			run(b, db, `CREATE TABLE effects (id INTEGER PRIMARY KEY, x INTEGER)`)
			reg, err := s.Register(b.Context(), "bench", time.Hour)
			if err != nil {
				b.Fatal(err)
			}
			b.SetParallelism(workers)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					c := inbox.Claim{Consumer: reg.Consumer, ID: uuid.New(), Stamp: time.Now(), Key: "k"}
					v, err := s.Apply(b.Context(), c, func(ctx context.Context, tx *sql.Tx) error {
						_, err := tx.ExecContext(ctx, `INSERT INTO effects (x) VALUES (?)`, 1)
						return err
					})
					if err != nil || v != inbox.Applied {
						b.Error(v, err)
					}
				}
			})
		})
	}
}

func BenchmarkDuplicate(b *testing.B) {
	db, _ := database(b)
	s := newStore(b, db)
	reg, err := s.Register(b.Context(), "bench", time.Hour)
	if err != nil {
		b.Fatal(err)
	}
	c := inbox.Claim{Consumer: reg.Consumer, ID: uuid.New(), Stamp: time.Now()}
	for b.Loop() {
		if _, err := s.Apply(b.Context(), c, func(context.Context, *sql.Tx) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
