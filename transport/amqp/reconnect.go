package amqp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

const (
	// redeclareAfter is how long a topology counts as declared when messages come
	// back as unroutable, so that not each of them leads to a declaration.
	redeclareAfter = time.Second
	// cancelGrace is how long after a message came back its topology is left as it is. The channel
	// of a consumer that learns of the end of its quorum queue when there is another of that name
	// takes the old for the new one: it is not cancelled, and gets nothing any more (seen in
	// RabbitMQ 3.10).
	cancelGrace = 500 * time.Millisecond
	// stableAfter is how long a connection must have lasted to be replaced without
	// a pause.
	stableAfter = time.Second
	// maxPrepared topics are remembered as declared.
	maxPrepared = 10_000
)

// start starts the goroutine that connects and judges. Called with mu locked.
func (p *Publisher) start() {
	if p.started {
		return
	}
	p.started = true
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.tasks.Go(func() { p.run(ctx) })
}

// run keeps a channel open until the publisher is closed, which ends ctx.
func (p *Publisher) run(ctx context.Context) {
	for attempt := 0; ctx.Err() == nil; attempt++ {
		begin := time.Now()
		conn, err := p.dial(ctx)
		if err == nil {
			err = p.serve(conn)
			conn.shut()
			if time.Since(begin) > stableAfter {
				attempt = -1
				continue
			}
		}
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			p.config.Logger.Warn("no connection for publishing", "broker", p.broker.name, "attempt", attempt+1, "error", err)
			p.setDown(err)
		}
		p.broker.backoff.wait(ctx, attempt)
	}
	p.setDown(ErrClosed)
}

func (p *Publisher) setDown(err error) {
	p.mu.Lock()
	p.down, p.blocked = err, ""
	p.broadcast()
	p.mu.Unlock()
	p.acquit(err)
}

// serve opens channels on conn and judges what is published on them, until conn
// is closed or the publisher is. An error means that no channel could be opened.
func (p *Publisher) serve(conn *connection) error {
	blocked := conn.NotifyBlocked(make(chan amqp091.Blocking, 16))
	for {
		c, err := p.openChannel(conn)
		if err != nil {
			return err
		}
		if p.narrow(c) {
			p.mu.Lock()
			p.current, p.down = c, nil
			p.broadcast()
			p.mu.Unlock()
			p.config.Logger.Info("channel for publishing opened", "broker", p.broker.name)
			p.judge(c, blocked)
		}

		p.mu.Lock()
		if p.current == c {
			p.current = nil
		}
		failure, closed := c.failure, p.closed
		if conn.IsClosed() {
			p.blocked = ""
		}
		p.broadcast()
		p.mu.Unlock()
		if closed {
			return nil
		}
		p.config.Logger.Warn("channel for publishing closed", "broker", p.broker.name, "error", failure)
		if conn.IsClosed() {
			return nil
		}
	}
}

func (p *Publisher) openChannel(conn *connection) (*confirmChannel, error) {
	defer conn.guard(p.config.ConfirmTimeout)()
	ch, err := conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("open channel: %w", err)
	}
	c := &confirmChannel{
		conn: conn,
		ch:   ch,
		// More than can be unconfirmed, or amqp091 would wait and then drop.
		returns:   ch.NotifyReturn(make(chan amqp091.Return, p.config.Window+16)),
		ended:     ch.NotifyClose(make(chan *amqp091.Error, 1)),
		prepared:  make(map[string]time.Time),
		missing:   make(map[string]time.Time),
		preparing: make(map[string]*preparation),
	}
	if err := ch.Confirm(false); err != nil {
		return nil, fmt.Errorf("enter confirm mode: %w", err)
	}
	return c, nil
}

// preparation is a declaration that is under way.
type preparation struct {
	done chan struct{}
	err  error // valid when done is closed
}

// isPrepared tells whether the topology of topic was declared on this channel
// instance. Called with mu locked.
func (c *confirmChannel) isPrepared(topic string) bool {
	_, ok := c.prepared[topic]
	return ok
}

// forget has the topology of topic declared again, if it was not just now.
// Called with mu locked.
func (c *confirmChannel) forget(topic string) {
	if at, ok := c.prepared[topic]; ok && time.Since(at) > redeclareAfter {
		delete(c.prepared, topic)
		if len(c.missing) >= maxPrepared {
			clear(c.missing)
		}
		c.missing[topic] = time.Now()
	}
}

