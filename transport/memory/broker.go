package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
)

var (
	// ErrUnroutable is reported for a message of a topic that has no subscription.
	ErrUnroutable = errors.New("no subscription")
	// ErrClosed is reported by a closed broker or subscriber. A publish gets it too if the broker
	// was closed, or a subscription removed, before the message was acknowledged.
	ErrClosed = errors.New("closed")
	// ErrInUse is returned by [Broker.Unsubscribe] while a consumer has not ended.
	ErrInUse = errors.New("subscription is in use")
)

var errNoMessage = errors.New("message is nil")

// Broker carries messages from publishers to subscriptions within one process. Make one with [New].
// All methods are safe for concurrent use.
type Broker struct {
	cfg Config

	// mu guards the fields below, and subscriptions, deliveries and consumers. It is held for list
	// operations only, never while callbacks or handlers run.
	mu        sync.Mutex
	closed    bool
	topics    map[string][]*subscription
	consumers map[*consumer]struct{}
}

var _ transport.Sender = (*Broker)(nil)

// New returns a broker without topics, or an error that names every wrong field of cfg. It starts
// no goroutine; Close is needed only to end consumers.
func New(cfg Config) (*Broker, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("memory: %w", err)
	}
	return &Broker{
		cfg:       cfg,
		topics:    make(map[string][]*subscription),
		consumers: make(map[*consumer]struct{}),
	}, nil
}

// Send queues a copy of msg in every subscription of topic and returns without blocking. done gets
// the outcome when all subscriptions have acknowledged the message, or as soon as one of them no
// longer can: see the package comment. done runs on the goroutine that decides the outcome, often a
// consumer's.
//
// If the context of msg says that the message may have been started before, as
// [transport.WithRedelivered] does, its first delivery already counts as redelivered. No other part
// of the context is passed on.
func (b *Broker) Send(ctx context.Context, topic string, msg *message.Message, done func(transport.Result)) {
	if r := b.send(ctx, topic, msg, done); r.Err != nil {
		done(r)
	}
}

// send queues msg, or returns a result with the reason for not queuing it.
func (b *Broker) send(ctx context.Context, topic string, msg *message.Message, done func(transport.Result)) transport.Result {
	if msg == nil {
		return transport.Result{Outcome: transport.Invalid, Err: errNoMessage}
	}
	if ctx.Err() != nil {
		return unavailable(topic, context.Cause(ctx))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return unavailable(topic, ErrClosed)
	}
	subs := b.topics[topic]
	if len(subs) == 0 {
		return transport.Result{Outcome: transport.Returned, Err: fmt.Errorf("topic %q: %w", topic, ErrUnroutable)}
	}
	p := &publish{topic: topic, msg: msg, done: done, unacked: len(subs)}
	p.deliveries = p.single[:]
	if len(subs) > 1 {
		p.deliveries = make([]delivery, len(subs))
	}
	key, redelivered := msg.Metadata[transport.MetaKey], transport.Redelivered(msg)
	for i, s := range subs {
		d := &p.deliveries[i]
		d.pub, d.sub, d.key, d.redelivered = p, s, key, redelivered
		s.add(d)
	}
	if ctx.Done() != nil {
		p.stop = context.AfterFunc(ctx, func() { b.expire(ctx, p) })
	}
	return transport.Result{}
}

func unavailable(topic string, err error) transport.Result {
	return transport.Result{Outcome: transport.Unavailable, Err: fmt.Errorf("topic %q: %w", topic, err)}
}

// Publish sends the messages, each bounded by its own context, and returns when all outcomes are
// known. It returns nil if every subscription of topic has acknowledged every message. An error
// means that at least one message was not confirmed, and wraps the first reason; the rest may have
// been confirmed.
func (b *Broker) Publish(topic string, msgs ...*message.Message) error {
	if slices.Contains(msgs, nil) {
		return fmt.Errorf("publish to topic %q: %w", topic, errNoMessage)
	}
	results := make([]transport.Result, len(msgs))
	var wg sync.WaitGroup
	wg.Add(len(msgs))
	for i, msg := range msgs {
		b.Send(msg.Context(), topic, msg, func(r transport.Result) {
			results[i] = r
			wg.Done()
		})
	}
	wg.Wait()
	var first error
	failed := 0
	for _, r := range results {
		if r.Err == nil {
			continue
		}
		if failed++; first == nil {
			first = r.Err
		}
	}
	if failed > 0 {
		return fmt.Errorf("publish: %d of %d messages not confirmed: %w", failed, len(msgs), first)
	}
	return nil
}

