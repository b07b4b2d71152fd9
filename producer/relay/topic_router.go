package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
)

// ErrNoDownstream is the error of events whose topic no downstream takes, in a relay
// that has no publisher for the rest. They wait as on a route that does not work.
var ErrNoDownstream = errors.New("no downstream takes the topic")

// stuckAfter is how long a downstream may answer nothing with its window full, or take to return
// from one Send, before what waits for it is called unavailable: it would take the relay's window
// from the others. A message that is silent for longer, with room beside it, holds nothing up.
const stuckAfter = time.Second

// topicRouter is a [transport.Sender] over several. Each has a queue and a goroutine
// of its own, since Send may block.
type topicRouter struct {
	outlets []*downstreamQueue
	tasks   sync.WaitGroup
}

// downstreamQueue is a downstream while a relay runs.
type downstreamQueue struct {
	down   Downstream
	sender transport.Sender
	signal chan struct{} // has room for one

	mu       sync.Mutex
	queue    []*outgoing
	inFlight int
	heard    time.Time // when it last answered, or its window became full
	sending  time.Time // when the Send that is under way began, zero: none is
	watched  bool      // somebody will look whether it is stuck
}

type outgoing struct {
	ctx   context.Context //nolint:containedctx // it is the send's
	topic string
	msgs  []*message.Message
	done  func(transport.Result)
}

func (s *topicRouter) add(down Downstream, sender transport.Sender) {
	s.outlets = append(s.outlets, &downstreamQueue{down: down, sender: sender, signal: make(chan struct{}, 1)})
}

// start serves the outlets until ctx ends. What is queued then is unavailable.
func (s *topicRouter) start(ctx context.Context) {
	for _, o := range s.outlets {
		s.tasks.Go(func() { o.serve(ctx) })
	}
}

// outlet returns who takes topic, or nil.
func (s *topicRouter) queueOf(topic string) *downstreamQueue {
	for _, o := range s.outlets {
		if o.down.Topics == nil || o.down.takes(topic) {
			return o
		}
	}
	return nil
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

// BatchLimit implements [transport.BatchSender], for whoever has no topic: that depends on where it
// is sent.
func (s *topicRouter) BatchLimit() (messages, bytes int) { return 0, 0 }

// batchLimit is that of who takes topic. A batch has half of the window at most, so that one whose
// route is silent leaves room for other routes.
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

// Close implements [message.Publisher]. The publishers belong to whoever made them.
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
		time.AfterFunc(stuckAfter, o.look)
	}
}

// stuck tells whether what is queued waits for something that has taken too long. Called with mu
// locked.
func (o *downstreamQueue) stuck() bool {
	full := o.inFlight >= o.down.Window && time.Since(o.heard) >= stuckAfter
	blocked := !o.sending.IsZero() && time.Since(o.sending) >= stuckAfter
	return full || blocked
}

func (o *downstreamQueue) unavailable() transport.Result {
	return transport.Result{Outcome: transport.Unavailable, Err: fmt.Errorf("downstream %s answers nothing", o.down.Name)}
}

// look gives up what is queued if the downstream is stuck, and comes back as long as
// there is something.
func (o *downstreamQueue) look() {
	o.mu.Lock()
	var given []*outgoing
	if o.stuck() {
		given, o.queue = o.queue, nil
	}
	o.watched = len(o.queue) > 0
	again := o.watched
	o.mu.Unlock()
	for _, out := range given {
		out.done(o.unavailable())
	}
	if again {
		time.AfterFunc(stuckAfter, o.look)
	}
}

// serve sends what is queued, in its order, as far as the window has room.
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

// send sends what next has returned.
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

// next returns what is to be sent if there is a place in the window. A batch may go beyond it:
// waiting until all of it fits, it would hold up what is behind it for as long as what is in flight
// is silent.
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
		o.heard = o.sending
	}
	return out
}

func (o *downstreamQueue) answered(n int) {
	o.mu.Lock()
	o.inFlight -= n
	o.heard = time.Now()
	o.mu.Unlock()
	o.wake()
}

func (o *downstreamQueue) abandon(ctx context.Context) {
	o.mu.Lock()
	given := o.queue
	o.queue = nil
	o.mu.Unlock()
	for _, out := range given {
		out.done(transport.Result{Outcome: transport.Unavailable, Err: context.Cause(ctx)})
	}
}

func (o *downstreamQueue) wake() {
	select {
	case o.signal <- struct{}{}:
	default:
	}
}
