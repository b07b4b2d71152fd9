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

// Cancel cancels, in the transaction, the events of ids that are still deferred, and returns their
// dispatch IDs in the order of writing. If the transaction commits, these events are never sent.
// The remaining events of ids are due, sent, cancelled already, or unknown. A cancelled event is
// kept as long as a discarded event, with the reason, which is required and has at most 1 KiB.
// Writing a cancelled event again changes nothing. Queued events are written first. Cancel waits
// for transactions that cancel or reschedule the same events; relays do not wait for Cancel. After
// an error, except about the reason, the transaction must be rolled back, and the writer returns
// the error from then on.
func (w *Writer[TX]) Cancel(ctx context.Context, reason string, ids ...uuid.UUID) ([]uuid.UUID, error) {
	if err := checkReason(reason); err != nil {
		return nil, fmt.Errorf("cancel: %w", err)
	}
	return w.changeDeferred(ctx, ids, func(ctx context.Context) ([]uuid.UUID, error) {
		return w.outbox.store.Cancel(ctx, w.tx, ids, reason)
	})
}

// Reschedule is like [Writer.Cancel], but moves the events to the time at, in the years 1 to 9999.
// If at is in the past, by the database's clock, the events are due at once.
func (w *Writer[TX]) Reschedule(ctx context.Context, at time.Time, ids ...uuid.UUID) ([]uuid.UUID, error) {
	if err := checkReschedule(at); err != nil {
		return nil, fmt.Errorf("reschedule: %w", err)
	}
	return w.changeDeferred(ctx, ids, func(ctx context.Context) ([]uuid.UUID, error) {
		return w.outbox.store.Reschedule(ctx, w.tx, ids, at)
	})
}

func (w *Writer[TX]) changeDeferred(ctx context.Context, ids []uuid.UUID, change func(ctx context.Context) ([]uuid.UUID, error)) ([]uuid.UUID, error) {
	w.used = w.used || len(ids) > 0
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
		w.wakes = wakeup.All // the shards are unknown
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

// ListDeferred reads deferred events, by ascending Seq.
func (o *Outbox[TX]) ListDeferred(ctx context.Context, f outbox.DeferredFilter) ([]outbox.Deferred, error) {
	f.Limit = limitOf(f.Limit)
	return o.store.ListDeferred(ctx, f)
}

// Cancel is [Writer.Cancel] in a transaction of its own.
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

// Reschedule is [Writer.Reschedule] in a transaction of its own.
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
