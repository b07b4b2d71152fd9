package health

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// State is the state of health of an outbox or an inbox.
type State string

const (
	// Healthy: neither ages nor numbers have reached a bound.
	Healthy State = "healthy"
	// Degraded: an operator should look at it, but not at once.
	Degraded State = "degraded"
	// Unhealthy: events are not sent in time, or messages not handled in time.
	Unhealthy State = "unhealthy"
)

// Worst returns the worst of states, and Healthy if there are none.
func Worst(states ...State) State {
	switch {
	case slices.Contains(states, Unhealthy):
		return Unhealthy
	case slices.Contains(states, Degraded):
		return Degraded
	}
	return Healthy
}

// Config sets the bounds from which on a state is degraded or unhealthy. The zero value is
// complete. To ignore an age or a number, set its bounds to an unreachable value, such as
// math.MaxInt.
//
// In an outbox, queued events and events parked for another attempt are waiting. In an inbox,
// parked messages and unfinished effects outside the database are waiting. Deferred events do not
// count until they are due.
type Config struct {
	// DegradedAge is the age of the oldest waiting event or message from which on the state is
	// degraded. Relays send within milliseconds, so an age of a minute means an outage, or a
	// failing event. Defaults to 1 minute.
	DegradedAge time.Duration `yaml:"degraded_age" env:"DEGRADED_AGE"`
	// UnhealthyAge is the age from which on the state is unhealthy. With the default attempts and
	// backoff, a refused event is dead after 8.5 minutes at most, so one bad event does not make an
	// outbox unhealthy. A failing message of an inbox is retried for up to 36 minutes. Defaults to 10
	// minutes, or to DegradedAge if DegradedAge is longer.
	UnhealthyAge time.Duration `yaml:"unhealthy_age" env:"UNHEALTHY_AGE"`

	// DegradedPending is the number of waiting events or messages from which on the state is
	// degraded. Defaults to 10,000, some seconds of work.
	DegradedPending int `yaml:"degraded_pending" env:"DEGRADED_PENDING"`
	// UnhealthyPending is the number from which on the state is unhealthy. Stores stop counting at
	// 100,000 rows of a kind, and a count of 100,000 has reached every bound. Defaults to no bound:
	// a burst that is being sent is not unhealthy, and a stuck burst grows old.
	UnhealthyPending int `yaml:"unhealthy_pending" env:"UNHEALTHY_PENDING"`

	// DegradedDead is the number of rows for an operator from which on the state is degraded: dead
	// events or messages, and in an inbox also messages that are too old or altered, and uncertain
	// effects. Defaults to 1.
	DegradedDead int `yaml:"degraded_dead" env:"DEGRADED_DEAD"`
	// UnhealthyDead is the number of rows for an operator from which on the state is unhealthy. So
	// many rows are no longer bad events, but a bad deployment. Defaults to 100, or to DegradedDead
	// if DegradedDead is more.
	UnhealthyDead int `yaml:"unhealthy_dead" env:"UNHEALTHY_DEAD"`
}

// withDefaults returns c with its zero fields filled in, or an error that joins all mistakes in c.
func (c Config) withDefaults() (Config, error) {
	var errs []error
	errs = append(errs, fill("DegradedAge", &c.DegradedAge, time.Minute), fill("DegradedPending", &c.DegradedPending, 10_000),
		fill("DegradedDead", &c.DegradedDead, 1), fill("UnhealthyAge", &c.UnhealthyAge, max(10*time.Minute, c.DegradedAge)),
		fill("UnhealthyPending", &c.UnhealthyPending, 0), fill("UnhealthyDead", &c.UnhealthyDead, max(100, c.DegradedDead)))
	if err := errors.Join(errs...); err != nil {
		return c, err
	}
	if c.UnhealthyAge < c.DegradedAge {
		errs = append(errs, fmt.Errorf("UnhealthyAge: %v is shorter than DegradedAge, %v", c.UnhealthyAge, c.DegradedAge))
	}
	if c.UnhealthyPending > 0 && c.UnhealthyPending < c.DegradedPending {
		errs = append(errs, fmt.Errorf("UnhealthyPending: %d is less than DegradedPending, %d", c.UnhealthyPending, c.DegradedPending))
	}
	if c.UnhealthyDead < c.DegradedDead {
		errs = append(errs, fmt.Errorf("UnhealthyDead: %d is less than DegradedDead, %d", c.UnhealthyDead, c.DegradedDead))
	}
	return c, errors.Join(errs...)
}

