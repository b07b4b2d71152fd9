package memstore

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

// WriteDeferred is Write for a deferred event.
func (tx *Tx) WriteDeferred(topic, key string, due time.Duration) int64 {
	seq := tx.Write(topic, key)
	tx.Store.Mu.Lock()
	defer tx.Store.Mu.Unlock()
	if tx.Due == nil {
		tx.Due = make(map[int64]time.Duration)
	}
	tx.Due[seq] = due
	return seq
}

// AddDeferred commits one deferred event.
func (f *Store) AddDeferred(topic, key string, due time.Duration) int64 {
	tx := f.Begin()
	seq := tx.WriteDeferred(topic, key, due)
	tx.Commit()
	return seq
}

// FetchAndLook implements [outbox.Looker].
func (f *Store) FetchAndLook(ctx context.Context, ranges []outbox.Range, shards []int) ([]outbox.Queued, time.Duration, error) {
	rows, err := f.Fetch(ctx, ranges)
	if err != nil {
		return nil, 0, err
	}
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.Calls["Look"]++
	next := time.Duration(-1)
	for seq, at := range f.Deferred {
		if wait := max(at-f.Clock(), 0); slices.Contains(shards, f.Log[seq].Shard) && (next < 0 || wait < next) {
			next = wait
		}
	}
	return rows, next, nil
}

// Undefer implements [outbox.RelayStore].
func (f *Store) Undefer(_ context.Context, relay string, leases []outbox.Lease, limit int) (outbox.Undeferred, error) {
	leave, err := f.Enter("Undefer")
	if err != nil {
		return outbox.Undeferred{}, err
	}
	defer leave()
	var u outbox.Undeferred
	for _, l := range leases {
		var due []int64
		for seq, at := range f.Deferred {
			if f.Log[seq].Shard != l.Shard {
				continue
			}
			if at <= f.Clock() {
				due = append(due, seq)
			} else if wait := at - f.Clock(); u.Next == 0 || wait < u.Next {
				u.Next = wait
			}
		}
		if len(due) > 0 && !f.Owns(relay, l) {
			u.Lost = append(u.Lost, l.Shard)
			continue
		}
		slices.SortFunc(due, func(a, b int64) int { return cmp.Or(cmp.Compare(f.Deferred[a], f.Deferred[b]), cmp.Compare(a, b)) })
		for _, seq := range due[:min(len(due), limit)] {
			f.Enqueue(l.Shard, seq, f.FirstRound(seq))
			f.Shards[l.Shard].Lower(seq)
			if !f.Flaws.KeepsDeferred {
				delete(f.Deferred, seq)
			}
			u.Moved = append(u.Moved, outbox.Moved{Shard: l.Shard, Seq: seq})
		}
	}
	return u, nil
}

// Cancel gives up a deferred event.
func (f *Store) Cancel(seq int64) bool {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	if _, ok := f.Deferred[seq]; !ok {
		return false
	}
	delete(f.Deferred, seq)
	f.Parked[seq] = &Parked{Shard: f.Log[seq].Shard, Key: f.Log[seq].Key, State: outbox.Cancelled}
	return true
}

// Reschedule moves a deferred event to another time.
func (f *Store) Reschedule(seq int64, due time.Duration) bool {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	if _, ok := f.Deferred[seq]; !ok {
		return false
	}
	f.Deferred[seq] = due
	return true
}

// Waiting returns the deferred events.
func (f *Store) Waiting() []int64 {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return slices.Sorted(maps.Keys(f.Deferred))
}
