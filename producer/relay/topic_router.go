package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/producer/relay/internal/core"
	"github.com/boxpair/boxpair/transport"
)

// ErrNoDownstream is the error of an event whose topic no downstream takes, in a relay without a
// publisher for the remaining topics. The event waits as on a route that does not work.
var ErrNoDownstream = errors.New("no downstream takes the topic")

// stuckAfter is how long a downstream may be silent while its window is full, or may take for one
// Send, before its waiting events are unavailable. Otherwise these events would take the relay's
// window from other downstreams. A silent message in a window with room holds up no event.
const stuckAfter = time.Second

// topicRouter is a [transport.Sender] over several downstreams. Every downstream has a queue and a
// goroutine, since Send may block.
type topicRouter struct {
	queues []*downstreamQueue
	tasks  sync.WaitGroup
}

// downstreamQueue is the queue of a downstream while a relay runs.
type downstreamQueue struct {
	down   Downstream
	sender transport.Sender
	signal chan struct{} // has room for one

	mu         sync.Mutex
	queue      []*outgoing
	inFlight   int
	answeredAt time.Time // when the downstream last answered, or its window became full
	sending    time.Time // when the current Send began; zero without a Send under way
	watched    bool      // a timer for checkStuck is set
}

type outgoing struct {
	ctx   context.Context //nolint:containedctx // the context of the send
	topic string
	msgs  []*message.Message
	done  func(transport.Result)
}

func (s *topicRouter) add(down Downstream, sender transport.Sender) {
	s.queues = append(s.queues, &downstreamQueue{down: down, sender: sender, signal: make(chan struct{}, 1)})
}

// start serves the queues until ctx ends. Events queued after the end of ctx are unavailable.
func (s *topicRouter) start(ctx context.Context) {
	for _, o := range s.queues {
		s.tasks.Go(func() { o.serve(ctx) })
	}
}

// queueOf returns the queue of the downstream that takes topic, or nil.
func (s *topicRouter) queueOf(topic string) *downstreamQueue {
	for _, o := range s.queues {
		if o.down.Topics == nil || o.down.takes(topic) {
			return o
		}
	}
	return nil
}

// downstream returns what the core knows of the downstream of a topic.
func (s *topicRouter) downstream(topic string) core.Downstream {
	if o := s.queueOf(topic); o != nil {
		return core.Downstream{Name: o.down.Name, PerSecond: o.down.MaxPerSecond}
	}
	return core.Downstream{}
}

// Send implements [transport.Sender]. It does not block.
func (s *topicRouter) Send(ctx context.Context, topic string, msg *message.Message, done func(transport.Result)) {
	s.SendBatch(ctx, topic, []*message.Message{msg}, done)
}

// SendBatch implements [transport.BatchSender]. It does not block.
func (s *topicRouter) SendBatch(ctx context.Context, topic string, msgs []*message.Message, done func(transport.Result)) {
	o := s.queueOf(topic)
	if o == nil {
		done(transport.Result{Outcome: transport.Unavailable, Err: fmt.Errorf("%w %q", ErrNoDownstream, topic)})
		return
	}
	o.put(&outgoing{ctx: ctx, topic: o.down.topic(topic), msgs: msgs, done: done})
}

// BatchLimit implements [transport.BatchSender]. Without a topic, the limit is unknown and 0.
func (s *topicRouter) BatchLimit() (messages, bytes int) { return 0, 0 }

// batchLimit returns the batch limit of the downstream that takes topic. A batch has at most half
// of the window, so that a batch on a silent route leaves room for other routes.
func (s *topicRouter) batchLimit(topic string) (messages, bytes int) {
	o := s.queueOf(topic)
	if o == nil {
		return 0, 0
	}
	messages, bytes = batchLimitOf(o.sender)(o.down.topic(topic))
	return min(messages, max(1, o.down.Window/2)), bytes
}

// Route implements [transport.Sender].
func (s *topicRouter) Route(topic string) string {
	o := s.queueOf(topic)
	switch {
	case o == nil:
		return topic
	case o.down.Name == "":
		return o.sender.Route(topic)
	default:
		return o.down.Name + ": " + o.sender.Route(o.down.topic(topic))
	}
}

