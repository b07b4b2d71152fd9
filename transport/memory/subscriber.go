package memory

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Subscriber consumes under one name. Make one with [Broker.Subscriber]. All
// methods may be called by several goroutines at once.
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

// Subscriber returns a subscriber for the subscriptions called name, one for
// each topic that it is used on. Give every handler a name of its own: those of
// one name and topic take turns and never get the same message. Several
// subscribers may have one name, and each is closed for itself. An empty name is
// refused when it is used.
func (b *Broker) Subscriber(name string) *Subscriber {
	return &Subscriber{b: b, name: name, consumers: make(map[*consumer]struct{})}
}

// Subscribe makes the subscription on topic if it does not exist and returns a
// channel of its messages. When ctx ends, or the subscriber or the broker is
// closed, the channel is closed; what it has handed out can be acknowledged for
// Config.CloseTimeout after that, then another consumer gets it. The context of
// a message descends from ctx and ends when the message is answered.
//
// A closed subscriber or broker gives [ErrClosed], an ended ctx its error.
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

// SubscribeInitialize makes the subscription on topic if it does not exist, so
// that messages wait for its first Subscribe. It implements Watermill's
// SubscribeInitializer.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if err := s.usable(topic); err != nil {
		return err
	}
	s.b.subscription(topic, s.name)
	return nil
}

// usable returns why s cannot subscribe to topic. The broker's lock is held.
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

// Close ends what this subscriber's Subscribe calls started: their channels are
// closed, and what they have in flight can be acknowledged for
// Config.CloseTimeout. It returns when that is over, always nil, and may be
// called again. The subscriptions stay and keep their messages. A handler must not call
// it: it would wait for itself.
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
