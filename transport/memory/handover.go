package memory

import (
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
)

// The methods here change, for consumers, the state that the broker's lock guards.

// claim takes the next ready delivery for c and returns it with the copy to hand out, or makes c
// idle. The copy is made under the lock under which publishes are settled: once the sender knows
// the outcome, the original is no longer read.
func (b *Broker) claim(c *consumer) (*delivery, *message.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := c.sub
	if s.ready.head == nil {
		if !c.idle {
			c.idle = true
			s.idle = append(s.idle, c)
		}
		return nil, nil
	}
	c.leaveIdle()
	d := s.ready.popFront()
	s.inFlight.pushBack(d)
	d.offeredBy, c.offered = c, d
	return d, d.pub.msg.Copy()
}

// leaveIdle takes c out of the idle consumers.
func (c *consumer) leaveIdle() {
	if !c.idle {
		return
	}
	c.idle = false
	c.sub.idle = slices.DeleteFunc(c.sub.idle, func(other *consumer) bool { return other == c })
}

// received records that the reader received the message that c offered. It tells whether c has to
// start another worker: all of its workers are busy now, and fewer than InFlight are started.
func (b *Broker) received(c *consumer) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.offered.offeredBy, c.offered = nil, nil
	c.busy++
	if c.busy < c.started || c.started == b.cfg.InFlight {
		return false
	}
	c.started++
	return true
}

// withdrawOffer withdraws the message that c offers if its publish was given up, or in any case if
// c ends. It tells whether the offer was withdrawn.
func (b *Broker) withdrawOffer(c *consumer, ends bool) bool {
	b.mu.Lock()
	d := c.offered
	if !d.pub.settled && !ends {
		b.mu.Unlock()
		return false
	}
	d.offeredBy, c.offered = nil, nil
	report := b.putBack(d)
	b.mu.Unlock()
	if report {
		d.pub.report(unavailable(d.pub.topic, ErrClosed))
	}
	return true
}

// putBack makes d ready again, or drops d if its publish was given up. It tells whether the caller
// has to report the publish, which the closed broker gives up.
func (b *Broker) putBack(d *delivery) bool {
	report := b.closed && b.giveUp(d.pub)
	if d.pub.settled {
		d.sub.leave(d)
	} else {
		d.sub.giveBack(d)
	}
	return report
}

// answered handles the answer to a delivery that c handed out.
func (b *Broker) answered(c *consumer, d *delivery, a answer) {
	var r transport.Result
	report := false // whether this answer settles the publish
	b.mu.Lock()
	c.busy--
	p := d.pub
	switch {
	case a == acked:
		d.sub.leave(d)
		d.acked = true
		if p.unacked--; p.unacked == 0 && !p.settled {
			p.settled, report = true, true
			r = transport.Result{Outcome: transport.Confirmed}
		}
	case a == nacked && !p.settled && !b.closed:
		b.delay(d)
	default:
		d.redelivered = true
		report = b.putBack(d)
		r = unavailable(p.topic, ErrClosed)
	}
	b.mu.Unlock()
	if report {
		p.report(r)
	}
}

// retire passes on a wake-up that c may have received and will not act on.
func (b *Broker) retire(c *consumer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.leaveIdle()
	c.sub.wake()
}

// forget removes c, which has ended.
func (b *Broker) forget(c *consumer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.sub.consumers--
	delete(b.consumers, c)
	delete(c.owner.consumers, c)
}