// Publish implements [message.Publisher]. The relay does not use it.
func (s *topicRouter) Publish(string, ...*message.Message) error {
	return errors.New("a router of topics sends and does not publish")
}

// Close implements [message.Publisher]. It leaves the publishers to their owners.
func (s *topicRouter) Close() error { return nil }

func (o *downstreamQueue) put(out *outgoing) {
	o.mu.Lock()
	if o.stuck() {
		o.mu.Unlock()
		out.done(o.unavailable())
		return
	}
	o.queue = append(o.queue, out)
	watch := !o.watched
	o.watched = true
	o.mu.Unlock()
	o.wake()
	if watch {
		time.AfterFunc(stuckAfter, o.checkStuck)
	}
}

// stuck tells whether the downstream has kept queued events waiting for too long. Called with mu
// locked.
func (o *downstreamQueue) stuck() bool {
	full := o.inFlight >= o.down.Window && time.Since(o.answeredAt) >= stuckAfter
	blocked := !o.sending.IsZero() && time.Since(o.sending) >= stuckAfter
	return full || blocked
}

func (o *downstreamQueue) unavailable() transport.Result {
	return transport.Result{Outcome: transport.Unavailable, Err: fmt.Errorf("downstream %s answers nothing", o.down.Name)}
}

// checkStuck gives up the queued events if the downstream is stuck, and runs again as long as
// events are queued.
func (o *downstreamQueue) checkStuck() {
	o.mu.Lock()
	var waiting []*outgoing
	if o.stuck() {
		waiting, o.queue = o.queue, nil
	}
	o.watched = len(o.queue) > 0
	again := o.watched
	o.mu.Unlock()
	for _, out := range waiting {
		out.done(o.unavailable())
	}
	if again {
		time.AfterFunc(stuckAfter, o.checkStuck)
	}
}

// serve sends queued events, in their order, as far as the window has room.
func (o *downstreamQueue) serve(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			o.abandon(ctx)
			return
		case <-o.signal:
		}
		for out := o.next(); out != nil; out = o.next() {
			o.send(out)
		}
	}
}

// send sends an outgoing event or batch from next.
func (o *downstreamQueue) send(out *outgoing) {
	done := func(res transport.Result) {
		o.answered(len(out.msgs))
		out.done(res)
	}
	batches, ok := o.sender.(transport.BatchSender)
	switch {
	case len(out.msgs) == 1:
		o.sender.Send(out.ctx, out.topic, out.msgs[0], done)
	case ok:
		batches.SendBatch(out.ctx, out.topic, out.msgs, done)
	default:
		done(transport.Result{Outcome: transport.Invalid, Err: fmt.Errorf("downstream %s takes no batches", o.down.Name)})
	}
	o.mu.Lock()
	o.sending = time.Time{}
	o.mu.Unlock()
}

// next returns the next outgoing event or batch if the window has room. A batch may exceed the
// window. A batch that waited for room for all of its messages would hold up the queue as long as a
// message in flight is silent.
func (o *downstreamQueue) next() *outgoing {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) == 0 || o.inFlight >= o.down.Window {
		return nil
	}
	out := o.queue[0]
	o.queue[0] = nil
	o.queue = o.queue[1:]
	o.inFlight += len(out.msgs)
	o.sending = time.Now()
	if o.inFlight >= o.down.Window {
		o.answeredAt = o.sending
	}
	return out
}

func (o *downstreamQueue) answered(n int) {
	o.mu.Lock()
	o.inFlight -= n
	o.answeredAt = time.Now()
	o.mu.Unlock()
	o.wake()
}

func (o *downstreamQueue) abandon(ctx context.Context) {
	o.mu.Lock()
	waiting := o.queue
	o.queue = nil
	o.mu.Unlock()
	for _, out := range waiting {
		out.done(transport.Result{Outcome: transport.Unavailable, Err: context.Cause(ctx)})
	}
}

func (o *downstreamQueue) wake() {
	select {
	case o.signal <- struct{}{}:
	default:
	}
}
