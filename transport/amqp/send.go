package amqp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/transport"
)

// outgoing is a publishing on its way to the channel.
type outgoing struct {
	topic         string
	declare       bool // declare the topology of topic first
	msg           *message.Message
	msgs          []*message.Message // of SendBatch, instead of msg
	seq           string             // the number that pub contains
	exchange, key string
	pub           amqp091.Publishing
	properties    int  // encoded size of the properties of pub
	messages      int  // number of messages in pub
	mayBatch      bool // it may be published together with others
	call          *publishCall
}

// send writes out to the channel and leaves the outcome to the judge, or returns the outcome of a
// message that was not written.
func (p *Publisher) send(ctx context.Context, out *outgoing, done func(transport.Result)) *transport.Result {
	if err := p.check(out); err != nil {
		return &transport.Result{Outcome: transport.Invalid, Err: fmt.Errorf("message %s: %w", shorten(out.pub.MessageId), err)}
	}
	w := waiter{p: p, ctx: ctx, call: out.call}
	defer w.stop()
	if err := w.acquire(); err != nil {
		return unavailable(err)
	}
	p.mu.Lock()
	for {
		c, failed := p.ready(&w, out) //nolint:contextcheck // the connection outlives this call
		if failed == nil {
			var written bool
			written, failed = p.write(ctx, c, out, done)
			if !written && failed == nil {
				continue // the channel was closed just before the write
			}
		}
		p.mu.Unlock()
		if failed != nil {
			<-p.window
		}
		return failed
	}
}

// check refuses messages for which the broker would close the connection or the channel, and
// messages that the broker may lose.
func (p *Publisher) check(out *outgoing) (err error) {
	if err := checkName("exchange", out.exchange); err != nil {
		return err
	}
	if err := checkShort("routing key", out.key); err != nil {
		return err
	}
	if out.exchange == "" { // the default exchange, whose routing keys are names of queues
		if err := checkName("queue", out.key); err != nil {
			return err
		}
	}
	if p.config.Partitions > 0 && out.exchange == "" {
		return errors.New("AMQP.Exchange.GenerateName and AMQP.Publish.GenerateRoutingKey both returned no name")
	}
	if err := p.checkSize("body", out.pub.Body); err != nil {
		return err
	}
	if out.pub.DeliveryMode != amqp091.Persistent && !p.config.AllowLoss {
		return errors.New("delivery mode: the marshaler made a transient message, and AllowLoss is not set")
	}
	if out.pub.Expiration != "" && !p.config.AllowLoss {
		return errors.New("expiration: the broker would drop the message after that time, and AllowLoss is not set")
	}
	out.properties, err = propertiesSize(&out.pub)
	return err
}

func (p *Publisher) checkSize(name string, content []byte) error {
	if len(content) > p.config.MaxBody {
		return fmt.Errorf("%s: %d bytes, more than MaxBody, %d", name, len(content), p.config.MaxBody)
	}
	return nil
}

// ready returns a channel on which out may be published, or the outcome if there is none in time.
// Called with mu locked, which it releases while it waits.
func (p *Publisher) ready(w *waiter, out *outgoing) (*confirmChannel, *transport.Result) {
	for {
		var reason error
		switch c := p.current; {
		case p.closed:
			return nil, unavailable(ErrClosed)
		case c == nil && p.down != nil:
			return nil, unavailable(p.down)
		case c == nil:
			p.connector.start()
			reason = errNotConnected
		case p.blocked != "":
			reason = p.blockedError()
		case p.bytes > 0 && p.bytes+len(out.pub.Body) > p.config.WindowBytes:
			reason = errors.New("window of unconfirmed bytes is full")
		case out.properties+frameOverhead > c.frameSize():
			return nil, &transport.Result{Outcome: transport.Invalid, Err: fmt.Errorf(
				"headers: %d bytes, more than the broker's frame_max, %d", out.properties, c.frameSize())}
		case out.declare && !c.isPrepared(out.topic):
			if failed := p.prepare(w, c, out); failed != nil {
				return nil, failed
			}
			continue
		default:
			return c, nil
		}
		if err := w.wait(reason); err != nil {
			return nil, unavailable(err)
		}
	}
}

