package producer

import (
	"fmt"
	"slices"
	"time"
)

// settled tells whether nothing is left that a relay should still do.
func (s *simulation) settled() bool {
	queued, live := s.store.left()
	if queued > 0 || len(s.store.waiting()) > 0 {
		return false
	}
	if s.cfg.HoldDeadKeys { // what waits behind a dead event waits for an operator
		dead := make(map[BlockedKey]bool)
		for _, p := range s.store.parked {
			if p.state == Dead {
				dead[BlockedKey{p.shard, p.key}] = true
			}
		}
		for _, p := range s.store.parked {
			if p.live() && p.key != "" && dead[BlockedKey{p.shard, p.key}] {
				live--
			}
		}
	}
	if queued > 0 || live > 0 {
		return false
	}
	for _, rel := range s.relays {
		if rel.core.inflight > 0 || rel.core.buffered > 0 {
			return false
		}
	}
	return true
}

func (s *simulation) leftovers() string {
	queued, live := s.store.left()
	text := fmt.Sprintf("%d queued, %d parked, at %v", queued, live, s.now)
	for _, rel := range s.relays {
		text += "; " + rel.core.cfg.Name + " " + rel.core.forgotten()
	}
	return text
}

func (s *simulation) fail(format string, args ...any) {
	s.broken = append(s.broken, fmt.Sprintf(format, args...))
}

// arrive has the broker take a message, and what is in a batch with it.
func (s *simulation) arrive(m rigSend) {
	s.arriveOne(m.seq)
	for _, seq := range m.riders {
		s.arriveOne(seq)
	}
}

func (s *simulation) arriveOne(seq int64) {
	if _, ok := s.store.deferred[seq]; ok {
		s.fail("%d arrived and can still be cancelled", seq)
	}
	if s.cancelled[seq] {
		s.fail("%d arrived and was cancelled", seq)
	}
	s.arrivals = append(s.arrivals, seq)
}

// check looks at what the broker saw.
func (s *simulation) check() {
	arrived := make(map[int64]bool)
	everDead := make(map[int64]bool)
	counted := make(map[int64]int)
	last := make(map[int64]int)
	for _, x := range s.store.failures {
		if x.Attempts > 0 && last[x.Seq] != x.Attempts { // else a statement was repeated whose answer was lost
			counted[x.Seq]++
		}
		last[x.Seq] = x.Attempts
		everDead[x.Seq] = everDead[x.Seq] || x.Dead
	}
	firsts := make(map[string][]int64)
	for _, seq := range s.arrivals {
		if !arrived[seq] {
			arrived[seq] = true
			if key := s.store.log[seq].Key; key != "" && !s.deferred[seq] {
				firsts[key] = append(firsts[key], seq)
			}
		}
	}
	for key, seqs := range firsts {
		highest := int64(0)
		for _, seq := range seqs {
			// What was discarded has left its place, and may arrive from a relay that is stopped since it sent it.
			p := s.store.parked[seq]
			discarded := p != nil && p.state == Discarded
			if seq < highest && !everDead[seq] && !discarded {
				s.fail("key %s: %d arrived behind %d", key, seq, highest)
			}
			highest = max(highest, seq)
		}
	}
	for seq, from := range s.replayed {
		if s.store.parked[seq] == nil && !slices.Contains(s.arrivals[from:], seq) {
			s.fail("the replay of %d was lost", seq)
		}
	}
	for _, seq := range s.written {
		p := s.store.parked[seq]
		switch {
		case arrived[seq], p != nil && (p.state == Dead || p.state == Discarded || p.state == Cancelled):
		case p != nil && s.cfg.HoldDeadKeys && s.store.hasDead(p.shard, p.key):
		default:
			s.fail("%d was lost", seq)
		}
		if counted[seq] > s.refusals[seq] {
			s.fail("%d: %d attempts counted, %d refusals", seq, counted[seq], s.refusals[seq])
		}
	}
}

// write writes an event, now and then a deferred one.
func (s *simulation) write(tx *fakeTx, key string) int64 {
	topic := fmt.Sprint("r", s.rnd.IntN(3), "/", s.rnd.IntN(2))
	if !s.wild.deferrals || !s.chance(4) {
		return tx.write(topic, key)
	}
	s.counts.Deferrals++
	seq := tx.writeDeferred(topic, key, s.now+time.Duration(s.rnd.IntN(2000))*time.Millisecond)
	s.deferred[seq] = true
	return seq
}
