package transporttest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Target is a publisher and its broker, described for the suite. The functions may be called
// concurrently, except Restart.
type Target struct {
	// Open returns a new publisher that reaches the broker at address: host:port of a line of the
	// suite, or empty if Address is empty. All connections of the publisher must go to address; if
	// the broker tells its clients further addresses, the publisher needs a dialer that ignores
	// them. The suite closes the publisher. Required.
	Open func(ctx context.Context, address string) (message.Publisher, error)
	// Prepare makes topic, so that the broker keeps messages published to it. Topics have at most
	// 40 characters out of a–z, 0–9 and _. Required.
	Prepare func(ctx context.Context, topic string) error
	// Stored returns the messages that the broker has kept for topic, the messages of one key in
	// the order of their delivery. The suite calls it repeatedly: it must return earlier messages
	// again, and must not go through the line. A topic that was never prepared, or was removed, has
	// no messages. After an error Stored is called again, for Bound. Required.
	Stored func(ctx context.Context, topic string) ([]*message.Message, error)

	// Address is the broker's TCP address, host:port. Defaults to none, for a publisher without
	// connections; the cases that break connections are not run then.
	Address string
	// Silence makes the broker answer nothing on topic until restore is called. Only for targets
	// without Address. Defaults to nil: the case is not run.
	Silence func(topic string) (restore func(), err error)
	// Remove removes topic, so that later messages cannot be kept unless the publisher or the
	// broker makes the topic again. Defaults to nil: the case is not run.
	Remove func(ctx context.Context, topic string) error
	// Bad returns a message that the publisher accepts as an argument and the broker never takes,
	// because it exceeds a size limit or the table refuses it. Defaults to nil: the case is not
	// run.
	Bad func() *message.Message
	// Restart kills the broker like a crash, starts it at the same address, and returns when the
	// broker answers. No other case runs meanwhile. Defaults to nil: the case is not run.
	Restart func(ctx context.Context) error

	// Bound is how long Publish and Close may take in any case. A relay stops waiting after
	// relay.Config.SendTimeout, but each hanging call takes a place of relay.Config.Publishers.
	// Defaults to 30 s, as SendTimeout.
	Bound time.Duration
	// Recovery is how long after the end of a fault the publisher may take to work again. Defaults
	// to 30 s.
	Recovery time.Duration
}

// complete returns t with its defaults, or an error that joins all wrong fields.
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
