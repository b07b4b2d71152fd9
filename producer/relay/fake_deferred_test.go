package relay

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

// writeDeferred is write for an event that is due at a time.
func (tx *fakeTx) writeDeferred(topic, key string, due time.Duration) int64 {
	seq := tx.write(topic, key)
	tx.store.mu.Lock()
	defer tx.store.mu.Unlock()
	if tx.due == nil {
		tx.due = make(map[int64]time.Duration)
	}
	tx.due[seq] = due
	return seq
}

// addDeferred commits one event that is due at a time.
func (f *fakeStore) addDeferred(topic, key string, due time.Duration) int64 {
	tx := f.begin()
	seq := tx.writeDeferred(topic, key, due)
	tx.commit()
	return seq
}

func (f *fakeStore) Undefer(_ context.Context, relay string, leases []outbox.Lease, limit int) (outbox.Undeferred, error) {
	leave, err := f.enter("Undefer")
	if err != nil {
		return outbox.Undeferred{}, err
	}
	defer leave()
	var u outbox.Undeferred
	for _, l := range leases {
		var due []int64
		for seq, at := range f.deferred {
			if f.log[seq].Shard != l.Shard {
				continue
			}
			if at <= f.clock() {
				due = append(due, seq)
			} else if wait := at - f.clock(); u.Next == 0 || wait < u.Next {
				u.Next = wait
			}
		}
		if len(due) > 0 && !f.owns(relay, l) {
			u.Lost = append(u.Lost, l.Shard)
			continue
		}
		slices.SortFunc(due, func(a, b int64) int { return cmp.Or(cmp.Compare(f.deferred[a], f.deferred[b]), cmp.Compare(a, b)) })
		for _, seq := range due[:min(len(due), limit)] {
			f.enqueue(l.Shard, seq, f.firstRound(seq))
			f.shards[l.Shard].lower(seq)
			if !f.flaws.keepsDeferred {
				delete(f.deferred, seq)
			}
			u.Moved = append(u.Moved, outbox.Moved{Shard: l.Shard, Seq: seq})
		}
	}
	return u, nil
}

// cancel gives up a deferred event.
func (f *fakeStore) cancel(seq int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.deferred[seq]; !ok {
		return false
	}
	delete(f.deferred, seq)
	f.parked[seq] = &fakeParked{shard: f.log[seq].Shard, key: f.log[seq].Key, state: outbox.Cancelled}
	return true
}

// reschedule moves a deferred event to another time.
func (f *fakeStore) reschedule(seq int64, due time.Duration) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.deferred[seq]; !ok {
		return false
	}
	f.deferred[seq] = due
	return true
}

// waiting returns the deferred events.
func (f *fakeStore) waiting() []int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.deferred))
}
