package consumer_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/sqlite"
)

// nothing is a handler without effects: what is measured is the inbox.
func nothing[TX any](context.Context, *consumer.Work[TX], *message.Message) error { return nil }

func benchHandler[TX any](b *testing.B, store inbox.Store[TX], cacheSize int) *consumer.Handler[TX] {
	b.Helper()
	inbox, err := consumer.New(store, consumer.Config{Service: "stock", CacheSize: cacheSize})
	if err != nil {
		b.Fatal(err)
	}
	h, err := inbox.Handle("reserve", nothing[TX], consumer.HandlerConfig{Topic: "orders"})
	if err != nil {
		b.Fatal(err)
	}
	return h
}

// BenchmarkDuplicateInWindow is a copy that the window knows.
func BenchmarkDuplicateInWindow(b *testing.B) {
	h := benchHandler(b, newFake(), 0)
	m := msg(1)
	b.ReportAllocs()
	for b.Loop() {
		if err := h.Consume(m); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDuplicateInGoroutine is the same in a goroutine for each message, as a
// Watermill router has it: what calls deeply there pays for the stack.
func BenchmarkDuplicateInGoroutine(b *testing.B) {
	h := benchHandler(b, newFake(), 0)
	m := msg(1)
	done := make(chan error)
	b.ReportAllocs()
	for b.Loop() {
		go func() { done <- h.Consume(m) }()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkApplyWithoutDatabase is what the inbox adds to the database's work.
func BenchmarkApplyWithoutDatabase(b *testing.B) {
	h := benchHandler(b, newFake(), 0)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		if err := h.Consume(msg(n)); err != nil {
			b.Fatal(err)
		}
		n++
	}
}

func BenchmarkPostgres(b *testing.B) {
	benchStore[pgx.Tx](b, migrated(b, nil))
}

func BenchmarkSQLite(b *testing.B) {
	db, err := sqlite.Open(filepath.Join(b.TempDir(), "stock.db"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = db.Close() })
	if _, err := sqlite.Migrate(b.Context(), db, sqlite.Config{}); err != nil {
		b.Fatal(err)
	}
	store, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		b.Fatal(err)
	}
	benchStore[*sql.Tx](b, store)
}

// benchStore measures one transaction per message, eight messages at a time, and
// copies that only the table knows.
func benchStore[TX any](b *testing.B, store inbox.Store[TX]) {
	var n atomic.Int64
	h := benchHandler(b, store, -1)
	run := func(b *testing.B, next func() int) {
		b.ReportAllocs()
		b.SetParallelism(4)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := h.Consume(msg(next())); err != nil {
					b.Error(err)
				}
			}
		})
	}
	b.Run("apply", func(b *testing.B) { run(b, func() int { return int(n.Add(1)) }) })
	b.Run("duplicate", func(b *testing.B) { run(b, func() int { return 1 }) })
}

// BenchmarkRedelivered has 2,000 messages handled in groups of 32, as many at once as a prefetch
// brings, first fresh ones and then redelivered ones, and compares the times.
func BenchmarkRedelivered(b *testing.B) {
	inbox, err := consumer.New[pgx.Tx](migrated(b, nil), consumer.Config{Service: "stock", CacheSize: -1})
	if err != nil {
		b.Fatal(err)
	}
	h, err := inbox.Handle("reserve", nothing[pgx.Tx], consumer.HandlerConfig{Topic: "orders", Group: consumer.GroupConfig{Size: 32}})
	if err != nil {
		b.Fatal(err)
	}
	const messages, inFlight = 2000, 128
	next := 0
	run := func(mark func(*message.Message) *message.Message) time.Duration {
		queue := make(chan *message.Message, messages)
		for range messages {
			queue <- mark(msg(next))
			next++
		}
		close(queue)
		began := time.Now()
		var wg sync.WaitGroup
		for range inFlight {
			wg.Go(func() {
				for m := range queue {
					if err := h.Consume(m); err != nil {
						b.Error(err)
					}
				}
			})
		}
		wg.Wait()
		return time.Since(began)
	}
	fresh := func(m *message.Message) *message.Message { return m }
	run(fresh)
	var freshly, redelivered time.Duration
	for b.Loop() {
		freshly += run(fresh)
		redelivered += run(again)
	}
	b.ReportMetric(float64(redelivered)/float64(freshly), "times-fresh")
	b.ReportMetric(float64(b.N)*messages/freshly.Seconds(), "fresh/s")
	b.ReportMetric(float64(b.N)*messages/redelivered.Seconds(), "redelivered/s")
}
