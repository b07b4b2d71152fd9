package memory

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
)

// publish is one message on its way, to all subscriptions that its topic had.
type publish struct {
	topic   string
	msg     *message.Message
	done    func(transport.Result)
	stop    func() bool // ends the watch over the context; nil without one
	unacked int         // deliveries that are not acknowledged
	settled bool        // the outcome is decided

	deliveries []delivery
	single     [1]delivery // what deliveries points to when there is one
}

// report tells the outcome. It is called once, by who settled p, without the lock.
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

	in         *list // its state: the list of its subscription that it is in
	prev, next *delivery
	offeredBy  *consumer // while its reader has not taken it

	acked       bool
	redelivered bool        // may have been started before
	nacks       int         // decides the delay
	timer       *time.Timer // of the delay
}

// withdraw asks the consumer that has d on offer, if one has, to take it back.
func (d *delivery) withdraw() {
	if d.offeredBy == nil {
		return
	}
	select {
	case d.offeredBy.wake <- struct{}{}:
	default: // it has not yet read the last one, and will look
	}
}

// subscription is a named queue on a topic. The broker's lock guards it.
type subscription struct {
	topic, name string

	ready    list // may be handed out
	inFlight list // offered to a consumer, or with it
	delayed  list // nacked, until a timer fires

	// keys has an entry for every key with a delivery in one of the lists above:
	// the deliveries waiting behind it, or nil if there never was one.
	keys map[string]*list

	consumers int         // that have not ended
	idle      []*consumer // that wait for something ready, longest first
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

// leave takes d out for good and lets the next of its key move up.
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

// giveBack makes ready again what a consumer did not finish, before all others.
func (s *subscription) giveBack(d *delivery) {
	d.unlink()
	s.ready.pushFront(d)
	s.wake()
}

// wake tells one idle consumer that something is ready.
func (s *subscription) wake() {
	if s.ready.head == nil || len(s.idle) == 0 {
		return
	}
	c := s.idle[0]
	s.idle = append(s.idle[:0], s.idle[1:]...)
	c.idle = false
	select {
	case c.wake <- struct{}{}:
	default: // it has not yet read the last one, and will look
	}
}

// drain calls f until nothing is queued: neither ready, delayed nor waiting.
// Calling f must take its argument out.
func (s *subscription) drain(f func(*delivery)) {
	for s.delayed.head != nil {
		f(s.delayed.head)
	}
	for s.ready.head != nil {
		f(s.ready.head)
	}
	for _, behind := range s.keys { // of what is in flight
		for behind != nil && behind.head != nil {
			f(behind.head)
		}
	}
}
