package lineage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/boxpair/boxpair/internal/topics"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

const (
	defaultMaxDepth    = 20
	defaultMaxEvents   = 1000
	defaultMaxInterval = time.Second
	// firstPause is how long Wait functions pause after the first look. Each pause is twice the pause
	// before, up to Config.MaxInterval.
	firstPause = 5 * time.Millisecond
)

// Events searches an outbox: a store ([outbox.Searcher]), or an Outbox of package producer.
type Events interface {
	// Search is [outbox.Searcher.Search].
	Search(ctx context.Context, q outbox.Query) (outbox.Results, error)
}

// Messages searches an inbox: a store ([inbox.Searcher]), or an Inbox of package consumer.
type Messages interface {
	// SearchMessages is [inbox.Searcher.SearchMessages].
	SearchMessages(ctx context.Context, q inbox.Query) (inbox.Results, error)
}

// Outbox is an outbox with its name.
type Outbox struct {
	Name   string
	Events Events
}

// Inbox is an inbox with its name.
type Inbox struct {
	Name     string
	Messages Messages
}

// Config configures a [Lineage].
type Config struct {
	// Outboxes are the outboxes in which events are looked for; at least one.
	Outboxes []Outbox
	// Inboxes are the inboxes in which messages are looked for. One Inbox covers all consumers that
	// share its tables. Defaults to none.
	Inboxes []Inbox
	// Consumers names the topics that each consumer expects, by the consumer's name as registered
	// ("service/handler"). Topics are patterns of a RabbitMQ topic exchange: words are separated by
	// dots, * stands for one word and # for any number of words. A consumer without an entry is
	// waited for only once the consumer has the message. Defaults to none.
	Consumers map[string][]string
	// MaxDepth is how many generations of children are looked for. Defaults to 20.
	MaxDepth int
	// MaxEvents is how many events a tree has at most. Defaults to 1,000.
	MaxEvents int
	// MaxInterval is the longest pause between two looks of [Lineage.WaitApplied] and
	// [Lineage.WaitDone]. Defaults to 1 second.
	MaxInterval time.Duration
}

// Lineage follows events. It may be used from any goroutine.
type Lineage struct{ cfg Config }

// New returns a Lineage, or an error that joins all mistakes in cfg. New does no I/O.
func New(cfg Config) (*Lineage, error) {
	if cfg.MaxDepth == 0 {
		cfg.MaxDepth = defaultMaxDepth
	}
	if cfg.MaxEvents == 0 {
		cfg.MaxEvents = defaultMaxEvents
	}
	if cfg.MaxInterval == 0 {
		cfg.MaxInterval = defaultMaxInterval
	}
	if err := errors.Join(cfg.checkSources(), cfg.checkConsumers(), cfg.checkNumbers()); err != nil {
		return nil, fmt.Errorf("lineage config: %w", err)
	}
	return &Lineage{cfg: cfg}, nil
}

func (c *Config) checkSources() (err error) {
	if len(c.Outboxes) == 0 {
		err = errors.New("Outboxes: at least one is required")
	}
	for i, o := range c.Outboxes {
		if o.Events == nil {
			err = errors.Join(err, fmt.Errorf("Outboxes: %d (%q) has no Events", i, o.Name))
		}
	}
	for i, in := range c.Inboxes {
		if in.Messages == nil {
			err = errors.Join(err, fmt.Errorf("Inboxes: %d (%q) has no Messages", i, in.Name))
		}
	}
	return err
}

func (c *Config) checkConsumers() (err error) {
	add := func(format string, args ...any) { err = errors.Join(err, fmt.Errorf("Consumers: "+format, args...)) }
	if len(c.Consumers) > 0 && len(c.Inboxes) == 0 {
		add("there is no inbox to find messages in")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Consumers)) {
		patterns := c.Consumers[name]
		if name == "" {
			add("a consumer has no name")
		}
		if len(patterns) == 0 || slices.Contains(patterns, "") {
			add("consumer %q: a topic is missing", name)
		}
		for _, pattern := range patterns {
			if bad := topics.CheckPattern(pattern); bad != nil {
				add("consumer %q: %w", name, bad)
			}
		}
	}
	return err
}

func (c *Config) checkNumbers() (err error) {
	if c.MaxDepth < 0 {
		err = fmt.Errorf("MaxDepth: %d is negative", c.MaxDepth)
	}
	if c.MaxEvents < 0 {
		err = errors.Join(err, fmt.Errorf("MaxEvents: %d is negative", c.MaxEvents))
	}
	if c.MaxInterval < 0 {
		err = errors.Join(err, fmt.Errorf("MaxInterval: %v is negative", c.MaxInterval))
	}
	return err
}

// expecting returns the consumers that expect a topic, by name.
func (c *Config) expecting(topic string) []string {
	var names []string
	for name, patterns := range c.Consumers {
		if topics.MatchAny(patterns, topic) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
