package transporttest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Target is a publisher and its broker, as the suite needs them. Its functions may be called
// by several goroutines at once, Restart excepted.
type Target struct {
	// Open returns a new publisher that reaches the broker at address, which is host:port of a line
	// of the suite's, or Address itself where that is empty. Every connection of the publisher must
	// go there; a broker that names other addresses to its clients needs a dialer that does not
	// listen to it. The suite closes the publisher. Required.
	Open func(ctx context.Context, address string) (message.Publisher, error)
	// Prepare makes topic, so that what is published is kept. Topics have at most 40
	// characters out of a–z, 0–9 and _. Required.
	Prepare func(ctx context.Context, topic string) error
	// Stored returns the messages that the broker has kept for topic, in the order in
	// which a consumer gets those of one key. It is called repeatedly, must
	// return earlier messages again, and must not go through the line. A topic that was never
	// prepared, or is gone, has none. After an error it is called again, for Bound. Required.
	Stored func(ctx context.Context, topic string) ([]*message.Message, error)

	// Address is the broker's host:port, of TCP. Defaults to none, for a publisher
	// without connections; the cases that break them are not run then.
	Address string
	// Silence makes the broker answer nothing on topic until restore is called.
	// Only for targets without Address. Defaults to nil: the case is not run.
	Silence func(topic string) (restore func(), err error)
	// Remove removes topic, so that what is published afterwards cannot be kept, unless the
	// publisher or the broker makes the topic again. Defaults to nil: the case is not run.
	Remove func(ctx context.Context, topic string) error
	// Bad returns a message that can be given to the publisher and that is never taken: beyond the
	// broker's limit of size, or what its table refuses. Defaults to nil: the case is not run.
	Bad func() *message.Message
	// Restart kills the broker as a crash does, starts it at the same address, and returns when it
	// answers. No other case is under way then. Defaults to nil: the case is not run.
	Restart func(ctx context.Context) error

	// Bound is how long Publish and Close may take whatever the broker does. A relay goes on after
	// relay.Config.SendTimeout without them, but each call that hangs takes a place of
	// relay.Config.Publishers. Defaults to 30 s, as SendTimeout.
	Bound time.Duration
	// Recovery is how long after the end of a fault the publisher may take to work again.
	// Defaults to 30 s.
	Recovery time.Duration
}

// complete returns t with its defaults, or everything that is wrong with it.
func (t *Target) complete() (*Target, error) {
	c := *t
	var errs []error
	missing := func(name string, is bool) {
		if is {
			errs = append(errs, fmt.Errorf("%s: is nil", name))
		}
	}
	missing("Open", c.Open == nil)
	missing("Prepare", c.Prepare == nil)
	missing("Stored", c.Stored == nil)
	if c.Address != "" && c.Silence != nil {
		errs = append(errs, errors.New("Silence: is for targets without Address"))
	}
	span := func(name string, value *time.Duration) {
		if *value < 0 {
			errs = append(errs, fmt.Errorf("%s: %v is negative", name, *value))
		}
		if *value == 0 {
			*value = 30 * time.Second
		}
	}
	span("Bound", &c.Bound)
	span("Recovery", &c.Recovery)
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("target: %w", err)
	}
	return &c, nil
}
