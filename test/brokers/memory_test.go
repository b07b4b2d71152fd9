package brokers

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport/memory"
	"github.com/boxpair/boxpair/transport/transporttest"
)

// inProcess is transport/memory. Every publisher is a broker, and a topic is subscribed to on
// all that are open: nobody but the case that made it publishes to it.
type inProcess struct {
	mu      sync.Mutex
	brokers []*memory.Broker
	topics  map[string]*subscribed
}

// subscribed is a topic and what its subscribers have acknowledged.
type subscribed struct {
	stored []*message.Message
	gate   chan struct{} // closed when they may acknowledge
	end    context.CancelFunc
	tasks  sync.WaitGroup
}

const subscriber = "everything"

func newInProcess() *inProcess { return &inProcess{topics: make(map[string]*subscribed)} }

func (m *inProcess) open(context.Context, string) (message.Publisher, error) {
	b, err := memory.New(memory.Config{})
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.brokers = append(m.brokers, b)
	return b, nil
}

func (m *inProcess) prepare(ctx context.Context, topic string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	ctx, end := context.WithCancel(ctx)
	s := &subscribed{gate: make(chan struct{}), end: end}
	close(s.gate)
	m.topics[topic] = s
	for _, b := range m.brokers {
		messages, err := b.Subscriber(subscriber).Subscribe(ctx, topic)
		if errors.Is(err, memory.ErrClosed) {
			continue
		}
		if err != nil {
			return err
		}
		s.tasks.Go(func() {
			for msg := range messages {
				m.take(s, msg)
			}
		})
	}
	return nil
}

// take acknowledges what it keeps, as soon as it may.
func (m *inProcess) take(s *subscribed, msg *message.Message) {
	m.mu.Lock()
	gate := s.gate
	m.mu.Unlock()
	<-gate
	m.mu.Lock()
	s.stored = append(s.stored, msg.Copy())
	m.mu.Unlock()
	msg.Ack()
}

func (m *inProcess) read(_ context.Context, topic string) ([]*message.Message, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.topics[topic]; s != nil {
		return append([]*message.Message(nil), s.stored...), nil
	}
	return nil, nil
}

// unsubscribe waits until the subscriber has left the subscription, a moment after its messages end.
func unsubscribe(ctx context.Context, b *memory.Broker, topic string) error {
	for {
		err := b.Unsubscribe(topic, subscriber)
		if !errors.Is(err, memory.ErrInUse) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Millisecond):
		}
	}
}

func (m *inProcess) remove(ctx context.Context, topic string) error {
	m.mu.Lock()
	s := m.topics[topic]
	delete(m.topics, topic)
	brokers := m.brokers
	m.mu.Unlock()
	s.end()
	s.tasks.Wait()
	var errs []error
	for _, b := range brokers {
		errs = append(errs, unsubscribe(ctx, b, topic))
	}
	return errors.Join(errs...)
}

func (m *inProcess) silence(topic string) (func(), error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.topics[topic]
	gate := make(chan struct{})
	s.gate = gate
	return func() { close(gate) }, nil
}

func (m *inProcess) target() *transporttest.Target {
	return &transporttest.Target{Open: m.open, Prepare: m.prepare, Stored: m.read, Remove: m.remove, Silence: m.silence}
}
