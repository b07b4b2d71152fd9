package amqp

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
)

// Subscriber consumes from RabbitMQ, with many messages in flight and in order
// per key. It is a Watermill subscriber. Its methods may be called by several
// goroutines at once. Its subscriptions share one connection and have a channel
// each.
type Subscriber struct {
	config   SubscriberConfig
	link     *link
	codec    codec
	topology *topology
	dead     *Publisher // for what cannot be decoded; connects when it is needed

	tasks sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	cancels map[*context.CancelFunc]struct{} // of what is under way
}

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// NewSubscriber returns a subscriber. It does no I/O. The error joins everything
// that is wrong with config, by field.
func NewSubscriber(config SubscriberConfig) (*Subscriber, error) {
	config.setDefaults()
	broker, err := newBroker(config.AMQP.Connection, "subscriber")
	if err := errors.Join(err, config.validate()); err != nil {
		return nil, fmt.Errorf("amqp subscriber: %w", err)
	}
	s := &Subscriber{
		config:   config,
		link:     newLink(broker),
		codec:    newCodec(config.AMQP.Marshaler),
		topology: newTopology(config.Topology, config.QueueType, config.AMQP, config.AllowLoss, config.Logger),
		cancels:  make(map[*context.CancelFunc]struct{}),
	}
	none := func(string) string { return "" }
	dead := PublisherConfig{
		Topology:  NoTopology,
		MaxBody:   math.MaxInt, // the broker has taken it once
		AllowLoss: true,
		Logger:    config.Logger,
	}
	dead.AMQP.Connection = config.AMQP.Connection
	dead.AMQP.Exchange.GenerateName = none
	dead.AMQP.Publish.GenerateRoutingKey = none
	if s.dead, err = NewPublisher(dead); err != nil {
		return nil, err
	}
	return s, nil
}

// Subscribe declares the topology of topic, or checks it, and returns the channel
// of its messages. It blocks until that is done and returns an error if it cannot
// be, also when the broker cannot be reached; afterwards the subscription
// reconnects by itself, and declares what has been deleted.
//
// The channel is closed when ctx ends or s is closed, after the messages in flight
// were acknowledged or CloseTimeout has passed. Who stops reading from it only
// stops the hand-out.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	scope, leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	sub, err := s.subscription(scope, topic)
	if err != nil {
		leave()
		return nil, fmt.Errorf("amqp: subscribe to topic %q: %w", topic, err)
	}
	go func() {
		defer leave()
		sub.run(ctx, scope)
	}()
	return sub.out, nil
}

// SubscribeInitialize declares the topology of topic, or checks it, so that what
// is published before the first Subscribe is kept.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	scope, leave, err := s.enter(context.Background())
	if err != nil {
		return err
	}
	defer leave()
	if _, err := s.subscription(scope, topic); err != nil {
		return fmt.Errorf("amqp: initialize topic %q: %w", topic, err)
	}
	return nil
}

// Close ends all subscriptions, as the end of their contexts would, and the
// connection. Handlers of messages in flight have CloseTimeout to finish, with
// their contexts alive. Close waits for all goroutines of s.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	s.closed = true
	for cancel := range s.cancels {
		(*cancel)()
	}
	s.mu.Unlock()
	// Subscriptions are done by then, unless one waits for a broker that hangs.
	defer time.AfterFunc(s.config.CloseTimeout+closeTimeout, s.link.cut).Stop()
	s.tasks.Wait()
	s.link.close()
	return s.dead.Close()
}

// enter returns a context that ends with ctx and with Close, which waits until
// leave is called.
func (s *Subscriber) enter(ctx context.Context) (scope context.Context, leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, fmt.Errorf("amqp subscriber: %w", ErrClosed)
	}
	scope, cancel := context.WithCancel(ctx)
	s.tasks.Add(1)
	s.cancels[&cancel] = struct{}{}
	return scope, func() {
		cancel()
		s.mu.Lock()
		delete(s.cancels, &cancel)
		s.mu.Unlock()
		s.tasks.Done()
	}, nil
}

// subscription returns a subscription to topic whose topology has been seen to.
func (s *Subscriber) subscription(ctx context.Context, topic string) (*subscription, error) {
	sub := &subscription{
		s:         s,
		topic:     topic,
		queue:     s.config.AMQP.Queue.GenerateName(topic),
		exchange:  s.config.AMQP.Exchange.GenerateName(topic),
		out:       make(chan *message.Message),
		finished:  make(chan *delivery, s.config.InFlight),
		handed:    make(chan *delivery),
		aside:     make(chan *delivery),
		abandoned: make(chan struct{}),
		inFlight:  make(map[*delivery]struct{}),
		tails:     make(map[string]*delivery),
	}
	sub.logger = s.config.Logger.With("broker", s.link.broker.name, "topic", topic, "queue", sub.queue)
	if sub.queue == "" {
		return nil, errors.New("AMQP.Queue.GenerateName returned no name")
	}
	if err := errors.Join(checkShort("queue", sub.undecodableQueue()), checkShort("exchange", sub.exchange)); err != nil {
		return nil, err
	}
	conn, err := s.link.get(ctx)
	if err != nil {
		return nil, err
	}
	return sub, sub.declare(conn)
}

// declare sees to the queue of the subscription and what belongs to it.
func (sub *subscription) declare(conn *connection) error {
	s := sub.s
	return conn.withChannel(requestTimeout, func(ch *amqp091.Channel) error {
		if err := s.topology.subscription(ch, sub.queue, sub.exchange, conn.version()); err != nil {
			return err
		}
		if s.codec.total() || s.config.DeadLetterExchange != "" {
			return nil
		}
		return s.topology.undecodable(ch, sub.undecodableQueue(), conn.version())
	})
}

func (sub *subscription) undecodableQueue() string { return sub.queue + ".undecodable" }
