package soak

import (
	"cmp"
	"errors"
	"io"
	"time"
)

// Config says how long and how hard.
type Config struct {
	// Duration is how long there is load and faults. Required.
	Duration time.Duration
	// Seed decides what happens to whom and when. Required.
	Seed uint64
	// Dir is where the processes log. Required.
	Dir string
	// Progress is told how things are every few seconds. Defaults to nobody.
	Progress io.Writer

	// Keys is how many keys there are. Defaults to 600.
	Keys int
	// Backlog is with how many events on their way producers pause. Defaults to 10,000.
	Backlog int
	// DrainLimit is how long it may take after the faults until all is at rest.
	// Defaults to 60 s.
	DrainLimit time.Duration
}

func (c Config) withDefaults() (Config, error) {
	var errs []error
	if c.Duration <= 0 {
		errs = append(errs, errors.New("Duration: is required"))
	}
	if c.Dir == "" {
		errs = append(errs, errors.New("Dir: is required"))
	}
	c.Keys, c.Backlog = cmp.Or(c.Keys, 600), cmp.Or(c.Backlog, 10_000)
	c.DrainLimit = cmp.Or(c.DrainLimit, time.Minute)
	if c.Progress == nil {
		c.Progress = io.Discard
	}
	return c, errors.Join(errs...)
}

// pace says how often each fault comes, from the start of one to the start of the next; a short
// run has some of each.
type pace struct {
	kill, stop, postgres, rabbit, partition, copies, deploy, operator time.Duration
}

func (c *Config) pace() pace {
	return pace{
		kill:      520 * time.Millisecond,
		stop:      min(30*time.Second, c.Duration/4),
		postgres:  min(25*time.Second, c.Duration/3),
		rabbit:    min(36*time.Second, c.Duration*2/3),
		partition: min(9*time.Second, c.Duration/8),
		copies:    250 * time.Millisecond,
		deploy:    min(time.Minute, c.Duration*2/3),
		operator:  min(5*time.Second, c.Duration/8),
	}
}

const (
	// stopFor is longer than a lease.
	stopFor = 3 * time.Second
	// copiesAtOnce is how many copies are injected together.
	copiesAtOnce = 50
	// sparedFor is how long a process is spared from being killed, one after the other, so
	// that some live long enough to show whether their memory grows.
	sparedFor = 45 * time.Second
	// settleFor is how long a spared process may take to grow to its size.
	settleFor = 15 * time.Second
)
