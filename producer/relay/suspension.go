package relay

import (
	"context"
	"sync/atomic"
	"time"
)

// suspension notices that this process stood still: that it was suspended, or got no processor. When it
// goes on, it may not know yet that its session with the store has ended, and that other relays have
// taken over its shards without waiting for the end of the leases. They wait longer than late.
//
// An idle relay rests: nobody looks at the clock, and nothing is sent before the core has been told that
// the process may have stood still. Otherwise the looks would take most of an idle relay's time.
type suspension struct {
	watched atomic.Bool
	resting atomic.Bool
	resumed chan struct{} // has room for one
	ticked  atomic.Int64  // when watch ran last, as a time of the core
	noticed atomic.Int64  // how often the process was found to have stood still
	told    atomic.Int64  // how many of these the core knows
}

func newSuspension() *suspension { return &suspension{resumed: make(chan struct{}, 1)} }

const (
	// ticks is the time between two looks at the clock. Each wakes several threads of the process: 20 a
	// second take half a percent of a core.
	ticks = 50 * time.Millisecond
	// late is how long after a look the process has stood still.
	late = 150 * time.Millisecond
)

// watch looks at the clock until ctx ends.
func (s *suspension) watch(ctx context.Context, now func() time.Duration, notify func()) {
	s.ticked.Store(int64(now()))
	s.watched.Store(true)
	defer s.watched.Store(false)
	ticker := time.NewTicker(ticks)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !s.resting.Load() {
			if s.tick(now()) {
				notify()
			}
			continue
		}
		ticker.Stop()
		for s.resting.Load() {
			select {
			case <-ctx.Done():
				return
			case <-s.resumed:
			}
		}
		ticker.Reset(ticks)
	}
}

// rest ends the looks at the clock, until resume.
func (s *suspension) rest() { s.resting.Store(true) }

// resume begins to look at the clock again. The core has been told that the process may have stood still
// before now.
func (s *suspension) resume(now time.Duration) {
	s.ticked.Store(int64(now))
	s.resting.Store(false)
	select {
	case s.resumed <- struct{}{}:
	default:
	}
}

// tick tells whether the process has stood still since the last tick. Who sees the new time sees that, too.
func (s *suspension) tick(now time.Duration) bool {
	still := s.still(now)
	if still {
		s.noticed.Add(1)
	}
	s.ticked.Store(int64(now))
	return still
}

func (s *suspension) still(now time.Duration) bool { return now-time.Duration(s.ticked.Load()) > late }

// doubtful tells whether the process may have stood still and the core does not know it.
func (s *suspension) doubtful(now time.Duration) bool {
	return s.watched.Load() && (s.still(now) || s.noticed.Load() != s.told.Load())
}
