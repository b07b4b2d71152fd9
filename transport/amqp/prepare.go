package amqp

import (
	"errors"
	"fmt"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

const (
	// redeclareAfter is how long a topology counts as declared although messages are returned, so
	// that not every returned message leads to a declaration.
	redeclareAfter = time.Second
	// cancelGrace is the pause between the return of a message and the next declaration of its
	// topology. Suppose a quorum queue is deleted, and declared again before its consumers have
	// learned of the deletion. Then their channels take the new queue for the old one: the
	// consumers are not cancelled, and get no message any more (seen in RabbitMQ 3.10).
	cancelGrace = 500 * time.Millisecond
	// maxPrepared is the number of topics that are remembered as declared.
	maxPrepared = 10_000
)

// preparation is a running declaration.
type preparation struct {
	done chan struct{}
	err  error // valid when done is closed
}

// isPrepared tells whether the topology of topic was declared on this channel instance. Called with
// mu locked.
func (c *confirmChannel) isPrepared(topic string) bool {
	_, ok := c.prepared[topic]
	return ok
}

// unprepare makes the next publish declare the topology of topic again, unless it was declared just
// now. Called with mu locked.
func (c *confirmChannel) unprepare(topic string) {
	if at, ok := c.prepared[topic]; ok && time.Since(at) > redeclareAfter {
		delete(c.prepared, topic)
		if len(c.missing) >= maxPrepared {
			clear(c.missing)
		}
		c.missing[topic] = time.Now()
	}
}

// prepare declares the topology of out's topic, or waits for a running declaration. Called with mu
// locked, which it releases meanwhile.
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

// declare declares the topology of a topic, and wakes the calls that wait for the declaration.
func (p *Publisher) declare(c *confirmChannel, prep *preparation, topic string) {
	err := p.topology.declare(c.conn, p.config.ConfirmTimeout, func(t *topology, ch *amqp091.Channel, version int) error {
		return p.declareTopic(t, ch, topic, version)
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
			p.current = nil // the connection has ended; the judge will notice
		}
		p.config.Logger.Warn("cannot declare the topology", "topic", topic, "error", err)
	}
	close(prep.done)
}

// declareTopic declares the exchange of a topic and the configured queues.
func (p *Publisher) declareTopic(t *topology, ch *amqp091.Channel, topic string, version int) error {
	exchange, key := p.route(topic)
	if err := t.ensureExchange(ch, exchange); err != nil {
		return err
	}
	for _, q := range p.queues(topic) {
		if q.Partitions > 0 {
			l := layout{queue: q.Name, exchange: exchange, key: key, count: q.Partitions}
			if err := t.ensureLayout(ch, l, version); err != nil {
				return err
			}
			continue
		}
		if err := t.ensureQueue(ch, q.Name, version); err != nil {
			return err
		}
		if err := t.bind(ch, q.Name, q.BindingKey, exchange); err != nil {
			return err
		}
	}
	return nil
}

// queues returns the queues of a topic with all defaults filled in. With the default exchange, the
// queue that the routing key names is among them.
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
