package relay

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/internal/topics"
	"github.com/boxpair/boxpair/producer/internal/field"
)

// Downstream is one of several publishers of a relay: a broker, an exchange, or an exchange under
// different topic names. A downstream that is down delays the events of its topics, and later
// events of their keys on all topics: a key has one order over all topics, since one queue may be
// bound to several topics. Events that must not wait for each other's downstreams need different
// keys. The view outbox_status names the event and the route for which a key waits.
type Downstream struct {
	// Name names the downstream in the log and in [Relay.Health]. Required, and unique.
	Name string `yaml:"name" env:"NAME"`
	// Publisher takes the messages, like the publisher of [New]. Required. The publisher belongs to
	// the caller, and may serve several downstreams.
	Publisher message.Publisher `yaml:"-" env:"-"`
	// Topics are patterns for the topics of the downstream, in the syntax of AMQP's topic
	// exchanges: words between dots, where "*" stands for one word and "#" for any number of words,
	// including zero. Required. An event goes to the first downstream with a matching pattern, or
	// else to the publisher of New.
	Topics []string `yaml:"topics" env:"TOPICS"`
	// Rename maps topics to their names at the downstream. Defaults to none.
	Rename map[string]string `yaml:"rename" env:"RENAME"`
	// Prefix is put before every topic, after Rename: with "shop.", the topic "orders" becomes
	// "shop.orders". Defaults to none.
	Prefix string `yaml:"prefix" env:"PREFIX"`
	// Window is how many events may be in flight at the downstream. A batch has at most half of
	// Window, and the last batch may exceed Window. Defaults to an equal share of Config.Window for
	// each downstream and the publisher of New.
	Window int `yaml:"window" env:"WINDOW"`
	// MaxPerSecond is how many events all relays together send to the downstream in a second, on
	// average; at once, they may send as many as in one second, and each relay those of another 300
	// ms. Probes of routes that do not work take up to a quarter more. Below 1, an event may be sent every 1/MaxPerSecond seconds. Events wait in the database, and
	// no attempt is counted. Defaults to 0: no limit.
	MaxPerSecond float64 `yaml:"max_per_second" env:"MAX_PER_SECOND"`
}

// topic returns the name of topic at d.
func (d *Downstream) topic(topic string) string {
	if other, ok := d.Rename[topic]; ok {
		topic = other
	}
	return d.Prefix + topic
}

// takes tells whether topic is a topic of d.
func (d *Downstream) takes(topic string) bool { return topics.MatchAny(d.Topics, topic) }

// validate joins all faults of d.
func (d *Downstream) validate() error {
	var errs []error
	if err := field.Text("Name", d.Name, 1); err != nil {
		errs = append(errs, err)
	}
	if d.Publisher == nil {
		errs = append(errs, errors.New("Publisher: is nil"))
	}
	if len(d.Topics) == 0 {
		errs = append(errs, errors.New("Topics: are required"))
	}
	errs = append(errs, validatePatterns("Topics", d.Topics))
	for from, to := range d.Rename {
		if err := field.Text("Rename", d.Prefix+to, 1); err != nil {
			errs = append(errs, fmt.Errorf("%w (for the topic %q)", err, from))
		}
	}
	if err := field.Text("Prefix", d.Prefix, 0); err != nil {
		errs = append(errs, err)
	}
	if d.Window < 0 {
		errs = append(errs, fmt.Errorf("Window: %d is negative", d.Window))
	}
	errs = append(errs, validateRate(d.MaxPerSecond))
	if d.MaxPerSecond > 0 && len(d.Name) > maxLimited {
		errs = append(errs, fmt.Errorf("Name: has %d bytes, more than %d for a downstream with MaxPerSecond", len(d.Name), maxLimited))
	}
	return errors.Join(errs...)
}

const (
	maxRate    = 1e9
	maxLimited = 244 // bytes of a name: that of its bucket has at most 255
)

// validateRate checks a MaxPerSecond.
func validateRate(perSecond float64) error {
	if perSecond >= 0 && perSecond <= maxRate {
		return nil
	}
	return fmt.Errorf("MaxPerSecond: %v is not between 0 and %v", perSecond, float64(maxRate))
}

// validatePatterns joins all faults of the patterns of a field.
func validatePatterns(name string, patterns []string) error {
	var errs []error
	for _, pattern := range patterns {
		if err := field.Text(name, pattern, 1); err != nil {
			errs = append(errs, err)
		}
		if err := topics.CheckPattern(pattern); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// validateDownstreams joins all faults of the downstreams of c.
func (c *Config) validateDownstreams() error {
	var errs []error
	wrong := func(i int, err error) { errs = append(errs, fmt.Errorf("%s[%d]: %w", "Downstreams", i, err)) }
	names := make(map[string]bool, len(c.Downstreams))
	for i := range c.Downstreams {
		d := &c.Downstreams[i]
		if err := d.validate(); err != nil {
			wrong(i, err)
		}
		if names[d.Name] {
			wrong(i, fmt.Errorf("Name: %q is taken", d.Name))
		}
		names[d.Name] = true
	}
	return errors.Join(errs...)
}
