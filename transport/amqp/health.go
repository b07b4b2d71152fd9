package amqp

import (
	"cmp"
	"slices"
)

// QueueHealth is the state of a queue that a [Subscriber] consumes.
type QueueHealth struct {
	Topic, Queue string
	// Consuming tells whether messages are delivered, those of a partition to whichever process is
	// its active consumer.
	Consuming bool
	// Err is why the queue is not consumed, once an attempt has failed.
	Err error
	// Apart tells that the queue does not share the connection of the others: it, or one that it
	// was with, has ended that again and again.
	Isolated bool
}

// consumeState is how a subscription is.
type consumeState struct {
	consuming bool
	err       error
}

// Health returns the state of every queue that is subscribed to, by name. It does no I/O.
func (s *Subscriber) Health() []QueueHealth {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []QueueHealth
	for _, g := range s.groups {
		for _, sub := range g.subs {
			h := QueueHealth{Topic: sub.topic, Queue: sub.queue, Isolated: s.connections.isolated(sub.queue)}
			if c := sub.state.Load(); c != nil {
				h.Consuming, h.Err = c.consuming, c.err
			}
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b QueueHealth) int { return cmp.Compare(a.Queue, b.Queue) })
	return all
}
