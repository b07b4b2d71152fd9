package consumer

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/internal/within"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

// Work is the transaction in which one message is handled. A Work belongs to one run of the
// handler, must not be used afterwards, and is not safe for concurrent use. The transaction is
// committed when the handler has returned nil. The handler must neither commit nor roll back: the
// stores of this library refuse COMMIT and ROLLBACK, and the attempt fails even if the handler
// ignores the error. Where a store cannot refuse, as on the connection itself, the message waits
// for an operator ([inbox.ErrEnded]). Settings end with the transaction: PostgreSQL's store refuses
// a SET that is not LOCAL, and the stores of MySQL and SQLite do not reuse a connection with
// changed settings.
type Work[TX any] struct {
	store inbox.ClaimStore[TX]
	tx    TX
	event transport.Event
	msg   *message.Message

	writer *producer.Writer[TX] // nil without an outbox
	err    error                // forbids the commit
	within within.Transaction   // without an outbox
}

func (h *Handler[TX]) newWork(ctx context.Context, tx TX, in *incoming) *Work[TX] {
	var writer *producer.Writer[TX]
	if h.inbox.outbox != nil {
		writer = h.inbox.outbox.Handling(tx, h.name, in.event)
	}
	return h.workWith(ctx, tx, in, writer)
}

// workWith returns the work of a message. The message's context is within the transaction.
func (h *Handler[TX]) workWith(ctx context.Context, tx TX, in *incoming, writer *producer.Writer[TX]) *Work[TX] {
	w := &Work[TX]{store: h.inbox.store, tx: tx, event: in.event, writer: writer}
	if writer != nil {
		ctx = writer.Context(ctx)
	} else {
		w.within.Instead = "the inbox has no outbox, so pass one with consumer.WithOutbox"
		ctx = within.Context(ctx, &w.within)
	}
	w.msg = in.message(ctx)
	w.event.Payload = w.msg.Payload // the handler may change its copy: the original is parked
	return w
}

// newWorks returns the work of several messages in one transaction.
func (h *Handler[TX]) newWorks(ctx context.Context, tx TX, members []*member) []*Work[TX] {
	works := make([]*Work[TX], len(members))
	var writer func(cause transport.Event) *producer.Writer[TX]
	if h.inbox.outbox != nil {
		writer = h.inbox.outbox.HandlingTogether(tx, h.name)
	}
	for i, m := range members {
		var w *producer.Writer[TX]
		if writer != nil {
			w = writer(m.d.in.event)
		}
		works[i] = h.workWith(withValues(ctx, m.ctx), tx, m.d.in, w)
	}
	return works
}

// DB returns the transaction, and within [Work.Savepoint] the transaction to use there.
func (w *Work[TX]) DB() TX {
	if w.writer != nil {
		return w.writer.DB()
	}
	return w.tx
}

// Message returns a copy of the delivered message. Its UUID is the dispatch ID.
func (w *Work[TX]) Message() *message.Message { return w.msg }

// Event returns the message as the wire contract reads it.
func (w *Work[TX]) Event() transport.Event { return w.event }

// Writer returns the outbox writer of the transaction, or [ErrNoOutbox] without an outbox.
func (w *Work[TX]) Writer() (*producer.Writer[TX], error) {
	if w.writer == nil {
		w.err = ErrNoOutbox
		return nil, ErrNoOutbox
	}
	return w.writer, nil
}

// failed returns the error that forbids the commit, or nil.
func (w *Work[TX]) failed() error {
	if w.err != nil {
		return w.err
	}
	return w.within.Err()
}

// end takes note that the transaction has ended.
func (w *Work[TX]) end() {
	w.within.End()
	if w.writer != nil {
		w.writer.End()
	}
}

// wrote tells whether the handler gave events to the outbox.
func (w *Work[TX]) wrote() bool { return w.writer != nil && w.writer.Used() }

// Write writes events to the outbox in the transaction; see [producer.Writer.Write]. The dispatch
// IDs of events without an identity of their own are children of the message's dispatch ID, in the
// order of writing. Events without a correlation ID or a trace context take over the message's.
// Without an outbox, Write returns [ErrNoOutbox].
func (w *Work[TX]) Write(ctx context.Context, events ...producer.Event) ([]uuid.UUID, error) {
	writer, err := w.Writer()
	if err != nil {
		return nil, err
	}
	return writer.Write(ctx, events...)
}

// WriteNow is [Work.Write] without waiting for the commit; see [producer.Writer.WriteNow].
func (w *Work[TX]) WriteNow(ctx context.Context, events ...producer.Event) ([]producer.Written, error) {
	writer, err := w.Writer()
	if err != nil {
		return nil, err
	}
	return writer.WriteNow(ctx, events...)
}

// Savepoint runs fn within a savepoint. If fn returns an error, the changes and events of fn are
// rolled back, and Savepoint returns the error; the transaction goes on. Within fn, [Work.DB] is
// the transaction to use.
func (w *Work[TX]) Savepoint(ctx context.Context, fn func(ctx context.Context, w *Work[TX]) error) error {
	if w.writer != nil {
		return w.writer.Savepoint(ctx, func(ctx context.Context, _ *producer.Writer[TX]) error {
			return fn(ctx, w)
		})
	}
	outer := w.tx
	defer func() { w.tx = outer }()
	return w.store.Savepoint(ctx, w.tx, func(ctx context.Context, tx TX) error {
		w.tx = tx
		return fn(ctx, w)
	})
}

// flush writes the queued events, now or with the commit.
func (w *Work[TX]) flush(ctx context.Context) error {
	if w.writer == nil {
		return nil
	}
	return w.writer.FlushAtCommit(ctx)
}
