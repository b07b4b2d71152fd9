package relay

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/boxpair/boxpair/producer/internal/field"
	"github.com/boxpair/boxpair/producer/relay/internal/core"
	"github.com/boxpair/boxpair/transport/signature"
)

// Config tunes a [Relay]. The zero value is complete.
type Config struct {
	// Name is the relay's identity among the relays of one outbox; no two running relays may share
	// a name. At most 255 bytes. Defaults to host name, process ID and a random part, new for each
	// relay.
	Name string `yaml:"name" env:"NAME"`

	// LeaseTTL is how long a shard belongs to a relay without a renewal: the shards of a dead relay
	// stand still for LeaseTTL and a little longer. On PostgreSQL they are taken over half a second
	// after the end of its process, if the relay listens and no pooler is in between (see Direct of
	// postgres.Config). Leases are renewed after a third of LeaseTTL, or half of it by an idle relay (see
	// PollIdle) without others, and no statement may take longer than LeaseTTL. Defaults to 10 s; at
	// least 100 ms.
	LeaseTTL time.Duration `yaml:"lease_ttl" env:"LEASE_TTL"`
	// Window is how many events may be in flight at the transport at once. After a crash, at most
	// four times as many events are sent a second time. Defaults to 1000.
	Window int `yaml:"window" env:"WINDOW"`
	// WindowBytes is about how many bytes of events are kept in memory: as many events as fit by
	// the average size of the latest events, and at most twice Window. The first fetches bring few
	// events. A fetch may bring FetchSize events that are suddenly much larger than the average.
	// Defaults to 64 MiB.
	WindowBytes int `yaml:"window_bytes" env:"WINDOW_BYTES"`
	// FetchSize is how many events one statement reads from the queue, besides as many late
	// commits. Fewer events are read if they are large, or after a statement that took too long.
	// Defaults to Window.
	FetchSize int `yaml:"fetch_size" env:"FETCH_SIZE"`
	// MaxPerKey is how many events of one key are kept in memory. The fetch reads past further
	// events of the key, so other keys need not wait. Defaults to 100.
	MaxPerKey int `yaml:"max_per_key" env:"MAX_PER_KEY"`

	// MaxAttempts is how many attempts of an event are counted before it is
	// dead. Defaults to 10.
	MaxAttempts int `yaml:"max_attempts" env:"MAX_ATTEMPTS"`
	// DropUnroutable are patterns (see [Downstream].Topics) for topics that may have nobody who
	// listens: an event that the transport returns as unroutable counts as delivered. The relay logs
	// the first one of a topic, and then their number once an hour. Consumers that come later never
	// see such an event, unless it is replayed. Defaults to none: an event that no queue takes waits,
	// and is dead after MaxAttempts.
	DropUnroutable []string `yaml:"drop_unroutable" env:"DROP_UNROUTABLE"`
	// MaxPerSecond is how many events all relays together send to the publisher of [New] in a second;
	// see [Downstream].MaxPerSecond, also for the other downstreams. Defaults to 0: no limit.
	MaxPerSecond float64 `yaml:"max_per_second" env:"MAX_PER_SECOND"`
	// Backoff is how long an event waits after a counted attempt.
	Backoff Backoff `yaml:"backoff" envPrefix:"BACKOFF_"`
	// HoldDeadKeys holds the later events of a key with a dead event until an operator redrives or
	// discards the dead event. Otherwise the key goes on. Defaults to false.
	HoldDeadKeys bool `yaml:"hold_dead_keys" env:"HOLD_DEAD_KEYS"`

	// AllowLoss accepts a publisher that is known to report lost messages as published, as
	// watermill-amqp's publisher does with messages that no queue takes. Defaults to false: such a
	// publisher is refused.
	AllowLoss bool `yaml:"allow_loss" env:"ALLOW_LOSS"`

	// PollMin is the least time between two polls of all shards without a wake-up; a shard known to
	// have more events is read on at once. A wake-up polls at once, up to 20 times in advance; on
	// average, wake-ups poll once in PollMin at most. If more than 3 events are committed in
	// PollMin, polls are up to four times as far apart: a poll then returns more events, and the
	// database has time for other work. Defaults to 5 ms.
	PollMin time.Duration `yaml:"poll_min" env:"POLL_MIN"`
	// PollMax is the time between two polls of an empty queue. The time grows from PollMin to
	// PollMax, and a wake-up sets it back. PollMax is also the longest time between two polls for
	// deferred events: a relay knows when the next deferred event is due, except for events written
	// or rescheduled since its last poll. A wake-up brings a poll for deferred events within 100
	// ms. Defaults to 500 ms.
	PollMax time.Duration `yaml:"poll_max" env:"POLL_MAX"`
	// PollIdle takes the place of PollMax in an idle relay: no event has come for twice PollIdle, and
	// a wake-up of a process has arrived since the relay began to listen. PollIdle is then the longest
	// delay of an event whose wake-up was lost. After an event without a wake-up, PollMax counts for
	// an hour, and until a wake-up arrives. Equal to PollMax, PollIdle has no effect. Defaults to 5 s,
	// or to PollMax if PollMax is set.
	PollIdle time.Duration `yaml:"poll_idle" env:"POLL_IDLE"`
	// PollOnly keeps the relay from listening for wake-ups of other processes, which takes a
	// connection of its own. If the relay dies, its shards then stand still until its leases end.
	// Defaults to false.
	PollOnly bool `yaml:"poll_only" env:"POLL_ONLY"`

	// SendTimeout bounds the wait for the outcome of one send. An event whose outcome is unknown by
	// then is sent again, also if the publisher, against its contract, has reported no outcome a
	// second later. Defaults to 30 s.
	SendTimeout time.Duration `yaml:"send_timeout" env:"SEND_TIMEOUT"`
	// RouteProbeInterval is the time between two probes of a route without a success; the first few
	// probes come sooner. Defaults to 1 s.
	RouteProbeInterval time.Duration `yaml:"route_probe_interval" env:"ROUTE_PROBE_INTERVAL"`
	// RouteGrace is how long a route may be without a success before the route is reported as an
	// error. Defaults to 1 minute.
	RouteGrace time.Duration `yaml:"route_grace" env:"ROUTE_GRACE"`
	// Publishers is how many Publish calls may be under way at once, for a
	// publisher that is no [transport.Sender]. Defaults to 8.
	Publishers int `yaml:"publishers" env:"PUBLISHERS"`

	// Downstreams are further publishers, for the topics of their patterns. Defaults to none: all
	// events go to the publisher of New.
	Downstreams []Downstream `yaml:"downstreams" envPrefix:"DOWNSTREAMS_"`

	// ShutdownTimeout is how long Run, after the end of its context, waits for the outcomes of
	// events in flight. Shards with events still in flight are then not given back: their leases
	// run out. Defaults to 15 s.
	ShutdownTimeout time.Duration `yaml:"shutdown_timeout" env:"SHUTDOWN_TIMEOUT"`

	// Signer signs every message for its topic, as named at the publisher. Consumers can then tell
	// the messages from messages of other senders; see consumer.Config. Defaults to nil: messages
	// are not signed.
	Signer *signature.Signer `yaml:"-" env:"-"`

	// Observer is told of parked and dead events, of routes that stall, and of pauses.
	Observer Observer `yaml:"-" env:"-"`

	// Logger receives every failed attempt, park, take-over and lost lease, and errors of the
	// database. Defaults to [slog.Default].
	Logger *slog.Logger `yaml:"-" env:"-"`
}

