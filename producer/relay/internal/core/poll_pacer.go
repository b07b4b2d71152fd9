package core

import "time"

// pollPacer spaces polls. A poll costs the database as much as tens of events. Under load, polls
// are spaced out and return more events each.
type pollPacer struct {
	least    time.Duration // PollMin
	most     time.Duration
	interval time.Duration
	last     time.Duration // the last poll of all shards
	events   int           // events found by polls after …
	since    time.Duration // … this time
}

const (
	spacedFrom   = 3 // up to as many events in PollMin leave polls unspaced
	spacedAtMost = 4 // the longest interval, in PollMin
)

func newPollPacer(cfg *Options) pollPacer {
	return pollPacer{least: cfg.PollMin, most: min(spacedAtMost*cfg.PollMin, cfg.PollMax), interval: cfg.PollMin}
}

// wide tells whether polls are spaced out.
func (s *pollPacer) wide() bool { return s.interval > s.least }

// next is the time of the next poll without hurry.
func (s *pollPacer) next() time.Duration {
	if !s.wide() {
		return 0
	}
	return s.last + s.interval
}

// found counts the events of a poll, and sets the interval by the events found in at least the
// longest interval: a few events in a row are no load.
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
