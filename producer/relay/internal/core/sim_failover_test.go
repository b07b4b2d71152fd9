package core

import (
	"fmt"

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
	n := s.store.NumberOf(seq)
	s.events[n] = simEvent{seq: seq, key: s.store.Log[seq].Key}
	return n
}

// add writes an event and commits it.
func (s *simulation) add(topic, key string) {
	s.written = append(s.written, s.number(s.store.Add(topic, key)))
}

// replicate brings a standby up to date, or promotes it: what was committed since is lost, and its
// IDs are given out again.
func (s *simulation) replicate() {
	if s.standby == nil || s.chance(2) {
		s.standby = s.store.Copy()
		s.standby.Written = len(s.written)
		return
	}
	s.counts.FailOvers++
	s.store.Promote(s.standby)
	for _, rel := range s.relays {
		s.hangUp(rel)
	}
	s.store.Database = fmt.Sprint("timeline ", s.counts.FailOvers)
	s.written, s.standby = s.written[:s.standby.Written], nil
	s.open = nil
	clear(s.locked)
	clear(s.replayed)
	s.replays = nil
	for n := range s.cancelled {
		if p := s.store.Parked[s.events[n].seq]; p == nil || p.State != outbox.Cancelled {
			delete(s.cancelled, n)
		}
	}
}
