package producer_test

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/outbox"
)

// fakeTx is a transaction of fakeEvents: what it wrote, and by whom.
type fakeTx struct {
	writer  uuid.UUID
	records []outbox.Record
	locked  []string
	broken  bool
}

// errConflictOfTransactions is what the fake takes for retryable.
var errConflictOfTransactions = errors.New("could not serialize")

// fakeEvents keeps events in memory, without concurrency. The relay's and the
// operators' parts of the contract are not there.
type fakeEvents struct {
	outbox.RelayStore
	outbox.OperatorStore
	outbox.JanitorStore

	committed []outbox.Record
	begun     int
	notified  chan string
	appendErr error
	commitErr []error // of the transactions to come
	changeErr error   // of Cancel and Reschedule
}

func (f *fakeEvents) Append(_ context.Context, tx *fakeTx, writer uuid.UUID, records []outbox.Record) ([]bool, error) {
	if f.appendErr != nil {
		tx.broken = true
		return nil, f.appendErr
	}
	if tx.writer != uuid.Nil && tx.writer != writer {
		return nil, outbox.ErrSecondWriter
	}
	tx.writer = writer
	known := make([]bool, len(records))
	for i := range records {
		at := slices.IndexFunc(f.committed, func(r outbox.Record) bool { return r.ID == records[i].ID })
		if at < 0 {
			tx.records = append(tx.records, records[i])
			continue
		}
		if f.committed[at].Digest != records[i].Digest {
			tx.broken = true
			return nil, &outbox.ConflictError{ID: records[i].ID}
		}
		known[i] = true
	}
	return known, nil
}

// changed returns those of ids that were written, here or in tx, to be delivered later.
func (f *fakeEvents) changed(tx *fakeTx, ids []uuid.UUID, change func(r *outbox.Record)) ([]uuid.UUID, error) {
	if f.changeErr != nil {
		tx.broken = true
		return nil, f.changeErr
	}
	var list []uuid.UUID
	for _, records := range [][]outbox.Record{f.committed, tx.records} {
		for i := range records {
			if r := &records[i]; slices.Contains(ids, r.ID) && !r.DeliverAt.IsZero() {
				change(r)
				list = append(list, r.ID)
			}
		}
	}
	return list, nil
}

func (f *fakeEvents) Cancel(_ context.Context, tx *fakeTx, ids []uuid.UUID, _ string) ([]uuid.UUID, error) {
	return f.changed(tx, ids, func(r *outbox.Record) { r.DeliverAt = time.Time{} })
}

func (f *fakeEvents) Reschedule(_ context.Context, tx *fakeTx, ids []uuid.UUID, at time.Time) ([]uuid.UUID, error) {
	return f.changed(tx, ids, func(r *outbox.Record) { r.DeliverAt = at })
}

func (f *fakeEvents) LockKeys(_ context.Context, tx *fakeTx, keys []string) error {
	tx.locked = append(tx.locked, keys...)
	return nil
}

func (f *fakeEvents) Savepoint(ctx context.Context, tx *fakeTx, fn func(context.Context, *fakeTx) error) error {
	saved := len(tx.records)
	done := false
	defer func() {
		if !done {
			tx.records, tx.broken = tx.records[:saved], false
		}
	}()
	err := fn(ctx, tx)
	done = err == nil
	return err
}

func (f *fakeEvents) Transact(ctx context.Context, fn func(context.Context, *fakeTx) error) error {
	f.begun++
	tx := &fakeTx{}
	if err := fn(ctx, tx); err != nil {
		return err
	}
	if len(f.commitErr) > 0 {
		err := f.commitErr[0]
		f.commitErr = f.commitErr[1:]
		if err != nil {
			return err
		}
	}
	if tx.broken {
		return errors.New("commit of a failed transaction")
	}
	f.committed = append(f.committed, tx.records...)
	return nil
}

func (f *fakeEvents) Retryable(err error) bool { return errors.Is(err, errConflictOfTransactions) }

func (f *fakeEvents) Notify(_ context.Context, text string) error {
	if f.notified == nil {
		return outbox.ErrNoSignal
	}
	f.notified <- text
	return nil
}