// Route returns topic: topics have no part of their way in common.
func (b *Broker) Route(topic string) string { return topic }

// expire settles p when the context of its Send has ended.
func (b *Broker) expire(ctx context.Context, p *publish) {
	b.mu.Lock()
	late := p.firstUnacked()
	ok := b.giveUp(p)
	b.mu.Unlock()
	if ok {
		p.report(unavailable(p.topic, fmt.Errorf("subscription %q did not acknowledge: %w", late, context.Cause(ctx))))
	}
}

// firstUnacked returns the name of the first subscription that has not acknowledged p.
func (p *publish) firstUnacked() string {
	for i := range p.deliveries {
		if d := &p.deliveries[i]; !d.acked {
			return d.sub.name
		}
	}
	return ""
}

// giveUp settles p as not confirmed and withdraws it from every subscription that has not handed it
// out. It tells whether the caller has to report p.
func (b *Broker) giveUp(p *publish) bool {
	if p.settled {
		return false
	}
	p.settled = true
	for i := range p.deliveries {
		switch d := &p.deliveries[i]; {
		case d.acked:
		case d.in == &d.sub.inFlight:
			d.withdraw()
		default:
			d.sub.leave(d)
		}
	}
	return true
}

// subscription returns the subscription called name on topic, and makes it if it does not exist.
func (b *Broker) subscription(topic, name string) *subscription {
	for _, s := range b.topics[topic] {
		if s.name == name {
			return s
		}
	}
	s := &subscription{topic: topic, name: name, keys: make(map[string]*list)}
	b.topics[topic] = append(b.topics[topic], s)
	return s
}

// Unsubscribe removes the subscription called name from topic, and reports its queued messages as
// Unavailable with [ErrClosed], since they were not acknowledged. Use it for a handler that will
// not come back; without Unsubscribe, the messages wait for the handler. It returns [ErrInUse]
// while the subscription has a consumer, and nil if the subscription does not exist.
func (b *Broker) Unsubscribe(topic, name string) error {
	b.mu.Lock()
	subs := b.topics[topic]
	i := slices.IndexFunc(subs, func(s *subscription) bool { return s.name == name })
	if i < 0 {
		b.mu.Unlock()
		return nil
	}
	s := subs[i]
	if s.consumers > 0 {
		b.mu.Unlock()
		return fmt.Errorf("unsubscribe %q from topic %q: %w", name, topic, ErrInUse)
	}
	if b.topics[topic] = slices.Delete(subs, i, i+1); len(b.topics[topic]) == 0 {
		delete(b.topics, topic)
	}
	lost := b.giveUpQueued(s)
	b.mu.Unlock()
	for _, p := range lost {
		p.report(unavailable(topic, fmt.Errorf("subscription %q was removed: %w", name, ErrClosed)))
	}
	return nil
}

// giveUpQueued settles and returns the publishes that s has queued and not handed out.
func (b *Broker) giveUpQueued(s *subscription) []*publish {
	var lost []*publish
	s.drain(func(d *delivery) {
		b.giveUp(d.pub)
		lost = append(lost, d.pub)
	})
	return lost
}

// Close ends all consumers and reports unacknowledged messages as Unavailable with [ErrClosed]:
// messages that are not in flight at once, the others after Config.CloseTimeout at the latest. It
// returns when all goroutines of the broker have ended, always nil, and may be called again. A
// handler must not call Close: it would wait for itself.
func (b *Broker) Close() error {
	b.mu.Lock()
	var lost []*publish
	if !b.closed {
		b.closed = true
		for _, subs := range b.topics {
			for _, s := range subs {
				lost = append(lost, b.giveUpQueued(s)...)
			}
		}
	}
	consumers := make([]*consumer, 0, len(b.consumers))
	for c := range b.consumers {
		consumers = append(consumers, c)
	}
	b.mu.Unlock()
	for _, p := range lost {
		p.report(unavailable(p.topic, ErrClosed))
	}
	end(consumers)
	return nil
}

// redeliver makes a delayed delivery ready.
func (b *Broker) redeliver(d *delivery) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := d.sub; d.in == &s.delayed { // otherwise the delivery was given up while redeliver waited for the lock
		d.unlink()
		s.ready.pushBack(d)
		s.wake()
	}
}

// delay queues a nacked delivery until its delay is over.
func (b *Broker) delay(d *delivery) {
	d.nacks++
	d.redelivered = true
	d.unlink()
	d.sub.delayed.pushBack(d)
	d.timer = time.AfterFunc(b.cfg.redelivery(d.nacks), func() { b.redeliver(d) })
}
