package memory_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/memory"
)

// BenchmarkSend measures a message from Send to its outcome, with a window of
// messages under way as a relay has. What it allocates includes the copy that is
// handed out and its context.
func BenchmarkSend(b *testing.B) {
	for _, names := range []int{1, 3} {
		for _, keys := range []int{1, 256} {
			b.Run(strconv.Itoa(names)+"-subscriptions/"+strconv.Itoa(keys)+"-keys", func(b *testing.B) {
				benchmarkSend(b, names, keys)
			})
		}
	}
}

func benchmarkSend(b *testing.B, names, keys int) {
	broker := newBroker(b, memory.Config{})
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	for i := range names {
		messages := subscribeCtx(b, ctx, broker.Subscriber(strconv.Itoa(i)), "orders")
		go func() {
			for msg := range messages {
				msg.Ack()
			}
		}()
	}
	msgs := make([]*message.Message, keys)
	for i := range msgs {
		msgs[i] = keyed(strconv.Itoa(i))
	}
	const window = 256
	slots := make(chan struct{}, window)
	done := func(r transport.Result) {
		if r.Err != nil {
			b.Error(r.Err)
		}
		<-slots
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		slots <- struct{}{}
		broker.Send(ctx, "orders", msgs[i%keys], done)
	}
	for range window {
		slots <- struct{}{}
	}
}
