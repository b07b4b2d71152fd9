package producer_test

import (
	"context"
	"errors"
	"slices"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/producer"
)

// fakeTx is a transaction of fakeEvents: what it wrote, and by whom.
type fakeTx struct {
	writer  uuid.UUID
	records []producer.Record
	locked  []string
	broken  bool
}

// errConflictOfTransactions is what the fake takes for retryable.
var errConflictOfTransactions = errors.New("could not serialize")

// fakeEvents keeps events in memory, without concurrency. The relay's and the
// operators' parts of the contract are not there.
type fakeEvents struct {
	producer.RelayStore
	producer.OperatorStore
	producer.JanitorStore

	committed []producer.Record
	begun     int
	notified  chan struct{}
	appendErr error
	commitErr []error // of the transactions to come
}

func (f *fakeEvents) Append(_ context.Context, tx *fakeTx, writer uuid.UUID, records []producer.Record) ([]bool, error) {
	if f.appendErr != nil {
		tx.broken = true
		return nil, f.appendErr
	}
	if tx.writer != uuid.Nil && tx.writer != writer {
		return nil, producer.ErrSecondWriter
	}
	tx.writer = writer
	known := make([]bool, len(records))
	for i := range records {
		at := slices.IndexFunc(f.committed, func(r producer.Record) bool { return r.ID == records[i].ID })
		if at < 0 {
			tx.records = append(tx.records, records[i])
			continue
		}
		if f.committed[at].Digest != records[i].Digest {
			tx.broken = true
			return nil, producer.ErrConflict
		}
		known[i] = true
	}
	return known, nil
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

func (f *fakeEvents) Notify(context.Context) error {
	if f.notified == nil {
		return producer.ErrNoSignal
	}
	f.notified <- struct{}{}
	return nil
}
