package consumer_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/transport"
)

// simQueue is the queue of one consumer. Messages of a key are delivered one after
// another; those without one, and those of different keys, in any order.
type simQueue struct {
	sim   *simulation
	name  string // the consumer's handler
	lanes []*simLane
}

type simLane struct {
	key      string
	messages []*simMessage
	held     *simDelivery // of the first message
}

type simMessage struct {
	event       transport.Event
	redelivered bool
}

type simDelivery struct {
	queue *simQueue
	lane  *simLane
	proc  *simProcess
}

// publish puts a message into the queue, behind those of its key.
func (q *simQueue) publish(e transport.Event) {
	i := slices.IndexFunc(q.lanes, func(l *simLane) bool { return e.Key != "" && l.key == e.Key })
	if i < 0 {
		i = len(q.lanes)
		q.lanes = append(q.lanes, &simLane{key: e.Key})
	}
	q.lanes[i].messages = append(q.lanes[i].messages, &simMessage{event: e})
}

func (q *simQueue) empty() bool {
	return !slices.ContainsFunc(q.lanes, func(l *simLane) bool { return len(l.messages) > 0 })
}

// deliver hands a message to a process, which acknowledges it when it is done.
func (q *simQueue) deliver(p *simProcess) bool {
	var free []*simLane
	for _, l := range q.lanes {
		if l.held == nil && len(l.messages) > 0 {
			free = append(free, l)
		}
	}
	if len(free) == 0 || p.holds(q) >= q.sim.prefetch {
		return false
	}
	lane := free[q.sim.rnd.IntN(len(free))]
	d := &simDelivery{queue: q, lane: lane, proc: p}
	lane.held = d
	p.held = append(p.held, d)
	m := lane.messages[0]
	q.sim.tracef("%s gets %s of %s, redelivered %v", p.name, short(m.event.ID), q.name, m.redelivered)
	ctx := p.ctx
	if m.redelivered {
		ctx = transport.WithRedelivered(ctx)
	}
	msg := m.event.Message()
	msg.SetContext(ctx)
	if q.sim.shares && q.sim.chance(3) {
		p.handlers[q.name].Share(1)
	}
	p.wg.Go(func() { d.consume(p.handlers[q.name], msg, m) })
	return true
}

func (d *simDelivery) consume(h *consumer.Handler[*simTx], msg *message.Message, m *simMessage) {
	err := h.Consume(msg)
	c := &simCall{name: fmt.Sprintf("ack %s of %s: %v", short(m.event.ID), d.queue.name, err == nil)}
	c.do = func() {
		if err != nil {
			d.queue.sim.plans[m.event.ID].returned[h.Name()]++
		}
		if d.lane.held != d { // the connection was lost meanwhile
			return
		}
		if d.drop(); err != nil {
			m.redelivered = true
			return
		}
		d.queue.sim.acknowledged(d.queue.name, m.event)
		d.lane.messages = d.lane.messages[1:]
	}
	_ = d.proc.call(msg.Context(), c) // of a dead process, nobody hears it
}

// drop ends the delivery. Its message is the next of its key, unless it was
// acknowledged.
func (d *simDelivery) drop() {
	d.lane.held = nil
	d.proc.held = slices.DeleteFunc(d.proc.held, func(o *simDelivery) bool { return o == d })
}

func (p *simProcess) holds(q *simQueue) (n int) {
	for _, d := range p.held {
		if d.queue == q {
			n++
		}
	}
	return n
}

// disconnect gives back what a process holds. It does not know yet.
func (p *simProcess) disconnect() {
	for _, d := range slices.Clone(p.held) {
		d.lane.messages[0].redelivered = true
		d.drop()
	}
}

// produce publishes a new message, a copy of an earlier one, or one that has its ID
// and other content.
func (s *simulation) produce() {
	var e transport.Event
	switch n := len(s.published); {
	case n > 0 && s.chance(4):
		e = s.published[s.rnd.IntN(n)]
		if s.wild.foreign && s.chance(4) {
			e.Digest = transport.Digest{} // by way of a publisher that does not know it
		}
	case n > 0 && s.wild.altered && s.chance(8):
		e = s.published[s.rnd.IntN(n)]
		if e.Digest.IsZero() {
			return // nothing would tell
		}
		e.Payload = []byte("other content")
		e.Digest = transport.ContentDigest(&e)
	default:
		e = s.newEvent()
	}
	s.published = append(s.published, e)
	s.tracef("publish %s key %q %q", short(e.ID), e.Key, e.Payload)
	for _, q := range s.queues {
		q.publish(e)
	}
}

func (s *simulation) newEvent() transport.Event {
	e := event(len(s.plans))
	e.Stamp = time.Now()
	if s.chance(2) {
		e.Key = []string{"a", "b", "c"}[s.rnd.IntN(3)]
	}
	if s.wild.old && s.chance(12) {
		e.Stamp = e.Stamp.Add(-s.cfg.Window - time.Duration(s.rnd.IntN(60))*time.Second)
	}
	e.Digest = transport.ContentDigest(&e)
	if s.wild.foreign && s.chance(4) {
		e.Digest = transport.Digest{}
		if !s.wild.forget {
			e.Stamp = time.Time{}
		}
	}
	s.plans[e.ID] = s.newPlan()
	return e
}
