package relay

import (
	"context"
	"fmt"

	"github.com/boxpair/boxpair/store/outbox"
)

// bottom is what is kept of a shard.
func (s *fakeShard) bottom() int64 {
	if s.ticket != 0 {
		return max(0, min(s.low, s.rewindTo-1))
	}
	return s.low
}

// kept is the tail that is kept of a shard.
func (s *fakeShard) kept() outbox.Tail {
	tail := s.tail
	if s.ticket != 0 {
		tail.Seq = max(0, min(tail.Seq, s.rewindTo-1))
	}
	return tail
}

// lower takes note of a row that comes to stand below what is kept.
func (s *fakeShard) lower(seq int64) { s.low, s.tail.Seq = min(s.low, seq-1), min(s.tail.Seq, seq-1) }

func (f *fakeStore) KeepLow(_ context.Context, relay string, lows []outbox.Low, history string) error {
	leave, err := f.enter("KeepLow")
	if err != nil {
		return err
	}
	defer leave()
	for _, l := range lows {
		s := &f.shards[l.Shard]
		if !f.owns(relay, l.Lease) {
			continue
		}
		s.low, s.lowEpoch, s.history = l.Seq, s.epoch, history
		if l.Tail != nil {
			s.tail = *l.Tail
		}
		if history == f.identity {
			f.checkLow(l.Shard)
		}
	}
	return nil
}

// checkLow looks whether what is kept of a shard is so.
func (f *fakeStore) checkLow(shard int) {
	low := f.shards[shard].bottom()
	for seq := range f.queue[shard] {
		if seq <= low {
			f.untrue = append(f.untrue, fmt.Sprintf("shard %d is said to have nothing up to %d, and has %d", shard, low, seq))
		}
	}
	tail := f.shards[shard].kept()
	keys, _ := readPassedKeys(tail.Passed)
	for seq := range f.queue[shard] {
		if record := f.log[seq]; seq <= tail.Seq && seq > low && record != nil && record.Key != "" && !keys.has(hashKey(record.Key)) {
			f.untrue = append(f.untrue, fmt.Sprintf("shard %d is said to have nothing of the key of %d up to %d", shard, seq, tail.Seq))
		}
	}
	low = max(low, tail.Seq)
	for _, tx := range f.open {
		for _, seq := range tx.seqs {
			if _, deferred := tx.due[seq]; seq <= low && !deferred && f.log[seq].Shard == shard {
				f.untrue = append(f.untrue, fmt.Sprintf("shard %d is said to get nothing up to %d, and will get %d", shard, low, seq))
			}
		}
	}
}
