package consumer

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/internal/fault"
)

// BatchFunc handles messages of different dispatch IDs in the transaction of b, all or none of
// them. They are in the order of their arrival, so that those of a key that are delivered in order
// are in order. When it fails, the messages are handled again in halves, down to the one that fails
// alone: only that one counts an attempt, and [Reject] and [RetryAfter] mean something only there.
// Whatever else holds for a [HandlerFunc] holds here.
type BatchFunc[TX any] func(ctx context.Context, b *Batch[TX], msgs []*message.Message) error

// Batch is the transaction in which messages are handled together. Like a [Work] it belongs to one
// run of the handler and is not safe for concurrent use.
type Batch[TX any] struct {
	tx    TX
	works []*Work[TX]
}

// DB returns the transaction.
func (b *Batch[TX]) DB() TX { return b.tx }

// Len returns how many messages there are.
func (b *Batch[TX]) Len() int { return len(b.works) }

// Work returns the work of message i of the batch, for events that are to be its
// children: they get the dispatch IDs that they would have if it were handled alone. To write
// the events of all messages in one round trip, use [Work.Queue].
func (b *Batch[TX]) Work(i int) *Work[TX] { return b.works[i] }

// single handles one message as a set, for what has failed in larger ones and for parked messages.
func (fn BatchFunc[TX]) single(ctx context.Context, w *Work[TX], msg *message.Message) error {
	return fn(ctx, &Batch[TX]{tx: w.DB(), works: []*Work[TX]{w}}, []*message.Message{msg})
}

// callBatch runs the handler, and returns what forbids the commit. A panic becomes an error.
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
	if err := h.batch(ctx, &Batch[TX]{tx: tx, works: works}, msgs); err != nil {
		return err
	}
	for _, w := range works {
		if w.err != nil {
			return w.err
		}
	}
	return fault.Hit(ctx, fault.BeforeClaimCommit)
}
