package relay

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer/relay/internal/memstore"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// BenchmarkRelay drains a queue in memory to a transport that confirms at once: what a
// relay itself costs per event, without a database and a broker.
func BenchmarkRelay(b *testing.B) {
	const events = 10_000
	for _, keys := range []int{events, 100} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				store := newBenchQueue(events, keys)
				relay, err := NewStandalone(store, confirming{}, Config{})
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				report, err := relay.RunOnce(b.Context())
				if err != nil || report.Delivered != events {
					b.Fatalf("%d events delivered: %v", report.Delivered, err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*events), "ns/event")
		})
	}
}

// benchQueue is a store whose queue is fast: the fake's is made to be checked.
type benchQueue struct {
	*memstore.Store
	mu      sync.Mutex
	records []outbox.Record // by Seq - 1
	marked  []bool
	shards  [idgen.Shards][]int64 // Seqs, ascending
}

func newBenchQueue(events, keys int) *benchQueue {
	begun := time.Now()
	q := &benchQueue{
		Store:   memstore.New(func() time.Duration { return time.Since(begun) }),
		records: make([]outbox.Record, events), marked: make([]bool, events),
	}
	payload := make([]byte, 512)
	for i := range events {
		id, key := idgen.Of("test", "source", int64(i), 0), fmt.Sprint("key-", i%keys)
		shard := idgen.Shard(key, id)
		q.records[i] = outbox.Record{
			Event: transport.Event{ID: id, Topic: "topic", Key: key, Producer: "test", Source: "source", Version: int64(i), Payload: payload},
			Shard: shard,
		}
		q.shards[shard] = append(q.shards[shard], int64(i+1))
	}
	return q
}

func (q *benchQueue) Fetch(_ context.Context, ranges []outbox.Range) ([]outbox.Queued, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var rows []outbox.Queued
	for _, r := range ranges {
		seqs := q.shards[r.Shard]
		at, _ := slices.BinarySearch(seqs, r.After+1)
		for n := 0; at < len(seqs) && n < r.Limit && (r.Through == 0 || seqs[at] <= r.Through); at++ {
			if seq := seqs[at]; !q.marked[seq-1] && !slices.Contains(r.Except, seq) {
				rows = append(rows, outbox.Queued{Record: q.records[seq-1], Seq: seq})
				n++
			}
		}
	}
	slices.SortFunc(rows, func(a, b outbox.Queued) int { return int(a.Seq - b.Seq) })
	return rows, nil
}

func (q *benchQueue) FetchKey(_ context.Context, shard int, key string, from int64, limit int) ([]outbox.Queued, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var rows []outbox.Queued
	for _, seq := range q.shards[shard] {
		if seq >= from && q.records[seq-1].Key == key && !q.marked[seq-1] && len(rows) < limit {
			rows = append(rows, outbox.Queued{Record: q.records[seq-1], Seq: seq})
		}
	}
	return rows, nil
}

func (q *benchQueue) Mark(_ context.Context, _ string, marks []outbox.Mark) ([]int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, m := range marks {
		q.marked[m.Seq-1] = true
	}
	return nil, nil
}

// confirming is a transport that confirms everything at once.
type confirming struct{}

func (confirming) Publish(string, ...*message.Message) error { return nil }
func (confirming) Close() error                              { return nil }
func (confirming) Route(topic string) string                 { return topic }

func (confirming) Send(_ context.Context, _ string, _ *message.Message, done func(transport.Result)) {
	done(transport.Result{Outcome: transport.Confirmed})
}
