package producer_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/outbox"
)

// fakeCommits is fakeEvents as an [outbox.CommitStore].
type fakeCommits struct {
	fakeEvents

	savepoint bool // the caller has a savepoint
	flush     func(ctx context.Context) error
	appended  int // appends before the commit
	atCommit  [][]outbox.Record
}

func (f *fakeCommits) WaitForCommit(_ *fakeTx, flush func(ctx context.Context) error) bool {
	f.flush = flush
	return !f.savepoint
}

func (f *fakeCommits) Append(ctx context.Context, tx *fakeTx, writer uuid.UUID, records []outbox.Record) ([]bool, error) {
	f.appended += len(records)
	return f.fakeEvents.Append(ctx, tx, writer, records)
}

func (f *fakeCommits) AppendAtCommit(tx *fakeTx, writer uuid.UUID, records []outbox.Record) (bool, error) {
	f.atCommit = append(f.atCommit, records)
	_, err := f.fakeEvents.Append(context.Background(), tx, writer, records)
	return true, err
}

func TestEventsWaitForTheCommit(t *testing.T) {
	t.Parallel()
	store := &fakeCommits{}
	err := newOutbox(t, store, producer.Config{}).Transact(t.Context(), func(ctx context.Context, w *writer) error {
		for n := range 3 {
			if _, err := w.Write(ctx, placed(int64(n)+1)); err != nil {
				return err
			}
		}
		if store.appended != 0 {
			t.Errorf("%d events were written before the commit", store.appended)
		}
		return nil
	})
	if err != nil || len(store.atCommit) != 1 || len(store.committed) != 3 {
		t.Errorf("%d statements with the commit, %d events, %v", len(store.atCommit), len(store.committed), err)
	}
}

func TestEventsDoNotWaitBehindASavepointOfTheCaller(t *testing.T) {
	t.Parallel()
	store := &fakeCommits{}
	err := newOutbox(t, store, producer.Config{}).Transact(t.Context(), func(ctx context.Context, w *writer) error {
		if _, err := w.Write(ctx, placed(1)); err != nil {
			return err
		}
		if err := store.flush(ctx); err != nil || store.appended != 1 {
			t.Errorf("%d events were written before the savepoint, %v", store.appended, err)
		}
		store.savepoint = true
		_, err := w.Write(ctx, placed(2))
		if store.appended != 2 {
			t.Errorf("%d events were written, want both, in order", store.appended)
		}
		return err
	})
	if err != nil || len(store.atCommit) != 0 {
		t.Errorf("%d statements with the commit, %v", len(store.atCommit), err)
	}
}

// TestWaitingEventsAreBounded: a transaction of a million events does not keep them in memory.
func TestWaitingEventsAreBounded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ payload, events int }{"by number": {1, 2500}, "by size": {100 << 10, 25}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := &fakeCommits{}
			err := newOutbox(t, store, producer.Config{}).Transact(t.Context(), func(ctx context.Context, w *writer) error {
				for n := range c.events {
					e := placed(int64(n) + 1)
					e.Payload = make([]byte, c.payload)
					if _, err := w.Write(ctx, e); err != nil {
						return err
					}
				}
				return nil
			})
			if left := len(store.committed) - store.appended; err != nil || store.appended == 0 || left == 0 || len(store.committed) != c.events {
				t.Errorf("%d events before the commit and %d with it, of %d, %v", store.appended, left, c.events, err)
			}
			for i, r := range store.committed {
				if r.Version != int64(i+1) {
					t.Fatalf("event %d has version %d", i, r.Version)
				}
			}
		})
	}
}

// TestWaitingEventsAreCopies: the caller may use the memory again, as after any other write.
func TestWaitingEventsAreCopies(t *testing.T) {
	t.Parallel()
	store := &fakeCommits{}
	payload, headers := []byte("0"), map[string]string{"n": "0"}
	err := newOutbox(t, store, producer.Config{}).Transact(t.Context(), func(ctx context.Context, w *writer) error {
		for n := range 3 {
			payload[0], headers["n"] = byte('0'+n), fmt.Sprint(n)
			e := placed(int64(n) + 1)
			e.Payload, e.Headers = payload, headers
			if _, err := w.Write(ctx, e); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || len(store.committed) != 3 {
		t.Fatal(store.committed, err)
	}
	for n, r := range store.committed {
		if string(r.Payload) != fmt.Sprint(n) || r.Headers["n"] != fmt.Sprint(n) {
			t.Errorf("event %d has payload %q and header %q", n, r.Payload, r.Headers["n"])
		}
	}
}
