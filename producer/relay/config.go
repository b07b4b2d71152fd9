package relay

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/core"

	"github.com/boxpair/boxpair/producer/internal/field"
	"github.com/boxpair/boxpair/transport/signature"
)

// Config tunes a [Relay]. The zero value is complete.
type Config struct {
	// Name is the relay's identity among the relays of one outbox; no two that
	// run may share one. At most 255 bytes. Defaults to host name, process ID and a random
	// part, new for each relay.
	Name string `yaml:"name" env:"NAME"`

	// LeaseTTL is how long a shard belongs to a relay without a renewal: the
	// longest that the shards of a relay that died stand still. Leases are renewed after
	// a third of it, and no statement may take longer than it. Defaults to 10 s; at
	// least 100 ms.
	LeaseTTL time.Duration `yaml:"lease_ttl" env:"LEASE_TTL"`
	// Window is how many events may be in flight at the transport at once. A
	// crash sends at most four times as many a second time. Defaults to 1000.
	Window int `yaml:"window" env:"WINDOW"`
	// WindowBytes is how many bytes of events are kept in memory, about: as many events as have
	// these by the average of those that were read last, and no more than twice Window. The first
	// fetches bring few events. One that brings events that are suddenly much larger than the last
	// ones were may bring FetchSize of them. Defaults to 64 MiB.
	WindowBytes int `yaml:"window_bytes" env:"WINDOW_BYTES"`
	// FetchSize is how many events one statement reads from the queue, and as many again that
	// committed late, unless they are so large that fewer are enough. A statement that takes too
	// long is followed by smaller ones. Defaults to Window.
	FetchSize int `yaml:"fetch_size" env:"FETCH_SIZE"`
	// MaxPerKey is how many events of one key are kept in memory. The fetch reads
	// past a key with more, so that others need not wait behind it. Defaults to 100.
	MaxPerKey int `yaml:"max_per_key" env:"MAX_PER_KEY"`

	// MaxAttempts is how many attempts of an event are counted before it is
	// dead. Defaults to 10.
	MaxAttempts int `yaml:"max_attempts" env:"MAX_ATTEMPTS"`
	// Backoff is how long an event waits after a counted attempt.
	Backoff Backoff `yaml:"backoff" envPrefix:"BACKOFF_"`
	// HoldDeadKeys keeps the events of a key behind a dead one until an operator
	// redrives or discards that. Otherwise the key goes on without it. Defaults to false.
	HoldDeadKeys bool `yaml:"hold_dead_keys" env:"HOLD_DEAD_KEYS"`

	// AllowLoss accepts a publisher that is known to report messages as published that it has lost:
	// watermill-amqp's own, which does so of what no queue takes. Defaults to false: it is refused.
	AllowLoss bool `yaml:"allow_loss" env:"ALLOW_LOSS"`

	// PollMin is the least time between two looks at the queue while it is not drained, unless
	// memory has run empty. A wake-up brings one at once, up to 20 in advance: on the average,
	// wake-ups bring no more than one look in that time. Where more than 3 events are committed in
	// it, looks are up to four times as far apart, so that they find many at once and leave the
	// database to others. Defaults to 5 ms.
	PollMin time.Duration `yaml:"poll_min" env:"POLL_MIN"`
	// PollMax is the time between two looks at an empty queue. The relay works its way there from
	// PollMin, and a wake-up brings it back. It is also the longest time between two looks for
	// deferred events: a relay knows when the next one is due, except for those that were written
	// or moved since its last look. A wake-up brings one within 100 ms. Defaults to 500 ms.
	PollMax time.Duration `yaml:"poll_max" env:"POLL_MAX"`
	// PollOnly keeps the relay from listening for wake-ups of other processes,
	// which takes a connection of its own. Defaults to false.
	PollOnly bool `yaml:"poll_only" env:"POLL_ONLY"`

	// SendTimeout bounds the wait for the outcome of one send. An event whose outcome is not known
	// by then is sent again, also where the publisher, against its contract, has told none a second
	// later. Defaults to 30 s.
	SendTimeout time.Duration `yaml:"send_timeout" env:"SEND_TIMEOUT"`
	// RouteProbeInterval is the time between two probes of a route on which
	// nothing succeeds; the first few come sooner. Defaults to 1 s.
	RouteProbeInterval time.Duration `yaml:"route_probe_interval" env:"ROUTE_PROBE_INTERVAL"`
	// RouteGrace is how long nothing may succeed on a route before that is
	// reported as an error. Defaults to 1 minute.
	RouteGrace time.Duration `yaml:"route_grace" env:"ROUTE_GRACE"`
	// Publishers is how many Publish calls may be under way at once, for a
	// publisher that is no [transport.Sender]. Defaults to 8.
	Publishers int `yaml:"publishers" env:"PUBLISHERS"`

	// Downstreams are further publishers, for the topics that they say. Defaults to none:
	// everything goes to the publisher of New.
	Downstreams []Downstream `yaml:"downstreams" envPrefix:"DOWNSTREAMS_"`

	// ShutdownTimeout is how long Run, when told to stop, waits for the outcomes
	// of what is in flight. Shards that still have something in flight then are not
	// given back: their leases run out. Defaults to 15 s.
	ShutdownTimeout time.Duration `yaml:"shutdown_timeout" env:"SHUTDOWN_TIMEOUT"`

	// Signer signs every message for its topic, as the topic is at its publisher, so that consumers
	// can tell it from what others send; see consumer.Config. Defaults to nil: messages are
	// not signed.
	Signer *signature.Signer `yaml:"-" env:"-"`

	// Logger receives every failed attempt, park, take-over and lost lease, and
	// what goes wrong with the database. Defaults to [slog.Default].
	Logger *slog.Logger `yaml:"-" env:"-"`
}

