package memory

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Subscriber consumes under one name. Make one with [Broker.Subscriber]. All methods are safe for
// concurrent use.
type Subscriber struct {
	b    *Broker
	name string

	// Guarded by the broker's lock.
	closed    bool
	consumers map[*consumer]struct{}
}

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// Subscriber returns a subscriber for the subscriptions called name, one per topic. Give every
// handler a name of its own: subscribers with equal name and topic share the messages. Several
// subscribers may have one name, and are closed separately. Subscribing with an empty name is an
// error.
func (b *Broker) Subscriber(name string) *Subscriber {
	return &Subscriber{b: b, name: name, consumers: make(map[*consumer]struct{})}
}

// Subscribe makes the subscription on topic if it does not exist and returns a channel of its
// messages. The channel is closed when ctx ends, or when the subscriber or the broker is closed.
// Messages in flight can still be acknowledged for Config.CloseTimeout; then another consumer gets
// them. The context of a message is derived from ctx and ends when the message is answered.
//
// A closed subscriber or broker returns [ErrClosed]; an ended ctx returns its error.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("subscribe %q to topic %q: %w", s.name, topic, context.Cause(ctx))
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &consumer{
		b:       s.b,
		owner:   s,
		cancel:  cancel,
		out:     make(chan *message.Message),
		lead:    make(chan struct{}, 1),
		wake:    make(chan struct{}, 1),
		abort:   make(chan struct{}),
		done:    make(chan struct{}),
		started: 1,
	}
	if err := s.register(c, topic); err != nil {
		cancel()
		return nil, err
	}
	c.workers.Go(func() { c.work(ctx) })
	context.AfterFunc(ctx, c.drain)
	return c.out, nil
}

// register attaches c to the subscription on topic.
func (s *Subscriber) register(c *consumer, topic string) error {
	b := s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := s.usable(topic); err != nil {
		return err
	}
	c.sub = b.subscription(topic, s.name)
	c.sub.consumers++
	b.consumers[c] = struct{}{}
	s.consumers[c] = struct{}{}
	return nil
}

// SubscribeInitialize makes the subscription on topic if it does not exist, so that messages wait
// for its first Subscribe. It implements [message.SubscribeInitializer].
func (s *Subscriber) SubscribeInitialize(topic string) error {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if err := s.usable(topic); err != nil {
		return err
	}
	s.b.subscription(topic, s.name)
	return nil
}

// usable returns the reason for which s cannot subscribe to topic, or nil. Called with the broker's
// lock held.
func (s *Subscriber) usable(topic string) error {
	switch {
	case s.name == "":
		return errors.New("subscription name is empty")
	case topic == "":
		return fmt.Errorf("subscribe %q: topic is empty", s.name)
	case s.closed || s.b.closed:
		return fmt.Errorf("subscribe %q to topic %q: %w", s.name, topic, ErrClosed)
	}
	return nil
}

// Close ends this subscriber's Subscribe calls: their channels are closed, and messages in flight
// can be acknowledged for Config.CloseTimeout. Close returns after that, always nil, and may be
// called again. The subscriptions stay and keep their messages. A handler must not call Close: the
// handler would wait for itself.
func (s *Subscriber) Close() error {
	s.b.mu.Lock()
	s.closed = true
	consumers := make([]*consumer, 0, len(s.consumers))
	for c := range s.consumers {
		consumers = append(consumers, c)
	}
	s.b.mu.Unlock()
	end(consumers)
	return nil
}
