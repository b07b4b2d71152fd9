package soak

import (
	"cmp"
	"errors"
	"io"
	"time"
)

// Config sets the length and the load of a run.
type Config struct {
	// Duration is the duration of load and faults. Required.
	Duration time.Duration
	// Seed decides the faults, their targets and their times. Required.
	Seed uint64
	// Dir is the directory of the processes' logs. Required.
	Dir string
	// Progress gets a line about the progress every few seconds. Defaults to none.
	Progress io.Writer

	// Batches makes relays publish batches, consumers handle sets of messages, and writers commit
	// more events at once. Defaults to false.
	Batches bool
	// StoreFirst makes the consumers store messages and run them from their database, both at once.
	// Defaults to false.
	StoreFirst bool
	// Keys is the number of keys. Defaults to 600.
	Keys int
	// Backlog is the number of events under way at which producers pause. Defaults to 10,000, and
	// to 40,000 with Batches.
	Backlog int
	// DrainLimit bounds the time from the end of the faults until all is at rest. Defaults to 60 s, and
	// to 10 minutes with StoreFirst: a process that starts handles its first messages one at a time.
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
	drain := time.Minute
	if c.StoreFirst {
		drain = 10 * time.Minute
	}
	c.DrainLimit = cmp.Or(c.DrainLimit, drain)
	if c.Progress == nil {
		c.Progress = io.Discard
	}
	return c, errors.Join(errs...)
}

// pace is the mean time from the start of one fault of a kind to the start of the next; a short run
// has some faults of each kind.
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
	// pauseFor is how long an operator keeps a process stopped.
	pauseFor = 2 * time.Second
	// copiesAtOnce is how many copies are injected together.
	copiesAtOnce = 50
	// sparedFor is how long each process in turn is spared from kills, so that some processes live
	// long enough to show whether their memory grows.
	sparedFor = 45 * time.Second
	// settleFor is how long a spared process may take to reach its size.
	settleFor = 15 * time.Second
)