// write publishes out, or gathers it with other messages. It reports false if the channel was
// closed before the write. Called with mu locked.
func (p *Publisher) write(ctx context.Context, c *confirmChannel, out *outgoing,
	done func(transport.Result)) (bool, *transport.Result) {
	if out.mayBatch && (c.packets >= gatherAbove || c.pending.has(out)) {
		if !p.packets.gather(ctx, c, out, done) {
			return false, nil
		}
		_ = fault.Hit(ctx, fault.BrokerGiven)
		return true, nil
	}
	confirm, err := c.ch.PublishWithDeferredConfirm(out.exchange, out.key, true, false, out.pub)
	switch {
	case errors.Is(err, amqp091.ErrClosed):
		if p.current == c {
			p.current = nil
		}
		return false, nil
	case err != nil:
		// The message may have been written in part: the channel cannot be used any more.
		p.fail(c, fmt.Errorf("publish: %w", err))
		return false, unavailable(fmt.Errorf("publish: %w", err))
	}
	s := p.slots.newSlot(ctx, out, done)
	s.own = packet{seq: out.seq, exchange: out.exchange, key: out.key, confirm: confirm}
	s.in = &s.own
	p.slots.addUnconfirmed(c, s)
	c.packets++
	_ = fault.Hit(ctx, fault.BrokerGiven)
	return true, nil
}

// fail cuts the connection of c. All unconfirmed messages on it become unavailable. Called with mu
// locked.
func (p *Publisher) fail(c *confirmChannel, cause error) {
	if c.failure == nil {
		c.failure = cause
	}
	if p.current == c {
		p.current = nil
	}
	c.conn.raw.abort()
}

// waiter bounds the waits of one call by its context and by ConfirmTimeout, counted from the first
// wait.
type waiter struct {
	p     *Publisher
	ctx   context.Context
	timer *time.Timer
	call  *publishCall // or nil
}

// publishCall is shared by the messages of one call of Publish, which are written one after
// another.
type publishCall struct{ timedOut bool }

func (w *waiter) timeout() <-chan time.Time {
	if w.timer == nil {
		d := w.p.config.ConfirmTimeout
		if w.call != nil && w.call.timedOut {
			d = 0
		}
		w.timer = time.NewTimer(d)
	}
	return w.timer.C
}

// timedOut records for the whole call that a wait has timed out.
func (w *waiter) timedOut() {
	if w.call != nil {
		w.call.timedOut = true
	}
}

func (w *waiter) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// acquire takes a place in the window.
func (w *waiter) acquire() error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	select {
	case w.p.window <- struct{}{}:
		return nil
	default:
	}
	var cause error
	select {
	case w.p.window <- struct{}{}:
		return nil
	case <-w.ctx.Done():
		cause = w.ctx.Err()
	case <-w.timeout():
		w.timedOut()
		cause = ErrConfirmTimeout
	case <-w.p.closing:
		return ErrClosed
	}
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	if w.p.blocked != "" {
		return fmt.Errorf("%w (%w)", w.p.blockedError(), cause)
	}
	return fmt.Errorf("window of unconfirmed messages is full: %w", cause)
}

// wait waits for a change. When the time is over, it returns an error with the given reason. Called
// with mu locked, which it releases while it waits.
func (w *waiter) wait(reason error) error {
	w.p.waiting++
	changed := w.p.changed
	w.p.mu.Unlock()
	defer w.p.mu.Lock()
	select {
	case <-changed:
		return nil
	case <-w.ctx.Done():
		return fmt.Errorf("%w (%w)", reason, w.ctx.Err())
	case <-w.timeout():
		w.timedOut()
		return fmt.Errorf("%w for %v", reason, w.p.config.ConfirmTimeout)
	}
}