// Backoff says how long an event waits before it is sent again. The time is
// drawn at random between 0 and a bound that begins with Initial and doubles
// with every attempt up to Max, so that events that failed together do not come
// back together.
type Backoff struct {
	// Initial is the bound after the first attempt. Defaults to 1 s.
	Initial time.Duration `yaml:"initial" env:"INITIAL"`
	// Max is the largest bound. Defaults to 5 minutes, or to Initial if that is longer.
	Max time.Duration `yaml:"max" env:"MAX"`
}

const minLeaseTTL = 100 * time.Millisecond

// withDefaults returns c with its zero fields filled in, or an error that joins
// everything that is wrong with it.
func (c Config) withDefaults() (Config, error) {
	var errs []error
	if c.Name == "" {
		c.Name = defaultRelayName()
	}
	if err := field.Text("Name", c.Name, 1); err != nil {
		errs = append(errs, err)
	}
	count := func(name string, value *int, def int) {
		if *value < 0 {
			errs = append(errs, fmt.Errorf("%s: %d is negative", name, *value))
		}
		if *value == 0 {
			*value = def
		}
	}
	count("Window", &c.Window, 1000)
	count("WindowBytes", &c.WindowBytes, 64<<20)
	count("FetchSize", &c.FetchSize, c.Window)
	count("MaxPerKey", &c.MaxPerKey, 100)
	count("MaxAttempts", &c.MaxAttempts, 10)
	count("Publishers", &c.Publishers, 8)
	span := func(name string, value *time.Duration, def time.Duration) {
		if *value < 0 {
			errs = append(errs, fmt.Errorf("%s: %v is negative", name, *value))
		}
		if *value == 0 {
			*value = def
		}
	}
	span("LeaseTTL", &c.LeaseTTL, 10*time.Second)
	span("Backoff.Initial", &c.Backoff.Initial, time.Second)
	span("Backoff.Max", &c.Backoff.Max, max(5*time.Minute, c.Backoff.Initial))
	span("PollMin", &c.PollMin, 5*time.Millisecond)
	span("PollMax", &c.PollMax, max(500*time.Millisecond, c.PollMin))
	span("SendTimeout", &c.SendTimeout, 30*time.Second)
	span("RouteProbeInterval", &c.RouteProbeInterval, time.Second)
	span("RouteGrace", &c.RouteGrace, time.Minute)
	span("ShutdownTimeout", &c.ShutdownTimeout, 15*time.Second)
	if err := c.validateDownstreams(); err != nil {
		errs = append(errs, err)
	}
	if c.LeaseTTL > 0 && c.LeaseTTL < minLeaseTTL {
		errs = append(errs, fmt.Errorf("LeaseTTL: %v is shorter than %v", c.LeaseTTL, minLeaseTTL))
	}
	if c.Backoff.Initial > 0 && c.Backoff.Max > 0 && c.Backoff.Max < c.Backoff.Initial {
		errs = append(errs, fmt.Errorf("Backoff.Max: %v is shorter than Initial, %v", c.Backoff.Max, c.Backoff.Initial))
	}
	if c.PollMin > 0 && c.PollMax > 0 && c.PollMax < c.PollMin {
		errs = append(errs, fmt.Errorf("PollMax: %v is shorter than PollMin, %v", c.PollMax, c.PollMin))
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, errors.Join(errs...)
}

// core returns what the core needs of c, which has its defaults.
func (c *Config) core() core.Options {
	return core.Options{
		Name: c.Name, LeaseTTL: c.LeaseTTL, Window: c.Window, WindowBytes: c.WindowBytes, FetchSize: c.FetchSize,
		MaxPerKey: c.MaxPerKey, MaxAttempts: c.MaxAttempts, Backoff: core.Backoff{Initial: c.Backoff.Initial, Max: c.Backoff.Max},
		HoldDeadKeys: c.HoldDeadKeys, PollMin: c.PollMin, PollMax: c.PollMax,
		RouteProbeInterval: c.RouteProbeInterval, RouteGrace: c.RouteGrace,
	}
}

// defaultRelayName names a relay by where it runs, for whoever reads the table
// of leases, and at random, since containers may share host names and process IDs.
func defaultRelayName() string {
	host, err := os.Hostname()
	if err != nil || host == "" || len(host) > 200 {
		host = "relay"
	}
	return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), rand.Text()[:8])
}
