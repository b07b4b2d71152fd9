package core

import "time"

// pollPacer is the time between looks. A look costs the database as much as tens of events,
// whatever it finds: where it finds many, others come meanwhile that can be read together with
// them.
type pollPacer struct {
	least    time.Duration // PollMin
	most     time.Duration
	interval time.Duration
	last     time.Duration // look everywhere
	events   int           // that were found by looks after …
	since    time.Duration // … this one
}

const (
	spacedFrom   = 3 // up to so many in PollMin leave looks as they are
	spacedAtMost = 4 // how far they are apart at most, in PollMin
)

func newPollPacer(cfg *Options) pollPacer {
	return pollPacer{least: cfg.PollMin, most: min(spacedAtMost*cfg.PollMin, cfg.PollMax), interval: cfg.PollMin}
}

// wide tells whether looks are further apart than the least.
func (s *pollPacer) wide() bool { return s.interval > s.least }

// next is when to look again for what there is no hurry for.
func (s *pollPacer) next() time.Duration {
	if !s.wide() {
		return 0
	}
	return s.last + s.interval
}

// found notes a look and the events it found, and sets the time to the next ones by what was found
// in as long as the longest at least: a few events in a row are no load.
func (s *pollPacer) found(issued time.Duration, events int) {
	s.events += events
	took := issued - s.since
	if took < s.most {
		return
	}
	s.interval = s.least
	if stretch := float64(s.events) * float64(s.least) / float64(took) / spacedFrom; stretch > 1 {
		s.interval = time.Duration(min(stretch*float64(s.least), float64(s.most)))
	}
	s.events, s.since = 0, issued
}
