package consumer

import (
	"sync"
	"time"
)

const (
	// sharedSize and sharedTime are how many messages of a handler without Group.Size share a
	// transaction at most, and how long such a transaction should take: the groups grow and shrink by
	// the time that the last ones have taken.
	sharedSize, firstSharedSize = 64, 4
	sharedTime                  = 20 * time.Millisecond
	// sharedPatience is how long a message waits for the end of a group before it is handled alone.
	sharedPatience = 250 * time.Millisecond
	// sharedTimeout ends a group: a handler that waits for a lock holds up no other message for longer.
	sharedTimeout = time.Second

	// underLoad is how many messages are in flight under load.
	underLoad = 8
	// A way is measured for at least measuredTime and measuredMessages.
	measuredTime     = 100 * time.Millisecond
	measuredMessages = 64
	// worthSharing is how much faster groups have to be.
	worthSharing = 1.1
	// A decision holds for decisionTime. After a group that was rolled back or was slow, each message
	// has its own transaction for refusalTime, and twice as long after the next one, up to refusalMost.
	decisionTime = 10 * time.Second
	refusalTime  = time.Minute
	refusalMost  = 15 * time.Minute
)

// sharing decides whether the messages of a handler share transactions, if the user has not decided.
// Under load it measures how many messages a second are handled in either way, and keeps to the faster
// way for a while.
type sharing struct {
	load int64 // messages in flight under load

	mu       sync.Mutex
	phase    sharingPhase
	until    time.Time // the end of the decision
	refusals int       // since groups were last decided for

	skip    int       // messages that were under way when the measurement began
	since   time.Time // the beginning of the measurement
	handled int
	alone   float64 // messages a second, each in its own transaction
}

type sharingPhase uint8

const (
	decidedAlone sharingPhase = iota
	measuresAlone
	measuresGroups
	decidedGroups
)

// chosen tells whether a message joins a group.
func (s *sharing) chosen(inFlight int64) bool {
	if inFlight < s.load {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase == measuresGroups || s.phase == decidedGroups
}

// note takes note of a handled message. inFlight includes the message.
func (s *sharing) note(inFlight int64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	loaded := inFlight >= s.load
	switch s.phase {
	case decidedAlone:
		if loaded && !now.Before(s.until) {
			s.measure(measuresAlone, inFlight)
		}
	case measuresAlone:
		if !loaded {
			s.phase = decidedAlone
		} else if rate, ok := s.measured(now); ok {
			s.alone = rate
			s.measure(measuresGroups, 2*inFlight)
		}
	case measuresGroups:
		if !loaded { // groups keep up with the messages that arrive
			s.decide(decidedGroups, now)
		} else if rate, ok := s.measured(now); ok && rate > worthSharing*s.alone {
			s.decide(decidedGroups, now)
		} else if ok {
			s.decide(decidedAlone, now)
		}
	case decidedGroups:
		if !now.Before(s.until) {
			s.refusals = 0
			s.decide(decidedAlone, now)
			s.until = now
		}
	}
}

// measure begins a measurement after skip messages. The caller holds mu.
func (s *sharing) measure(phase sharingPhase, skip int64) {
	s.phase, s.skip, s.handled = phase, int(skip), 0
}

// measured counts a message, and returns the rate at the end of a measurement. The caller holds mu.
func (s *sharing) measured(now time.Time) (rate float64, ok bool) {
	if s.skip > 0 {
		s.skip--
		s.since = now
		return 0, false
	}
	s.handled++
	took := now.Sub(s.since)
	if s.handled < measuredMessages || took < measuredTime {
		return 0, false
	}
	return float64(s.handled) / took.Seconds(), true
}

// decide is called with mu.
func (s *sharing) decide(phase sharingPhase, now time.Time) {
	s.phase, s.until = phase, now.Add(decisionTime)
}

// refuse ends the groups of a handler that is no good for them: a group was rolled back or took too
// long.
func (s *sharing) refuse(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != measuresGroups && s.phase != decidedGroups {
		return // refused already
	}
	s.phase, s.until = decidedAlone, now.Add(min(refusalTime<<s.refusals, refusalMost))
	s.refusals = min(s.refusals+1, 10)
}
