package memstore

import (
	"maps"
	"slices"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

// Copy is the store of a standby.
type Copy struct {
	Store   State
	Written int // events written by the schedule
}

// State is the part of a store kept by the database.
type State struct {
	Last, Round int64
	Log         map[int64]*outbox.Record
	Queue       []map[int64]int64
	Parked      map[int64]Parked
	Deferred    map[int64]time.Duration
	Shards      []Shard
	Relays      map[string]time.Duration
	Receipts    map[int64]int
	Failures    []Failure
}

// Copy returns a copy of the database, for a standby.
func (f *Store) Copy() *Copy {
	c := State{
		Last: f.Last, Round: f.Round, Log: maps.Clone(f.Log), Parked: make(map[int64]Parked),
		Deferred: maps.Clone(f.Deferred), Shards: slices.Clone(f.Shards[:]), Relays: maps.Clone(f.Relays), Receipts: maps.Clone(f.Receipts),
		Failures: slices.Clone(f.Failures),
	}
	for _, q := range f.Queue {
		c.Queue = append(c.Queue, maps.Clone(q))
	}
	for seq, p := range f.Parked {
		c.Parked[seq] = *p
	}
	return &Copy{Store: c}
}

// Promote gives the store the state of the copy. Open transactions end with their connections.
func (f *Store) Promote(c *Copy) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	s := c.Store
	f.Last, f.Seq, f.Round, f.Log, f.Deferred, f.Relays, f.Receipts = s.Last, s.Last, s.Round, s.Log, s.Deferred, s.Relays, s.Receipts
	copy(f.Queue[:], s.Queue)
	for shard, q := range f.Queue {
		f.Places[shard] = slices.Sorted(maps.Keys(q))
	}
	copy(f.Shards[:], s.Shards)
	f.Failures = s.Failures
	f.Parked = make(map[int64]*Parked)
	for seq, p := range s.Parked {
		f.Parked[seq] = &p
	}
	clear(f.Open)
}
