package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
)

// batchSender makes any Watermill publisher a [transport.Sender]. One Publish call publishes the
// waiting messages of a topic. If the call fails, any message of the batch may have been published:
// every message is then published again alone, and gets the outcome of its own call.
//
// Publish takes no context. When the context of a message ends, the outcome of the message is
// Unavailable. The goroutine that calls Publish goes on until the call returns, and keeps its place
// meanwhile. The number of places is bounded.
type batchSender struct {
	publisher message.Publisher
	places    int

	mu         sync.Mutex
	waiting    map[string][]*batched
	topics     []string // topics with waiting messages, in turns
	unanswered map[*batched]struct{}
	busy       int
	watchedCtx context.Context // the last context whose end calls expire
	idle       chan struct{}   // closed when busy is 0 again; nil without a waiter
}

type batched struct {
	ctx  context.Context //nolint:containedctx // the context of the message
	msg  *message.Message
	done func(transport.Result) // nil once called
}

const batchMax = 100

func newBatchSender(publisher message.Publisher, places int) *batchSender {
	return &batchSender{
		publisher:  publisher,
		places:     places,
		waiting:    make(map[string][]*batched),
		unanswered: make(map[*batched]struct{}),
	}
}

// Send implements [transport.Sender]. It does not block.
func (s *batchSender) Send(ctx context.Context, topic string, msg *message.Message, done func(transport.Result)) {
	m := &batched{ctx: ctx, msg: msg, done: done}
	s.mu.Lock()
	if len(s.waiting[topic]) == 0 {
		s.topics = append(s.topics, topic)
	}
	s.waiting[topic] = append(s.waiting[topic], m)
	s.unanswered[m] = struct{}{}
	start := s.busy < s.places
	if start {
		s.busy++
	}
	watch := s.watchedCtx != ctx
	s.watchedCtx = ctx
	s.mu.Unlock()
	if start {
		go s.publishAll()
	}
	if watch {
		context.AfterFunc(ctx, s.expire)
	}
}

// Route implements [transport.Sender]: every topic is a route of its own.
func (s *batchSender) Route(topic string) string { return topic }

// Publish implements [message.Publisher].
func (s *batchSender) Publish(topic string, messages ...*message.Message) error {
	return s.publisher.Publish(topic, messages...)
}

// Close implements [message.Publisher]. It leaves the publisher to its owner.
func (s *batchSender) Close() error { return nil }

// wait waits until no Publish call is under way, or ctx ends, and tells whether all calls have
// returned.
func (s *batchSender) wait(ctx context.Context) bool {
	s.mu.Lock()
	if s.busy == 0 {
		s.mu.Unlock()
		return true
	}
	if s.idle == nil {
		s.idle = make(chan struct{})
	}
	idle := s.idle
	s.mu.Unlock()
	select {
	case <-idle:
		return true
	case <-ctx.Done():
		return false
	}
}

// publishAll publishes batches until no message waits.
func (s *batchSender) publishAll() {
	for {
		topic, batch := s.next()
		if batch == nil {
			return
		}
		s.publish(topic, batch)
	}
}

// next takes the waiting messages of the next topic, except for messages whose context has ended.
// Without a message, next gives up the caller's place.
func (s *batchSender) next() (string, []*batched) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.topics) > 0 {
		topic := s.topics[0]
		s.topics = s.topics[1:]
		queue := s.waiting[topic]
		var batch []*batched
		for len(queue) > 0 && len(batch) < batchMax {
			if queue[0].done != nil {
				batch = append(batch, queue[0])
			}
			queue = queue[1:]
		}
		if len(queue) > 0 {
			s.waiting[topic] = queue
			s.topics = append(s.topics, topic)
		} else {
			delete(s.waiting, topic)
		}
		if len(batch) > 0 {
			return topic, batch
		}
	}
	s.busy--
	if s.busy == 0 && s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
	return "", nil
}

func (s *batchSender) publish(topic string, batch []*batched) {
	messages := make([]*message.Message, len(batch))
	for i, m := range batch {
		messages[i] = m.msg
	}
	err := s.call(topic, messages...)
	if err == nil || len(batch) == 1 {
		for _, m := range batch {
			s.report(m, resultOf(err))
		}
		return
	}
	for _, m := range batch {
		if m.ctx.Err() != nil {
			continue // expire reports m
		}
		s.report(m, resultOf(s.call(topic, m.msg)))
	}
}

// call publishes. A panic fails the messages, not the process.
func (s *batchSender) call(topic string, messages ...*message.Message) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("publisher panicked with a %T", v) // the value may hold the payload
		}
	}()
	return s.publisher.Publish(topic, messages...)
}

// report reports the outcome of m, unless an outcome was reported before.
func (s *batchSender) report(m *batched, res transport.Result) {
	s.mu.Lock()
	done := m.done
	m.done = nil
	delete(s.unanswered, m)
	s.mu.Unlock()
	if done != nil {
		done(res)
	}
}

// expire reports the messages whose context has ended.
func (s *batchSender) expire() {
	s.mu.Lock()
	var ended []*batched
	for m := range s.unanswered {
		if m.ctx.Err() != nil {
			ended = append(ended, m)
		}
	}
	s.mu.Unlock()
	for _, m := range ended {
		s.report(m, transport.Result{Outcome: transport.Unavailable, Err: context.Cause(m.ctx)})
	}
}

// resultOf returns the outcome of a Publish call for one message. An error may state its outcome by
// a method. The end of a context leaves the outcome unknown. Any other error is a refusal; other
// messages of the route will tell whether the message is at fault.
func resultOf(err error) transport.Result {
	if err == nil {
		return transport.Result{Outcome: transport.Confirmed}
	}
	var known interface{ Outcome() transport.Outcome }
	switch {
	case errors.As(err, &known) && known.Outcome() != transport.Confirmed:
		return transport.Result{Outcome: known.Outcome(), Err: err}
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
		return transport.Result{Outcome: transport.Unavailable, Err: err}
	}
	return transport.Result{Outcome: transport.Refused, Err: err}
}
