package amqp

import (
	"cmp"
	"slices"
)

// QueueHealth is the state of a queue that a [Subscriber] consumes.
type QueueHealth struct {
	Topic, Queue string
	// Consuming tells whether the queue has a consumer of this process. The messages of a partition
	// go to the process with the active consumer.
	Consuming bool
	// Err is the reason for which the queue is not consumed, after a failed attempt.
	Err error
	// Isolated tells that the queue has left the connection of the other queues. The queue, or a
	// queue on the same connection, had ended that connection again and again.
	Isolated bool
}

// consumeState is the state of a subscription.
type consumeState struct {
	consuming bool
	err       error
}

// Health returns the state of every subscribed queue, sorted by name. It does no I/O.
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
