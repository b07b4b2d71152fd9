package audit

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	defaultGrace    = 5 * time.Minute
	defaultExamples = 10
	defaultPage     = 5000
	maxPage         = 20_000
	// maxConsumers is how many consumers can be awaited for one event.
	maxConsumers = 64
)

// NamedOutbox is an outbox and what it is called in the report.
type NamedOutbox struct {
	Name   string
	Outbox Outbox
}

// NamedInbox is an inbox and what it is called in the report.
type NamedInbox struct {
	Name  string
	Inbox Inbox
}

// Expectation says which topics a consumer should have.
type Expectation struct {
	// Consumer is the consumer's name, as it registered.
	Consumer string `yaml:"consumer" env:"CONSUMER"`
	// Topics are patterns, as those of a RabbitMQ topic exchange: words are separated
	// by dots, * stands for one word and # for any number of them.
	Topics []string `yaml:"topics" env:"TOPICS"`
	// Partial says that the consumer also reads from producers whose outbox is not given.
	// Nothing that it has applied is then reported as [NotCommitted].
	Partial bool `yaml:"partial" env:"PARTIAL"`
}

// Config configures an [Audit].
type Config struct {
	// Outboxes are those whose events are checked; at least one.
	Outboxes []NamedOutbox `yaml:"-" env:"-"`
	// Inboxes are those whose consumers are checked. Without any, only the outboxes are
	// looked at. Defaults to none.
	Inboxes []NamedInbox `yaml:"-" env:"-"`
	// Expect says which consumer should have what; at most 64 consumers. With inboxes, at least
	// one. Defaults to none.
	Expect []Expectation `yaml:"expect" envPrefix:"EXPECT_"`
	// Grace is how long an event may be on its way. It should exceed the deadline of the
	// slowest handler. Defaults to 5 minutes.
	Grace time.Duration `yaml:"grace" env:"GRACE"`
	// From bounds the creation of the events that are checked: from then on. Defaults to no bound.
	From time.Time `yaml:"from" env:"FROM"`
	// Until bounds it as well: before then. Defaults to what is older than Grace.
	Until time.Time `yaml:"until" env:"UNTIL"`
	// Accept are kinds that are counted and shown, and do not make a report unclean. Defaults to
	// none.
	Accept []Kind `yaml:"accept" env:"ACCEPT"`
	// Examples is how many findings of each kind are kept. Defaults to 10.
	Examples int `yaml:"examples" env:"EXAMPLES"`
	// PageSize is how many rows are read in one transaction; at most 20,000. Memory grows with it.
	// Defaults to 5,000.
	PageSize int `yaml:"page_size" env:"PAGE_SIZE"`
	// Progress is called after each page, by the goroutine of Run. Defaults to nothing.
	Progress func(Progress) `yaml:"-" env:"-"`
}

// Progress says how far an audit is.
type Progress struct {
	Events     int       // read so far
	Claims     int       // read so far
	Candidates int       // looked up so far
	Through    time.Time // up to which both sides are read
	Done       float64   // the share that is done, from 0 to 1, as far as it can be known
}

// Audit compares outboxes with inboxes.
type Audit struct{ cfg Config }

// New returns an audit. It does no I/O.
func New(cfg Config) (*Audit, error) {
	if cfg.Grace == 0 {
		cfg.Grace = defaultGrace
	}
	if cfg.Examples == 0 {
		cfg.Examples = defaultExamples
	}
	if cfg.PageSize == 0 {
		cfg.PageSize = defaultPage
	}
	if cfg.Progress == nil {
		cfg.Progress = func(Progress) {}
	}
	if err := errors.Join(cfg.checkSources(), cfg.checkExpectations(), cfg.checkNumbers()); err != nil {
		return nil, fmt.Errorf("audit config: %w", err)
	}
	return &Audit{cfg: cfg}, nil
}

func (c *Config) checkSources() (err error) {
	if len(c.Outboxes) == 0 {
		err = errors.New("Outboxes: there is none")
	}
	for i, o := range c.Outboxes {
		if o.Outbox == nil {
			err = errors.Join(err, fmt.Errorf("Outboxes: %d has no Outbox", i))
		}
	}
	for i, in := range c.Inboxes {
		if in.Inbox == nil {
			err = errors.Join(err, fmt.Errorf("Inboxes: %d has no Inbox", i))
		}
	}
	return err
}

func (c *Config) checkExpectations() (err error) {
	add := func(format string, args ...any) { err = errors.Join(err, fmt.Errorf("Expect: "+format, args...)) }
	switch {
	case len(c.Inboxes) > 0 && len(c.Expect) == 0:
		add("nothing says which consumer should have which topics")
	case len(c.Inboxes) == 0 && len(c.Expect) > 0:
		add("there is no inbox to find consumer %q in", c.Expect[0].Consumer)
	case len(c.Expect) > maxConsumers:
		add("%d consumers are more than %d: check them in several runs", len(c.Expect), maxConsumers)
	}
	seen := make(map[string]bool)
	for _, e := range c.Expect {
		switch {
		case e.Consumer == "":
			add("a consumer has no name")
		case seen[e.Consumer]:
			add("consumer %q is named twice", e.Consumer)
		case len(e.Topics) == 0 || slices.Contains(e.Topics, ""):
			add("consumer %q: a topic is missing", e.Consumer)
		}
		seen[e.Consumer] = true
	}
	return err
}

func (c *Config) checkNumbers() (err error) {
	add := func(format string, args ...any) { err = errors.Join(err, fmt.Errorf(format, args...)) }
	if c.Grace < 0 {
		add("Grace: %v is negative", c.Grace)
	}
	if c.Examples < 0 {
		add("Examples: %d is negative", c.Examples)
	}
	if c.PageSize < 0 || c.PageSize > maxPage {
		add("PageSize: %d is not between 1 and %d", c.PageSize, maxPage)
	}
	if !c.Until.IsZero() && !c.From.Before(c.Until) {
		add("Until: %v is not after From", c.Until.Format(time.RFC3339))
	}
	for _, kind := range c.Accept {
		if !slices.Contains(Kinds(), kind) {
			add("Accept: there is no kind %q", kind)
		}
	}
	return err
}
