package memstore

import (
	"context"
	"fmt"

	"github.com/boxpair/boxpair/producer/relay/internal/keyset"
	"github.com/boxpair/boxpair/store/outbox"
)

// Bottom returns the kept bottom of a shard.
func (s *Shard) Bottom() int64 {
	if s.Ticket != 0 {
		return max(0, min(s.Low, s.RewindTo-1))
	}
	return s.Low
}

// Kept returns the kept tail of a shard.
func (s *Shard) Kept() outbox.Tail {
	tail := s.Tail
	if s.Ticket != 0 {
		tail.Seq = max(0, min(tail.Seq, s.RewindTo-1))
	}
	return tail
}

// Lower lowers the kept places below a new row.
func (s *Shard) Lower(seq int64) { s.Low, s.Tail.Seq = min(s.Low, seq-1), min(s.Tail.Seq, seq-1) }

// KeepLow implements [outbox.RelayStore].
func (f *Store) KeepLow(_ context.Context, relay string, lows []outbox.Low, history string) error {
	leave, err := f.Enter("KeepLow")
	if err != nil {
		return err
	}
	defer leave()
	for _, l := range lows {
		s := &f.Shards[l.Shard]
		if !f.Owns(relay, l.Lease) {
			continue
		}
		s.Low, s.LowEpoch, s.History = l.Seq, s.Epoch, history
		if l.Tail != nil {
			s.Tail = *l.Tail
		}
		if history == f.Database {
			f.CheckLow(l.Shard)
		}
	}
	return nil
}

// CheckLow checks that the kept places of a shard are true.
func (f *Store) CheckLow(shard int) {
	low := f.Shards[shard].Bottom()
	for seq := range f.Queue[shard] {
		if seq <= low {
			f.Untrue = append(f.Untrue, fmt.Sprintf("shard %d is said to have nothing up to %d, and has %d", shard, low, seq))
		}
	}
	tail := f.Shards[shard].Kept()
	keys, _ := keyset.Parse(tail.Passed)
	for seq := range f.Queue[shard] {
		if record := f.Log[seq]; seq <= tail.Seq && seq > low && record != nil && record.Key != "" && !keys.Has(keyset.Hash(record.Key)) {
			f.Untrue = append(f.Untrue, fmt.Sprintf("shard %d is said to have nothing of the key of %d up to %d", shard, seq, tail.Seq))
		}
	}
	low = max(low, tail.Seq)
	for _, tx := range f.Open {
		for _, seq := range tx.Seqs {
			if _, deferred := tx.Due[seq]; seq <= low && !deferred && f.Log[seq].Shard == shard {
				f.Untrue = append(f.Untrue, fmt.Sprintf("shard %d is said to get nothing up to %d, and will get %d", shard, low, seq))
			}
		}
	}
}