// Backoff is how long an event waits before it is sent again. The time is drawn at random between 0
// and a bound, which begins with Initial and doubles with every attempt up to Max. So events that
// failed together do not come back together.
type Backoff struct {
	// Initial is the bound after the first attempt. Defaults to 1 s.
	Initial time.Duration `yaml:"initial" env:"INITIAL"`
	// Max is the largest bound. Defaults to 5 minutes, or to Initial if longer.
	Max time.Duration `yaml:"max" env:"MAX"`
}

const minLeaseTTL = 100 * time.Millisecond

// withDefaults returns c with its zero fields filled in, or an error that joins all faults of c.
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
	idle := c.PollMax
	if idle == 0 {
		idle = max(5*time.Second, c.PollMin)
	}
	span("PollMax", &c.PollMax, max(500*time.Millisecond, c.PollMin))
	span("PollIdle", &c.PollIdle, idle)
	span("SendTimeout", &c.SendTimeout, 30*time.Second)
	span("RouteProbeInterval", &c.RouteProbeInterval, time.Second)
	span("RouteGrace", &c.RouteGrace, time.Minute)
	span("ShutdownTimeout", &c.ShutdownTimeout, 15*time.Second)
	errs = append(errs, c.validateDownstreams(), validateRate(c.MaxPerSecond), validatePatterns("DropUnroutable", c.DropUnroutable))
	if c.LeaseTTL > 0 && c.LeaseTTL < minLeaseTTL {
		errs = append(errs, fmt.Errorf("LeaseTTL: %v is shorter than %v", c.LeaseTTL, minLeaseTTL))
	}
	if c.Backoff.Initial > 0 && c.Backoff.Max > 0 && c.Backoff.Max < c.Backoff.Initial {
		errs = append(errs, fmt.Errorf("Backoff.Max: %v is shorter than Initial, %v", c.Backoff.Max, c.Backoff.Initial))
	}
	if c.PollMin > 0 && c.PollMax > 0 && c.PollMax < c.PollMin {
		errs = append(errs, fmt.Errorf("PollMax: %v is shorter than PollMin, %v", c.PollMax, c.PollMin))
	}
	if c.PollMax > 0 && c.PollIdle > 0 && c.PollIdle < c.PollMax {
		errs = append(errs, fmt.Errorf("PollIdle: %v is shorter than PollMax, %v", c.PollIdle, c.PollMax))
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, errors.Join(errs...)
}

// core returns the settings of the core. c has its defaults.
func (c *Config) core() core.Options {
	return core.Options{
		Name: c.Name, LeaseTTL: c.LeaseTTL, Window: c.Window, WindowBytes: c.WindowBytes, FetchSize: c.FetchSize,
		MaxPerKey: c.MaxPerKey, MaxAttempts: c.MaxAttempts, Backoff: core.Backoff{Initial: c.Backoff.Initial, Max: c.Backoff.Max},
		HoldDeadKeys: c.HoldDeadKeys, PollMin: c.PollMin, PollMax: c.PollMax, PollIdle: c.PollIdle,
		RouteProbeInterval: c.RouteProbeInterval, RouteGrace: c.RouteGrace, Observed: c.Observer.wanted(),
	}
}

// defaultRelayName names a relay by its host and process, for readers of the table of relays.
func defaultRelayName() string {
	host, err := os.Hostname()
	if err != nil || host == "" || len(host) > 200 {
		host = "relay"
	}
	return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), rand.Text()[:8])
}
