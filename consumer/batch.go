package consumer

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/internal/within"
)

// BatchFunc handles all of msgs in the transaction of b, or fails for all. Their dispatch IDs
// differ. msgs are in the order of arrival, so messages of a key that are delivered in order are in
// order. When a BatchFunc fails, halves of the messages are handled again, down to a single failing
// message. Only a single message counts an attempt, and [Reject] and [RetryAfter] work only for a
// single message. A publisher finds the transaction in the contexts of msgs, not in ctx. Otherwise a
// BatchFunc is like a [HandlerFunc].
type BatchFunc[TX any] func(ctx context.Context, b *Batch[TX], msgs []*message.Message) error

// Batch is the transaction of several messages. Like a [Work], a Batch belongs to one run of the
// handler and is not safe for concurrent use.
type Batch[TX any] struct {
	tx    TX
	works []*Work[TX]
}

// DB returns the transaction.
func (b *Batch[TX]) DB() TX { return b.tx }

// Len returns the number of messages.
func (b *Batch[TX]) Len() int { return len(b.works) }

// Work returns the work of message i. Events written through the work are children of message i,
// with the same dispatch IDs as if the message were handled alone. To write the events of all
// messages in one round trip, use [Work.Write] on PostgreSQL with pgx.
func (b *Batch[TX]) Work(i int) *Work[TX] { return b.works[i] }

// single handles one message as a batch: a parked message, or a message that failed in a larger
// batch.
func (fn BatchFunc[TX]) single(ctx context.Context, w *Work[TX], msg *message.Message) error {
	return fn.run(ctx, &Batch[TX]{tx: w.DB(), works: []*Work[TX]{w}}, []*message.Message{msg})
}

// run calls fn with a context that is in the transaction of no message.
func (fn BatchFunc[TX]) run(ctx context.Context, b *Batch[TX], msgs []*message.Message) error {
	t := within.Transaction{Instead: "in a batch, publish with the context of the message that an event follows from"}
	defer t.End()
	if err := fn(within.Context(ctx, &t), b, msgs); err != nil {
		return err
	}
	return t.Err()
}

// callBatch runs the handler and returns the error that forbids the commit. A panic becomes an error.
func (h *Handler[TX]) callBatch(ctx context.Context, tx TX, works []*Work[TX]) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = newPanic(v)
		}
	}()
	if err := fault.Hit(ctx, fault.BeforeHandler); err != nil {
		return err
	}
	msgs := make([]*message.Message, len(works))
	for i, w := range works {
		msgs[i] = w.msg
	}
	if err := h.batch.run(ctx, &Batch[TX]{tx: tx, works: works}, msgs); err != nil {
		return err
	}
	for _, w := range works {
		if err := w.failed(); err != nil {
			return err
		}
	}
	return fault.Hit(ctx, fault.BeforeClaimCommit)
}
