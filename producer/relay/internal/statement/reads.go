package statement

import (
	"context"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

// Fetch reads ranges of the queue.
type Fetch struct {
	Ranges []outbox.Range
	Look   []int // shards whose next deferred event is wanted as well; nil in the answer if it is not known

	Rows []outbox.Queued
	Next time.Duration // until the first deferred event is due; 0: it is due, -1: there is none
}

// Op is [OpFetch].
func (*Fetch) Op() Op { return OpFetch }

// poll returns what a renewal takes along.
func (s *Fetch) poll() *outbox.Poll {
	if s == nil {
		return nil
	}
	return &outbox.Poll{Ranges: s.Ranges, Look: s.Look}
}

// Execute implements [Statement].
func (s *Fetch) Execute(ctx context.Context, store outbox.RelayStore, _ *Asker) (err error) {
	if looker, ok := store.(outbox.Looker); ok && len(s.Look) > 0 {
		s.Rows, s.Next, err = looker.FetchAndLook(ctx, s.Ranges, s.Look)
		return err
	}
	s.Look = nil
	s.Rows, err = store.Fetch(ctx, s.Ranges)
	return err
}

// FetchKey reads queued events of one key.
type FetchKey struct {
	Shard int
	Key   string
	From  int64 // Seq of the first
	Limit int

	Rows []outbox.Queued
}

// Op is [OpFetchKey].
func (*FetchKey) Op() Op { return OpFetchKey }

// Execute implements [Statement].
func (s *FetchKey) Execute(ctx context.Context, store outbox.RelayStore, _ *Asker) (err error) {
	s.Rows, err = store.FetchKey(ctx, s.Shard, s.Key, s.From, s.Limit)
	return err
}

// Writers asks which transactions may still commit events.
type Writers struct {
	Names []string
}

// Op is [OpWriters].
func (*Writers) Op() Op { return OpWriters }

// Execute implements [Statement].
func (s *Writers) Execute(ctx context.Context, store outbox.RelayStore, _ *Asker) (err error) {
	s.Names, err = store.Writers(ctx)
	return err
}

// Blocked reads a page of the blocked keys of shards.
type Blocked struct {
	Shards []int
	After  outbox.BlockedKey // last key of the previous page
	Limit  int

	Keys []outbox.BlockedKey
}

// Op is [OpBlocked].
func (*Blocked) Op() Op { return OpBlocked }

// Execute implements [Statement].
func (s *Blocked) Execute(ctx context.Context, store outbox.RelayStore, by *Asker) (err error) {
	s.Keys, err = store.Blocked(ctx, s.Shards, by.Hold, s.After, s.Limit)
	return err
}

// Due reads a page of due parked events.
type Due struct {
	Shards []int
	Since  outbox.DuePoint // end of the previous page
	Limit  int

	Rows []outbox.Queued
	Next time.Duration // until the next event is due; 0: not known
}

// Op is [OpDue].
func (*Due) Op() Op { return OpDue }

// Execute implements [Statement].
func (s *Due) Execute(ctx context.Context, store outbox.RelayStore, by *Asker) (err error) {
	s.Rows, s.Next, err = store.Due(ctx, s.Shards, by.Hold, s.Since, by.Longest, s.Limit)
	return err
}

// FetchParked reads the parked events of keys.
type FetchParked struct {
	Keys  []outbox.BlockedKey
	Limit int // events of a key

	Rows [][]outbox.Queued // by position of Keys
}

// Op is [OpFetchParked].
func (*FetchParked) Op() Op { return OpFetchParked }

// Execute implements [Statement].
func (s *FetchParked) Execute(ctx context.Context, store outbox.RelayStore, by *Asker) (err error) {
	s.Rows, err = store.FetchParked(ctx, s.Keys, by.Hold, s.Limit)
	return err
}
