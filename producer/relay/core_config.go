package relay

import "time"

// coreConfig is what the core needs to know of a Config. All of it is set.
type coreConfig struct {
	Name               string
	LeaseTTL           time.Duration
	Window             int
	WindowBytes        int
	FetchSize          int
	MaxPerKey          int
	MaxAttempts        int
	Backoff            coreBackoff
	HoldDeadKeys       bool
	PollMin            time.Duration
	PollMax            time.Duration
	RouteProbeInterval time.Duration
	RouteGrace         time.Duration
}

// asker is what statements say of the relay.
func (c *coreConfig) asker() *asker {
	return &asker{name: c.Name, leaseTTL: c.LeaseTTL, hold: c.HoldDeadKeys, longest: c.Backoff.longest()}
}

// coreBackoff is a Backoff.
type coreBackoff struct{ Initial, Max time.Duration }

// bound returns the bound after the given number of attempts, from 1.
func (b coreBackoff) bound(attempts int) time.Duration {
	doublings := attempts - 1
	if doublings < 62 && b.Initial <= b.Max>>doublings {
		return b.Initial << doublings
	}
	return b.Max
}

// longest returns how far ahead an event may have been parked, with what clocks of servers may
// differ after a fail-over.
func (b coreBackoff) longest() time.Duration {
	return max(b.Max, b.Max+time.Minute) // the sum may overflow
}
