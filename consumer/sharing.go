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
	// sharedAtOnce is how many groups of such a handler run at once. One begins beside others when it is
	// full, or when sharedBeside messages wait for it.
	sharedAtOnce, sharedBeside = 3, 16
	// After groups that waited for each other, one runs at a time for apartTime, and twice as long after the
	// next, up to apartMost.
	apartTime, apartMost = 15 * time.Minute, 24 * time.Hour
	// sharedPatience is how long a message waits for the end of a group before it is handled alone.
	sharedPatience = 250 * time.Millisecond
	// sharedTimeout ends a group: a handler that waits for a lock holds up no other message for longer.
	sharedTimeout = time.Second

	// underLoad is how many messages are in flight under load, on average. While groups are decided for,
	// a message joins one beside at least one other.
	underLoad, companions = 4, 2
	// A way is measured for at least measuredTime and measuredMessages. What takes longer than
	// measuredMost is no load, or groups that lose.
	measuredTime, measuredMost = 100 * time.Millisecond, time.Second
	measuredMessages           = 64
	// Groups may handle asFast of the messages a second that are handled alone, and a message may be in
	// flight for stillSoon times as long: the database has a fraction of the work.
	asFast, stillSoon = 0.95, 2
	// Groups grow with each one: they are measured up to groupTries times, unless they handle less than
	// hopeful of the messages a second that are handled alone. A measurement ends early if they handle less
	// than hopeless of these.
	groupTries, hopeful, hopeless = 4, 0.5, 0.4
	// A decision for groups holds for decisionTime. A decision against them holds for lossTime, and the
	// next ones twice as long each, or four times if they were not hopeful or one was slow, up to lossMost.
	// After a group that was rolled back, each message has its own transaction for refusalTime, and twice as
	// long after the next, up to refusalMost.
	decisionTime             = 10 * time.Second
	lossTime, lossMost       = time.Second, 3 * time.Minute
	refusalTime, refusalMost = time.Minute, 15 * time.Minute
)

// sharing decides whether the messages of a handler share transactions, if the user has not decided.
// Under load it measures how many messages a second are handled in either way, and how long each is in
// flight, and keeps to the better way for a while. The rate decides for a handler with more messages than
// it can handle. The rates of a handler that keeps up with what arrives are the same.
type sharing struct {
	least int64 // messages in flight while one joins a group

	mu       sync.Mutex
	phase    sharingPhase
	until    time.Time // the end of the decision
	tries    int       // measurements of groups that are left, with this one
	losses   int       // decisions against groups since the last one for them
	refusals int       // since groups were last decided for
	slowed   bool      // the decision is that of a slow group, whose rollback may follow

	skip              int // messages that were under way when the measurement began
	since             time.Time
	handled, inFlight int64      // messages, and the sum of what was in flight with each
	last              int64      // what was in flight with the last message
	alone             throughput // of messages that have a transaction each
}

// throughput is how fast messages are handled.
type throughput struct {
	rate     float64 // messages a second
	inFlight float64 // messages, on average
}

// soon is how long a message is in flight (Little's law).
func (p throughput) soon() float64 { return p.inFlight / p.rate }

// better tells whether groups at p are better than transactions of their own alone.
func (p throughput) better(alone throughput) bool {
	return p.soon() <= alone.soon() || p.rate >= asFast*alone.rate && p.soon() <= stillSoon*alone.soon()
}

type sharingPhase uint8

const (
	decidedAlone sharingPhase = iota
	measuresGroups
	decidedGroups
)

// chosen tells whether a message joins a group.
func (s *sharing) chosen(inFlight int64) bool {
	if inFlight < s.least {
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
	if s.phase == decidedGroups {
		if !now.Before(s.until) {
			s.losses, s.refusals = 0, 0
			s.decide(decidedAlone, now, 0)
		}
		return
	}
	if s.phase == decidedAlone && now.Before(s.until) {
		return
	}
	p, ok := s.measured(inFlight, now)
	alone := s.phase == decidedAlone
	switch {
	case !ok:
	case p == (throughput{}), alone && p.inFlight < underLoad: // no load
		s.decide(decidedAlone, now, 0)
	case alone:
		s.alone, s.phase, s.tries = p, measuresGroups, groupTries
		s.measure(2 * inFlight)
	case p.better(s.alone):
		s.decide(decidedGroups, now, decisionTime)
	case s.tries > 1 && p.rate >= hopeful*s.alone.rate: // groups grow
		s.tries--
		s.measure(0)
	default:
		s.lose(now, p.rate < hopeful*s.alone.rate)
	}
}

// measure begins a measurement after skip messages. The caller holds mu.
func (s *sharing) measure(skip int64) {
	s.skip, s.handled, s.inFlight = int(skip), 0, 0
}

// measured counts a message. It returns the throughput at the end of a measurement, or none if there was too
// little to measure. The caller holds mu.
func (s *sharing) measured(inFlight int64, now time.Time) (p throughput, ok bool) {
	if s.handled == 0 {
		s.since = now
	}
	if s.skip > 0 {
		s.skip--
		return throughput{}, false
	}
	last := s.last
	s.last = inFlight
	s.handled++
	s.inFlight += inFlight
	took, n := now.Sub(s.since), float64(s.handled)
	p = throughput{rate: n / took.Seconds(), inFlight: float64(s.inFlight) / n}
	slow := took > measuredMost || s.phase == measuresGroups && took >= measuredTime && p.rate < hopeless*s.alone.rate
	switch {
	case slow && (s.phase == decidedAlone || last < companions): // nothing was left to be handled for a while
		return throughput{}, true
	case !slow && (s.handled < measuredMessages || took < measuredTime):
		return throughput{}, false
	}
	return p, true
}

// lose decides against groups for a while. The caller holds mu.
func (s *sharing) lose(now time.Time, clearly bool) {
	s.decide(decidedAlone, now, min(lossTime<<s.losses, lossMost))
	if s.losses++; clearly {
		s.losses++
	}
	s.losses = min(s.losses, 10)
}

// slow ends the groups of a handler for a while, since a group took too long. Handlers that are slow
// lose the next measurement as well; a disk or a machine that stood still does not come again.
func (s *sharing) slow(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase == measuresGroups || s.phase == decidedGroups {
		s.lose(now, true)
		s.slowed = true
	}
}

// decide decides for a while. The caller holds mu.
func (s *sharing) decide(phase sharingPhase, now time.Time, while time.Duration) {
	s.phase, s.until, s.slowed = phase, now.Add(while), false
	s.measure(0)
}

// refuse ends the groups of a handler that is no good for them: a group was rolled back.
func (s *sharing) refuse(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != measuresGroups && s.phase != decidedGroups && !s.slowed {
		return // refused already
	}
	s.decide(decidedAlone, now, min(refusalTime<<s.refusals, refusalMost))
	s.refusals = min(s.refusals+1, 10)
}
