package producer_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/outbox"
)

func expiring(version int64, in time.Duration) producer.Event {
	e := placed(version)
	e.DeliverAt = time.Now().Add(in)
	return e
}

func TestDeferredEventsAreCancelledAndMovedInTheTransaction(t *testing.T) {
	t.Parallel()
	store := &fakeEvents{}
	outbox := newOutbox(t, store, producer.Config{})
	at := time.Now().Add(3 * time.Hour)
	err := outbox.Transact(t.Context(), func(ctx context.Context, w *writer) error {
		ids, err := w.Write(ctx, expiring(1, time.Hour), placed(2), expiring(3, time.Hour), expiring(4, time.Hour))
		if err != nil {
			return err
		}
		cancelled, err := w.Cancel(ctx, "paid", ids[:2]...)
		if err != nil || !slices.Equal(cancelled, ids[:1]) {
			t.Errorf("cancelled %v of %v, %v", cancelled, ids, err)
		}
		moved, err := w.Reschedule(ctx, at, ids[2])
		if err != nil || !slices.Equal(moved, ids[2:3]) {
			t.Errorf("moved %v of %v, %v", moved, ids, err)
		}
		none, err := w.Cancel(ctx, "paid")
		if err != nil || len(none) > 0 {
			t.Errorf("of nothing, cancelled %v, %v", none, err)
		}
		return nil
	})
	if err != nil || len(store.committed) != 4 || !store.committed[2].DeliverAt.Equal(at) {
		t.Errorf("wrote %+v, %v", store.committed, err)
	}
	last := store.committed[3].ID
	if ids, err := outbox.Cancel(t.Context(), "paid", last); err != nil || !slices.Equal(ids, []uuid.UUID{last}) {
		t.Errorf("cancelled %v, %v", ids, err)
	}
	if ids, err := outbox.Reschedule(t.Context(), at, last); err != nil || len(ids) > 0 {
		t.Errorf("moved %v after a cancel, %v", ids, err)
	}
}

func TestWrongSettingsOfADeferralAreNamed(t *testing.T) {
	t.Parallel()
	outbox := newOutbox(t, &fakeEvents{}, producer.Config{})
	far := time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)
	err := outbox.Transact(t.Context(), func(ctx context.Context, w *writer) error {
		e := placed(1)
		e.DeliverAt = far
		_, write := w.Write(ctx, e)
		_, reason := w.Cancel(ctx, "", uuid.New())
		_, long := w.Cancel(ctx, strings.Repeat("x", 1025), uuid.New())
		_, zero := w.Reschedule(ctx, time.Time{}, uuid.New())
		_, late := w.Reschedule(ctx, far, uuid.New())
		for _, c := range []struct {
			err  error
			want string
		}{{write, "DeliverAt: the year 10000"}, {reason, "reason is required"}, {long, "reason: has 1025 bytes"}, {zero, "at is required"}, {late, "at: the year 10000"}} {
			if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
				t.Errorf("error is %v, want %q", c.err, c.want)
			}
		}
		_, err := w.Write(ctx, placed(1)) // none of them has harmed the transaction
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestTransactionOfAFailedCancelCannotBeCommitted(t *testing.T) {
	t.Parallel()
	failure := errors.New("connection lost")
	store := &fakeEvents{changeErr: failure}
	outbox := newOutbox(t, store, producer.Config{})
	err := outbox.Transact(t.Context(), func(ctx context.Context, w *writer) error {
		if _, err := w.Cancel(ctx, "paid", uuid.New()); !errors.Is(err, failure) {
			t.Errorf("cancel: %v", err)
		}
		return nil
	})
	if !errors.Is(err, failure) {
		t.Errorf("committed with %v", err)
	}
}

// An order that is not paid within half an hour expires. The event that says so is written with the
// order, and cancelled in the transaction that settles it.
func ExampleWriter_Cancel() {
	ctx := context.Background()
	store, done := exampleStore(ctx)
	defer done()
	outbox, err := producer.New(store, producer.Config{Name: "orders"})
	if err != nil {
		log.Fatal(err)
	}
	var expires uuid.UUID
	err = outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
		// w.DB().ExecContext(ctx, `INSERT INTO orders …`)
		ids, err := w.Write(ctx, producer.Event{
			Topic: "order.expired", Key: "42", Source: "order/42/expiry", Version: 1, DeliverAt: time.Now().Add(30 * time.Minute),
		})
		if err == nil {
			expires = ids[0]
		}
		return err
	})
	if err != nil {
		log.Fatal(err)
	}

	err = outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
		// w.DB().ExecContext(ctx, `UPDATE orders SET paid = true …`)
		cancelled, err := w.Cancel(ctx, "order was paid", expires)
		fmt.Println("in time:", len(cancelled) == 1)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	stats, err := outbox.Stats(ctx)
	fmt.Println("deferred:", stats.Deferred, err)
	// Output:
	// in time: true
	// deferred: 0 <nil>
}

// An order that is paid in part gets more time: the event that says that it has expired comes
// later.
func ExampleWriter_Reschedule() {
	ctx := context.Background()
	store, done := exampleStore(ctx)
	defer done()
	out := exampleOutbox(store)
	var expires uuid.UUID
	err := out.Transact(ctx, func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
		ids, err := w.Write(ctx, producer.Event{
			Topic: "order.expired", Key: "42", Source: "order/42/expiry", Version: 1, DeliverAt: time.Now().Add(30 * time.Minute),
		})
		if err == nil {
			expires = ids[0]
		}
		return err
	})
	if err != nil {
		log.Fatal(err)
	}

	err = out.Transact(ctx, func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
		// w.DB().ExecContext(ctx, `UPDATE orders SET paid_in_part = true …`)
		moved, err := w.Reschedule(ctx, time.Now().Add(2*time.Hour), expires)
		fmt.Println("in time:", len(moved) == 1)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	deferred, err := out.ListDeferred(ctx, outbox.DeferredFilter{})
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range deferred {
		fmt.Println(d.Topic, "in more than an hour:", time.Until(d.DueAt) > time.Hour)
	}
	// Output:
	// in time: true
	// order.expired in more than an hour: true
}
