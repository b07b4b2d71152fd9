package relay

import (
	"context"
	"sync/atomic"
	"time"
)

// suspension notices that this process stood still: that it was suspended, or got no processor. When it
// goes on, it may not know yet that its session with the store has ended, and that other relays have
// taken over its shards without waiting for the end of the leases. They wait longer than late.
type suspension struct {
	watched atomic.Bool
	ticked  atomic.Int64 // when watch ran last, as a time of the core
	noticed atomic.Int64 // how often the process was found to have stood still
	told    atomic.Int64 // how many of these the core knows
}

const (
	// ticks is the time between two looks at the clock: 20 a second take no measurable time.
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
			if s.tick(now()) {
				notify()
			}
		}
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

// doubtful tells whether the process has stood still and the core does not know it.
func (s *suspension) doubtful(now time.Duration) bool {
	return s.watched.Load() && (s.still(now) || s.noticed.Load() != s.told.Load())
}
