package memory

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// The defaults of [Config].
const (
	defaultInFlight      = 64
	defaultMinRedelivery = 10 * time.Millisecond
	defaultMaxRedelivery = time.Second
	defaultCloseTimeout  = 30 * time.Second
)

// Config tunes a [Broker]. The zero value is complete.
type Config struct {
	// InFlight is the largest number of messages that one Subscribe call may have handed out and
	// not yet acknowledged; a Watermill router runs as many handlers at once. With 1, messages are
	// handled one after another. Defaults to 64.
	InFlight int `yaml:"in_flight" env:"IN_FLIGHT"`

	// MinRedelivery is the delay before a message is handed out again after its first nack. It
	// doubles with every further nack. Defaults to 10 ms, or to MaxRedelivery if that is shorter.
	MinRedelivery time.Duration `yaml:"min_redelivery" env:"MIN_REDELIVERY"`

	// MaxRedelivery is the longest delay before a nacked message is handed out again. Defaults to 1
	// s, or to MinRedelivery if that is longer.
	MaxRedelivery time.Duration `yaml:"max_redelivery" env:"MAX_REDELIVERY"`

	// CloseTimeout is how long an ending consumer may take to acknowledge its messages in flight
	// before they are given to another consumer. Defaults to 30 s.
	CloseTimeout time.Duration `yaml:"close_timeout" env:"CLOSE_TIMEOUT"`
}

// withDefaults returns c with its zero fields filled in, or an error that joins all wrong fields.
func (c Config) withDefaults() (Config, error) {
	var errs []error
	if c.InFlight < 0 {
		errs = append(errs, fmt.Errorf("InFlight: %d is negative", c.InFlight))
	}
	if c.MinRedelivery < 0 {
		errs = append(errs, fmt.Errorf("MinRedelivery: %v is negative", c.MinRedelivery))
	}
	if c.MaxRedelivery < 0 {
		errs = append(errs, fmt.Errorf("MaxRedelivery: %v is negative", c.MaxRedelivery))
	}
	if c.CloseTimeout < 0 {
		errs = append(errs, fmt.Errorf("CloseTimeout: %v is negative", c.CloseTimeout))
	}
	if c.InFlight == 0 {
		c.InFlight = defaultInFlight
	}
	if c.MinRedelivery == 0 {
		c.MinRedelivery = defaultMinRedelivery
		if c.MaxRedelivery > 0 {
			c.MinRedelivery = min(c.MinRedelivery, c.MaxRedelivery)
		}
	}
	if c.MaxRedelivery == 0 {
		c.MaxRedelivery = max(defaultMaxRedelivery, c.MinRedelivery)
	}
	if c.CloseTimeout == 0 {
		c.CloseTimeout = defaultCloseTimeout
	}
	if c.MaxRedelivery >= 0 && c.MinRedelivery >= 0 && c.MaxRedelivery < c.MinRedelivery {
		errs = append(errs, fmt.Errorf("MaxRedelivery: %v is shorter than MinRedelivery %v", c.MaxRedelivery, c.MinRedelivery))
	}
	return c, errors.Join(errs...)
}

// redelivery returns the delay after the given number of nacks, from 1: the minimum, doubled with
// each further nack, at most the maximum. Up to half of the delay is subtracted at random, so that
// messages which failed together do not come back together.
func (c *Config) redelivery(nacks int) time.Duration {
	d := c.MaxRedelivery
	if doublings := nacks - 1; doublings < 63 && c.MinRedelivery <= c.MaxRedelivery>>doublings {
		d = c.MinRedelivery << doublings
	}
	return d - rand.N(d/2+1)
}
