package core

import (
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/statement"
)

// Options are the settings of the machine, from relay.Config. Every field is set.
type Options struct {
	Name               string
	LeaseTTL           time.Duration
	Window             int
	WindowBytes        int
	FetchSize          int
	MaxPerKey          int
	MaxAttempts        int
	Backoff            Backoff
	HoldDeadKeys       bool
	PollMin            time.Duration
	PollMax            time.Duration
	PollIdle           time.Duration // at most PollMax: polls are never further apart than PollMax
	RouteProbeInterval time.Duration
	RouteGrace         time.Duration
	Observed           bool // notices are wanted
	Witnesses          bool // the store is an outbox.Witnesser

	// Origin is the time at 0. Host and Version are told in reports.
	Origin        time.Time
	Host, Version string
}

// Topics tells the machine about topics.
type Topics struct {
	Route      func(topic string) string // the name of a topic's route
	Batch      BatchLimit                // nil: the sender takes no batches
	Downstream func(topic string) Downstream
	Matches    func(pattern, topic string) bool // whether an operator's pattern selects a topic
}

// Downstream is what the machine knows of the downstream of a topic.
type Downstream struct {
	Name      string  // "" without downstreams
	PerSecond float64 // rate limit; 0: none
}

// Asker returns the fields of statements that describe the relay.
func (c *Options) Asker() *statement.Asker {
	return &statement.Asker{Name: c.Name, LeaseTTL: c.LeaseTTL, Hold: c.HoldDeadKeys, Longest: c.Backoff.longest()}
}

// Backoff is relay.Backoff.
type Backoff struct{ Initial, Max time.Duration }

// Bound returns the bound after the given number of attempts, from 1.
func (b Backoff) Bound(attempts int) time.Duration {
	doublings := attempts - 1
	if doublings < 62 && b.Initial <= b.Max>>doublings {
		return b.Initial << doublings
	}
	return b.Max
}

// longest returns how far ahead an event may have been parked, with an allowance for the clocks of
// two servers after a fail-over.
func (b Backoff) longest() time.Duration {
	return max(b.Max, b.Max+time.Minute) // the sum may overflow
}
