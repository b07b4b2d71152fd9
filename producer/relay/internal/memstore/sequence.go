package memstore

import (
	"context"
	"slices"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

// Identity implements [outbox.Identifier].
func (f *Store) Identity(context.Context) (string, error) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return f.Database, nil
}

// CheckSequence implements [outbox.SequenceChecker].
func (f *Store) CheckSequence(_ context.Context, read int64) error {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	highest := read
	for seq := range f.Log {
		if !slices.Contains(f.OpenSeqs(), seq) {
			highest = max(highest, seq)
		}
	}
	if f.Seq >= highest {
		return nil
	}
	return &outbox.SequenceError{Sequence: "numbers", Last: f.Seq, Highest: highest}
}

// OpenSeqs returns the events of open transactions.
func (f *Store) OpenSeqs() (seqs []int64) {
	for _, tx := range f.Open {
		seqs = append(seqs, tx.Seqs...)
	}
	return seqs
}

// Truncate removes all events, as TRUNCATE does.
func (f *Store) Truncate() {
	clear(f.Log)
	for i := range f.Queue {
		clear(f.Queue[i])
		f.Places[i] = nil
	}
	f.Seq = 0
}

// NumberOf returns the number of an event.
func (f *Store) NumberOf(seq int64) int64 {
	if r := f.Log[seq]; r != nil {
		return r.Version
	}
	return 0
}

// Numbers returns the numbers of events.
func (f *Store) Numbers(seqs []int64) []int64 {
	numbers := make([]int64, len(seqs))
	for i, seq := range seqs {
		numbers[i] = f.NumberOf(seq)
	}
	return numbers
}

// Pulse implements [outbox.Pulser].
func (f *Store) Pulse(ctx context.Context, relay string, ttl time.Duration, leases []outbox.Lease, read int64, poll *outbox.Poll) (p outbox.Pulse, err error) {
	if p.Renewals, err = f.Renew(ctx, relay, ttl, leases); err != nil {
		return outbox.Pulse{}, err
	}
	if p.Live, err = f.Heartbeat(ctx, relay, ttl); err != nil {
		return outbox.Pulse{}, err
	}
	if p.Identity, err = f.Identity(ctx); err != nil {
		return outbox.Pulse{}, err
	}
	p.Sequence = f.CheckSequence(ctx, read)
	if poll != nil {
		if p.Rows, p.Next, err = f.FetchAndLook(ctx, poll.Ranges, poll.Look); err != nil {
			return outbox.Pulse{}, err
		}
	}
	return p, nil
}
