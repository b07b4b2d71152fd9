package memory

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
)

// publish is one message on its way to the subscriptions of its topic at the time of sending.
type publish struct {
	topic   string
	msg     *message.Message
	done    func(transport.Result)
	stop    func() bool // stops watching the context; nil for a context that never ends
	unacked int         // deliveries that are not acknowledged
	settled bool        // the outcome is decided

	deliveries []delivery
	single     [1]delivery // the array behind deliveries if the topic has one subscription
}

// report calls done with the outcome. The goroutine that settled p calls it, once and without the
// lock.
func (p *publish) report(r transport.Result) {
	if p.stop != nil {
		p.stop()
	}
	p.done(r)
}

// delivery is a message in one subscription.
type delivery struct {
	pub *publish
	sub *subscription
	key string

	in         *list // the list that holds the delivery: its state
	prev, next *delivery
	offeredBy  *consumer // until the consumer's reader has received the delivery

	acked       bool
	redelivered bool        // handling may have been started before
	nacks       int         // determine the delay
	timer       *time.Timer // ends the delay
}

// withdraw asks the consumer that offers d, if any, to withdraw the offer.
func (d *delivery) withdraw() {
	if d.offeredBy == nil {
		return
	}
	select {
	case d.offeredBy.wake <- struct{}{}:
	default: // the consumer has not read the last wake-up yet, and will look
	}
}

// subscription is a named queue on a topic. The broker's lock guards it.
type subscription struct {
	topic, name string

	ready    list // may be handed out
	inFlight list // offered to a consumer, or with its reader
	delayed  list // nacked, until a timer fires

	// keys has an entry for every key with a delivery in one of the lists above: the deliveries
	// that wait behind this delivery, or nil if no delivery has waited.
	keys map[string]*list

	consumers int         // consumers that have not ended
	idle      []*consumer // consumers that wait for a ready delivery, longest first
}

// add queues a new delivery.
func (s *subscription) add(d *delivery) {
	if d.key != "" {
		behind, held := s.keys[d.key]
		if held {
			if behind == nil {
				behind = new(list)
				s.keys[d.key] = behind
			}
			behind.pushBack(d)
			return
		}
		s.keys[d.key] = nil
	}
	s.ready.pushBack(d)
	s.wake()
}

// leave removes d for good and makes the next delivery of its key ready.
func (s *subscription) leave(d *delivery) {
	if d.timer != nil {
		d.timer.Stop()
	}
	behind, held := s.keys[d.key]
	waited := behind != nil && d.in == behind
	d.unlink()
	if !held || waited {
		return
	}
	if behind == nil || behind.head == nil {
		delete(s.keys, d.key)
		return
	}
	s.ready.pushBack(behind.popFront())
	s.wake()
}

// giveBack makes a delivery ready again, before all ready deliveries, after its consumer ended without
// an answer.
func (s *subscription) giveBack(d *delivery) {
	d.unlink()
	s.ready.pushFront(d)
	s.wake()
}

// wake tells one idle consumer that a delivery is ready.
func (s *subscription) wake() {
	if s.ready.head == nil || len(s.idle) == 0 {
		return
	}
	c := s.idle[0]
	s.idle = append(s.idle[:0], s.idle[1:]...)
	c.idle = false
	select {
	case c.wake <- struct{}{}:
	default: // the consumer has not read the last wake-up yet, and will look
	}
}

// drain calls f for each queued delivery: delayed, ready or waiting. f must remove its argument.
func (s *subscription) drain(f func(*delivery)) {
	for s.delayed.head != nil {
		f(s.delayed.head)
	}
	for s.ready.head != nil {
		f(s.ready.head)
	}
	for _, behind := range s.keys { // the deliveries that wait for one in flight
		for behind != nil && behind.head != nil {
			f(behind.head)
		}
	}
}
