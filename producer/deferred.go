package producer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/producer/internal/field"
	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/store/outbox"
)

// Cancel gives up the events ids that are still deferred, in the transaction, and returns their
// dispatch IDs, in the order of writing. If the transaction commits, these events are never sent.
// The other events are due, sent, cancelled already, or not known. A cancelled event is kept for as
// long as a discarded one, with the reason, which is required and has at most 1 KiB; writing it
// again changes nothing. Events that were queued before are written first. Cancel waits for other
// transactions that cancel or move the same events; relays do not wait for it. After an error that
// is not about the reason, the transaction has to be rolled back, and the writer returns that error
// from then on.
func (w *Writer[TX]) Cancel(ctx context.Context, reason string, ids ...uuid.UUID) ([]uuid.UUID, error) {
	if err := checkReason(reason); err != nil {
		return nil, fmt.Errorf("cancel: %w", err)
	}
	return w.changeDeferred(ctx, ids, func(ctx context.Context) ([]uuid.UUID, error) {
		return w.outbox.store.Cancel(ctx, w.tx, ids, reason)
	})
}

// Reschedule moves the events ids that are still deferred to the time at, in the transaction, and
// returns their dispatch IDs, in the order of writing. They are due at once if at is in the past,
// by the database's clock. at is in the years 1 to 9999. Otherwise it is like [Writer.Cancel].
func (w *Writer[TX]) Reschedule(ctx context.Context, at time.Time, ids ...uuid.UUID) ([]uuid.UUID, error) {
	if err := checkReschedule(at); err != nil {
		return nil, fmt.Errorf("reschedule: %w", err)
	}
	return w.changeDeferred(ctx, ids, func(ctx context.Context) ([]uuid.UUID, error) {
		return w.outbox.store.Reschedule(ctx, w.tx, ids, at)
	})
}

// changeDeferred runs a change of deferred events.
func (w *Writer[TX]) changeDeferred(ctx context.Context, ids []uuid.UUID, change func(ctx context.Context) ([]uuid.UUID, error)) ([]uuid.UUID, error) {
	if err := w.Flush(ctx); err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, nil
	}
	changed, err := change(ctx)
	if err != nil {
		return nil, w.fail(err)
	}
	if len(changed) > 0 {
		w.wakes = wakeup.All // their shards are not known
		w.changed()
	}
	return changed, nil
}

func checkReason(reason string) error {
	switch {
	case reason == "":
		return errors.New("reason is required")
	case len(reason) > maxReason:
		return fmt.Errorf("reason: has %d bytes, more than %d", len(reason), maxReason)
	}
	return field.Value("reason", reason)
}

func checkReschedule(at time.Time) error {
	if at.IsZero() {
		return errors.New("at is required")
	}
	if err := checkDeliverAt(at); err != nil {
		return fmt.Errorf("at: %w", err)
	}
	return nil
}

// ListDeferred reads events that wait for their time, by ascending Seq.
func (o *Outbox[TX]) ListDeferred(ctx context.Context, f outbox.DeferredFilter) ([]outbox.Deferred, error) {
	f.Limit = limitOf(f.Limit)
	return o.store.ListDeferred(ctx, f)
}

// Cancel gives up deferred events in a transaction of its own; see [Writer.Cancel].
func (o *Outbox[TX]) Cancel(ctx context.Context, reason string, ids ...uuid.UUID) (cancelled []uuid.UUID, err error) {
	err = o.Transact(ctx, func(ctx context.Context, w *Writer[TX]) error {
		cancelled, err = w.Cancel(ctx, reason, ids...)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, id := range cancelled {
		o.cfg.Logger.InfoContext(ctx, "deferred event cancelled", "dispatch_id", id, "reason", reason)
	}
	return cancelled, nil
}

// Reschedule moves deferred events to another time in a transaction of its own; see
// [Writer.Reschedule].
func (o *Outbox[TX]) Reschedule(ctx context.Context, at time.Time, ids ...uuid.UUID) (moved []uuid.UUID, err error) {
	err = o.Transact(ctx, func(ctx context.Context, w *Writer[TX]) error {
		moved, err = w.Reschedule(ctx, at, ids...)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, id := range moved {
		o.cfg.Logger.InfoContext(ctx, "deferred event rescheduled", "dispatch_id", id, "due_at", at)
	}
	return moved, nil
}