// prepare declares the topology of out's topic and waits for it, together with
// whoever else wants it. Called with mu locked, which is released meanwhile.
func (p *Publisher) prepare(w *waiter, c *confirmChannel, out *outgoing) *transport.Result {
	if p.config.Topology == NoTopology {
		c.prepared[out.topic] = time.Now()
		return nil
	}
	prep := c.preparing[out.topic]
	if prep == nil {
		prep = &preparation{done: make(chan struct{})}
		c.preparing[out.topic] = prep
		topic, pause := out.topic, time.Duration(0)
		if at, ok := c.missing[topic]; ok && p.config.Topology == Declare {
			pause = cancelGrace - time.Since(at)
		}
		delete(c.missing, topic)
		p.tasks.Go(func() {
			if pause > 0 {
				p.pause(pause)
			}
			p.declare(c, prep, topic)
		})
	}
	p.mu.Unlock()
	defer p.mu.Lock()
	select {
	case <-prep.done:
	case <-w.ctx.Done():
		return unavailable(fmt.Errorf("declare topology: %w", w.ctx.Err()))
	case <-w.timeout():
		w.timedOut()
		return unavailable(fmt.Errorf("declare topology: %w", ErrConfirmTimeout))
	}
	switch {
	case prep.err == nil:
		return nil
	case errors.Is(prep.err, amqp091.ErrClosed):
		return nil // and ready waits for another channel
	case errorCode(prep.err) == amqp091.NotFound:
		return &transport.Result{Outcome: transport.Returned, Err: fmt.Errorf("%w: %w", ErrUnroutable, prep.err)}
	default:
		return unavailable(prep.err)
	}
}

// pause waits for d, or until the publisher is closed.
func (p *Publisher) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.closing:
	}
}

// declare declares the topology of a topic, and tells who waits for it.
func (p *Publisher) declare(c *confirmChannel, prep *preparation, topic string) {
	err := p.topology.declare(c.conn, p.config.ConfirmTimeout, func(ch *amqp091.Channel, version int) error {
		return p.declareTopic(ch, topic, version)
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(c.preparing, topic)
	if prep.err = err; err == nil {
		if len(c.prepared) >= maxPrepared {
			clear(c.prepared)
		}
		c.prepared[topic] = time.Now()
	} else {
		if errors.Is(err, amqp091.ErrClosed) && p.current == c {
			p.current = nil // the connection is gone; the judge is about to notice
		}
		p.config.Logger.Warn("cannot declare the topology", "topic", topic, "error", err)
	}
	close(prep.done)
}

// declareTopic declares the exchange of a topic and the queues that the publisher
// knows of.
func (p *Publisher) declareTopic(ch *amqp091.Channel, topic string, version int) error {
	exchange, key := p.route(topic)
	if err := p.topology.exchange(ch, exchange); err != nil {
		return err
	}
	for _, q := range p.queues(topic) {
		if q.Partitions > 0 {
			l := layout{queue: q.Name, exchange: exchange, key: key, count: q.Partitions}
			if err := p.topology.layout(ch, l, version); err != nil {
				return err
			}
			continue
		}
		if err := p.topology.queue(ch, q.Name, version); err != nil {
			return err
		}
		if err := p.topology.bind(ch, q.Name, q.BindingKey, exchange); err != nil {
			return err
		}
	}
	return nil
}

// queues returns the queues of a topic, with nothing left to defaults. With the
// default exchange, the one that the routing key names is among them.
func (p *Publisher) queues(topic string) []Queue {
	c := &p.config
	key := c.AMQP.Publish.GenerateRoutingKey(topic)
	var queues []Queue
	if c.Topology == Declare && c.AMQP.Exchange.GenerateName(topic) == "" &&
		c.AMQP.Queue.GenerateName != nil && c.AMQP.Queue.GenerateName(topic) == key {
		queues = append(queues, Queue{Topic: topic, Name: key, Partitions: c.Partitions})
	}
	for _, q := range c.Queues {
		if q.Topic != topic {
			continue
		}
		if q.Name == "" {
			q.Name = c.AMQP.Queue.GenerateName(topic)
		}
		defaultTo(&q.BindingKey, key)
		defaultTo(&q.Partitions, c.Partitions)
		queues = append(queues, q)
	}
	return queues
}
