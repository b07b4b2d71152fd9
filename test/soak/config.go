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

	// Batches has relays publish batches, consumers handle sets of messages and writers commit more
	// events at once. Defaults to false.
	Batches bool
	// Keys is how many keys there are. Defaults to 600.
	Keys int
	// Backlog is with how many events on their way producers pause. Defaults to 10,000, and to
	// 40,000 with Batches.
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
	backlog := 10_000
	if c.Batches {
		backlog = 40_000
	}
	c.Keys, c.Backlog = cmp.Or(c.Keys, 600), cmp.Or(c.Backlog, backlog)
	c.DrainLimit = cmp.Or(c.DrainLimit, time.Minute)
	if c.Progress == nil {
		c.Progress = io.Discard
	}
	return c, errors.Join(errs...)
}

// pace says how often each fault comes, from the start of one to the start of the next; a short
// run has some of each.
type pace struct {
	kill, stop, pause, postgres, rabbit, partition, copies, deploy, operator time.Duration
}

func (c *Config) pace() pace {
	return pace{
		kill:      560 * time.Millisecond,
		stop:      min(30*time.Second, c.Duration/4),
		pause:     min(20*time.Second, c.Duration/4),
		postgres:  min(25*time.Second, c.Duration/3),
		rabbit:    min(45*time.Second, c.Duration*2/3),
		partition: min(9*time.Second, c.Duration/8),
		copies:    250 * time.Millisecond,
		deploy:    min(time.Minute, c.Duration*2/3),
		operator:  min(5*time.Second, c.Duration/8),
	}
}

const (
	// stopFor is longer than a lease.
	stopFor = 3 * time.Second
	// pauseFor is how long an operator keeps a process from running.
	pauseFor = 2 * time.Second
	// copiesAtOnce is how many copies are injected together.
	copiesAtOnce = 50
	// sparedFor is how long a process is spared from being killed, one after the other, so
	// that some live long enough to show whether their memory grows.
	sparedFor = 45 * time.Second
	// settleFor is how long a spared process may take to grow to its size.
	settleFor = 15 * time.Second
)