func fill[T time.Duration | int](name string, value *T, def T) error {
	if *value < 0 {
		return fmt.Errorf("%s: %v is negative", name, *value)
	}
	if *value == 0 {
		*value = def
	}
	return nil
}

// Check judges states. A Check may be used from any goroutine.
type Check struct{ cfg Config }

// New returns a Check, or an error that joins all mistakes in cfg, each with the name of its field.
func New(cfg Config) (*Check, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("health config: %w", err)
	}
	return &Check{cfg}, nil
}

// Report is the judgement of a [Check].
type Report struct {
	State State `json:"state"`
	// Problems are the reasons why the state is not healthy, in words for an operator; never nil.
	// They hold no key, topic or payload.
	Problems []string `json:"problems"`
}

// Outbox judges the state of an outbox. An outbox without a relay, or whose relays own no shard, is
// degraded even if no event waits: new events would not be sent.
func (c *Check) Outbox(s outbox.Stats) Report {
	r := Report{Healthy, []string{}}
	c.age(&r, "the oldest pending event is %v old", s.OldestPending)
	c.pending(&r, "pending events", s.Pending+s.Retrying+s.Following, s.PendingCapped)
	c.dead(&r, "dead events", s.Dead)
	switch {
	case s.Relays == 0:
		r.add(false, "no relay runs")
	case s.Owned == 0:
		r.add(false, "no shard has a relay")
	}
	return r
}

// Routes returns r with the stalled routes that [producer.Outbox.ListRoutes] reads. A stalled route
// makes the outbox degraded, unless an operator has paused it. Its events wait and are not lost; their
// age can make the outbox unhealthy.
func (c *Check) Routes(r Report, stalled []outbox.StalledRoute) Report {
	names := make(map[string]bool)
	for i := range stalled {
		if stalled[i].State != outbox.RoutePaused {
			names[stalled[i].Route] = true
		}
	}
	if len(names) > 0 {
		r.add(false, fmt.Sprintf("routes that do not work: %d", len(names)))
	}
	return r
}

// Inbox judges the state of a consumer's inbox.
func (c *Check) Inbox(s inbox.Stats) Report {
	r, e := Report{Healthy, []string{}}, &s.Effects
	c.age(&r, "the oldest message that is retried or waits for one is %v old", s.OldestParked)
	c.age(&r, "the oldest effect that is not done is %v old", e.Oldest)
	c.pending(&r, "messages and effects that wait", s.Retrying+s.Following+e.Pending+e.Doing+e.Answered, false)
	c.dead(&r, "messages and effects for an operator", s.Dead+s.TooOld+s.Altered+e.Dead+e.Uncertain)
	return r
}

func (c *Check) age(r *Report, format string, age time.Duration) {
	if age >= c.cfg.DegradedAge {
		r.add(age >= c.cfg.UnhealthyAge, fmt.Sprintf(format, age.Round(time.Millisecond)))
	}
}

func (c *Check) pending(r *Report, what string, n int64, capped bool) {
	if capped || n >= int64(c.cfg.DegradedPending) {
		bad := c.cfg.UnhealthyPending > 0 && (capped || n >= int64(c.cfg.UnhealthyPending))
		more := ""
		if capped {
			more = " or more"
		}
		r.add(bad, fmt.Sprintf("%s: %d%s", what, n, more))
	}
}

func (c *Check) dead(r *Report, what string, n int64) {
	if n >= int64(c.cfg.DegradedDead) {
		r.add(n >= int64(c.cfg.UnhealthyDead), fmt.Sprintf("%s: %d", what, n))
	}
}

// add adds a problem, and worsens the state of the report if the problem is worse.
func (r *Report) add(bad bool, problem string) {
	state := Degraded
	if bad {
		state = Unhealthy
	}
	r.State = Worst(r.State, state)
	r.Problems = append(r.Problems, string(state)+": "+problem)
}
