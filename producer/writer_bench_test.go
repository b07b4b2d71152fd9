package producer_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/outbox"
)

// BenchmarkTransact writes events to a store that does nothing: what checking, naming and
// digesting an event costs.
func BenchmarkTransact(b *testing.B) {
	payload := make([]byte, 512)
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprintf("events=%d", n), func(b *testing.B) {
			outbox, err := producer.New(outbox.Store[*fakeTx](nothing{&fakeEvents{}}), producer.Config{Name: "bench"})
			if err != nil {
				b.Fatal(err)
			}
			events := make([]producer.Event, n)
			version := int64(0)
			b.ReportAllocs()
			for b.Loop() {
				for i := range events {
					version++
					events[i] = producer.Event{Topic: "topic", Key: "key", Source: "source", Version: version, Payload: payload}
				}
				err := outbox.Transact(b.Context(), func(ctx context.Context, w *producer.Writer[*fakeTx]) error {
					_, err := w.Write(ctx, events...)
					return err
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/event")
		})
	}
}

// BenchmarkWriteOneByOne writes events of as many sources in one transaction, each by itself: what
// one costs does not depend on how many there are.
func BenchmarkWriteOneByOne(b *testing.B) {
	for _, n := range []int{10, 1000, 10_000} {
		b.Run(fmt.Sprintf("events=%d", n), func(b *testing.B) {
			outbox, err := producer.New(outbox.Store[*fakeTx](nothing{&fakeEvents{}}), producer.Config{Name: "bench"})
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				err := outbox.Transact(b.Context(), func(ctx context.Context, w *producer.Writer[*fakeTx]) error {
					for i := range n {
						if _, err := w.Write(ctx, producer.Event{Topic: "topic", Source: fmt.Sprint("source", i), Version: 1}); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/event")
		})
	}
}

// nothing forgets what is written.
type nothing struct{ *fakeEvents }

func (nothing) Append(_ context.Context, _ *fakeTx, _ uuid.UUID, records []outbox.Record) ([]bool, error) {
	return make([]bool, len(records)), nil
}
