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
	// maxConsumers is how many consumers one audit can check: each has a bit of openEvent.awaited.
	maxConsumers = 64
)

// NamedOutbox is an outbox with its name in the report.
type NamedOutbox struct {
	Name   string
	Outbox Outbox
}

// NamedInbox is an inbox with its name in the report.
type NamedInbox struct {
	Name  string
	Inbox Inbox
}

// Expectation names the topics that a consumer should receive.
type Expectation struct {
	// Consumer is the consumer's name, as registered in its inbox.
	Consumer string `yaml:"consumer" env:"CONSUMER"`
	// Topics are patterns of a RabbitMQ topic exchange: words are separated by dots, * stands for
	// one word and # for any number of words.
	Topics []string `yaml:"topics" env:"TOPICS"`
	// Partial means that the consumer also reads from producers whose outboxes are not given. Its
	// claims without an event are then not reported as [NotCommitted].
	Partial bool `yaml:"partial" env:"PARTIAL"`
}

// Config configures an [Audit].
type Config struct {
	// Outboxes are the outboxes whose events are checked; at least one.
	Outboxes []NamedOutbox `yaml:"-" env:"-"`
	// Inboxes are the inboxes whose consumers are checked. Without inboxes only the outboxes are
	// checked. Defaults to none.
	Inboxes []NamedInbox `yaml:"-" env:"-"`
	// Expect names the topics of each consumer, for at most 64 consumers. With inboxes, at least
	// one expectation is required. Defaults to none.
	Expect []Expectation `yaml:"expect" envPrefix:"EXPECT_"`
	// Grace is how long an event may take from its creation to its claim. Grace should exceed the
	// deadline of the slowest handler. Defaults to 5 minutes.
	Grace time.Duration `yaml:"grace" env:"GRACE"`
	// From is the earliest creation time of a checked event. Defaults to no bound.
	From time.Time `yaml:"from" env:"FROM"`
	// Until is the time before which a checked event was created. Claims are compared only for
	// events older than Grace, whatever Until is. Defaults to no bound.
	Until time.Time `yaml:"until" env:"UNTIL"`
	// Accept lists kinds of findings that are counted and shown, and leave the report clean.
	// Defaults to none.
	Accept []Kind `yaml:"accept" env:"ACCEPT"`
	// Examples is how many findings of each kind the report keeps. Defaults to 10.
	Examples int `yaml:"examples" env:"EXAMPLES"`
	// PageSize is how many rows are read in one transaction; at most 20,000. Memory grows with
	// PageSize. Defaults to 5,000.
	PageSize int `yaml:"page_size" env:"PAGE_SIZE"`
	// Progress is called after each page, in the goroutine of Run. Defaults to no call.
	Progress func(Progress) `yaml:"-" env:"-"`
}

// Progress is how far an audit has come.
type Progress struct {
	Events     int // events read so far
	Claims     int // claims read so far
	Candidates int // suspects and unmatched rows looked up so far
	// Through is the creation time up to which the first outbox has been read; zero while queues
	// and parked rows are read.
	Through time.Time
	Done    float64 // estimated share of the work, from 0 to 1
}

// Audit compares outboxes with inboxes. An Audit may be used from any goroutine.
type Audit struct{ cfg Config }

// New returns an Audit, or an error that joins all mistakes in cfg. New does no I/O.
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
		err = errors.New("Outboxes: at least one is required")
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
