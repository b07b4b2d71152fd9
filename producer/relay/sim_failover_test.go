package relay

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

// simEvent is what a schedule knows of an event. Its number is never given to another one, as its
// Seq may be.
type simEvent struct {
	seq int64
	key string
}

// number books an event that was written, and returns its number.
func (s *simulation) number(seq int64) int64 {
	n := s.store.numberOf(seq)
	s.events[n] = simEvent{seq: seq, key: s.store.log[seq].Key}
	return n
}

// add writes an event and commits it.
func (s *simulation) add(topic, key string) {
	s.written = append(s.written, s.number(s.store.add(topic, key)))
}

// replicate brings a standby up to date, or promotes it: what was committed since is lost, and its
// IDs are given out again.
func (s *simulation) replicate() {
	if s.standby == nil || s.chance(2) {
		s.standby = s.store.copy()
		s.standby.written = len(s.written)
		return
	}
	s.counts.FailOvers++
	s.store.promote(s.standby)
	s.store.identity = fmt.Sprint("timeline ", s.counts.FailOvers)
	s.written, s.standby = s.written[:s.standby.written], nil
	s.open = nil
	clear(s.locked)
	clear(s.replayed)
	s.replays = nil
	for n := range s.cancelled {
		if p := s.store.parked[s.events[n].seq]; p == nil || p.state != outbox.Cancelled {
			delete(s.cancelled, n)
		}
	}
}

// numberOf returns the number of an event.
func (f *fakeStore) numberOf(seq int64) int64 {
	if r := f.log[seq]; r != nil {
		return r.Version
	}
	return 0
}

func (f *fakeStore) numbers(seqs []int64) []int64 {
	numbers := make([]int64, len(seqs))
	for i, seq := range seqs {
		numbers[i] = f.numberOf(seq)
	}
	return numbers
}

// fakeCopy is a store as a standby has it.
type fakeCopy struct {
	store   fakeState
	written int // of the schedule
}

// fakeState is what of a store is in the database.
type fakeState struct {
	last, round int64
	log         map[int64]*outbox.Record
	queue       []map[int64]int64
	parked      map[int64]fakeParked
	deferred    map[int64]time.Duration
	shards      []fakeShard
	relays      map[string]time.Duration
	receipts    map[int64]int
	failures    []fakeFailure
}

func (f *fakeStore) copy() *fakeCopy {
	c := fakeState{
		last: f.last, round: f.round, log: maps.Clone(f.log), parked: make(map[int64]fakeParked),
		deferred: maps.Clone(f.deferred), shards: slices.Clone(f.shards[:]), relays: maps.Clone(f.relays), receipts: maps.Clone(f.receipts),
		failures: slices.Clone(f.failures),
	}
	for _, q := range f.queue {
		c.queue = append(c.queue, maps.Clone(q))
	}
	for seq, p := range f.parked {
		c.parked[seq] = *p
	}
	return &fakeCopy{store: c}
}

// promote makes the store what the copy is. Open transactions end with their connections.
func (f *fakeStore) promote(c *fakeCopy) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := c.store
	f.last, f.seq, f.round, f.log, f.deferred, f.relays, f.receipts = s.last, s.last, s.round, s.log, s.deferred, s.relays, s.receipts
	copy(f.queue[:], s.queue)
	for shard, q := range f.queue {
		f.places[shard] = slices.Sorted(maps.Keys(q))
	}
	copy(f.shards[:], s.shards)
	f.failures = s.failures
	f.parked = make(map[int64]*fakeParked)
	for seq, p := range s.parked {
		f.parked[seq] = &p
	}
	clear(f.open)
}
