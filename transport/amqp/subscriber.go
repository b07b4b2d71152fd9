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

// Subscriber consumes from RabbitMQ, with many messages in flight and in order per key. It is a
// Watermill subscriber. Its methods are safe for concurrent use. Each subscription has a channel of
// its own. The subscriptions share one connection, except queues that end their connection again
// and again.
type Subscriber struct {
	config      SubscriberConfig
	connections *connections
	timeout     time.Duration // of requests
	codec       codec
	topology    *topology
	dead        *Publisher // for undecodable messages; connects when it is needed

	customKey bool // config.Key is the user's function, which may panic

	tasks sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	cancels map[*context.CancelFunc]struct{} // of running calls and subscriptions
	groups  map[string]*group                // by the plain name of the subscribed queue
}

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// NewSubscriber returns a subscriber. It does no I/O. The error joins all errors of config, by
// field.
func NewSubscriber(config SubscriberConfig) (*Subscriber, error) {
	customKey := config.Key != nil
	config.setDefaults()
	broker, err := newBroker(config.AMQP.Connection, config.Hosts, config.Credentials, "subscriber")
	if err := errors.Join(err, config.validate()); err != nil {
		return nil, fmt.Errorf("amqp subscriber: %w", err)
	}
	s := &Subscriber{
		config:      config,
		customKey:   customKey,
		connections: newConnections(broker, config.Logger.With("broker", broker.name)),
		timeout:     requestTimeout,
		codec:       newCodec(config.AMQP.Marshaler, false),
		topology:    newTopology(config.Topology, config.QueueType, config.AMQP, config.AllowLoss, config.Logger),
		cancels:     make(map[*context.CancelFunc]struct{}),
		groups:      make(map[string]*group),
	}
	s.topology.partitions, s.topology.limitIsSafe = config.Partitions, config.DeliveryLimitIsSafe
	s.topology.competing, s.topology.consumes = config.CompetingConsumers, true
	none := func(string) string { return "" }
	dead := PublisherConfig{
		Topology:  NoTopology,
		MaxBody:   math.MaxInt, // the broker has accepted the body before
		AllowLoss: true,
		Logger:    config.Logger,
	}
	dead.AMQP.Connection, dead.Hosts, dead.Credentials = config.AMQP.Connection, config.Hosts, config.Credentials
	dead.AMQP.Exchange.GenerateName = none
	dead.AMQP.Publish.GenerateRoutingKey = none
	if s.dead, err = NewPublisher(dead); err != nil {
		return nil, err
	}
	return s, nil
}

// Subscribe declares or checks the topology of topic, and returns the channel of its messages. It
// blocks until the topology is declared, and returns an error if the declaration fails or the
// broker cannot be reached. Afterwards the subscription reconnects by itself, and declares deleted
// queues and exchanges again.
//
// A second subscription to a queue is an error until the first one has ended: two handlers would
// share the messages, and each handler must have a queue of its own.
//
// The channel is closed when ctx ends or s is closed, after the messages in flight were
// acknowledged or CloseTimeout has passed. If the caller stops reading from the channel, no further
// message is handed out, without other harm.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	scope, leave, err := s.track(ctx)
	if err != nil {
		return nil, err
	}
	g, err := s.newGroup(scope, topic)
	if err == nil {
		if err = s.reserve(g); err != nil {
			leave()
			return nil, fmt.Errorf("amqp: subscribe to topic %q: %w", topic, err)
		}
	}
	if err != nil {
		leave()
		return nil, fmt.Errorf("amqp: subscribe to topic %q: %w", topic, err)
	}
	go func() {
		defer leave()
		g.run(ctx, scope)
	}()
	return g.out, nil
}

// reserve records that a queue is subscribed to, until release.
func (s *Subscriber) reserve(g *group) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	queue := g.layout.queue
	if s.groups[queue] != nil {
		return fmt.Errorf("queue %q is subscribed to already, and two handlers would share its messages; "+
			"give each a Subscriber whose AMQP.Queue.GenerateName names a queue of its own", queue)
	}
	s.groups[queue] = g
	return nil
}

// release undoes reserve.
func (s *Subscriber) release(g *group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.groups, g.layout.queue)
	s.connections.release(g.layout)
}

// releaseUnused forgets the connections of a layout without subscription.
func (s *Subscriber) releaseUnused(l layout) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.groups[l.queue] == nil {
		s.connections.release(l)
	}
}

// SubscribeInitialize declares or checks the topology of topic, so that messages which are
// published before the first Subscribe are kept.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	scope, leave, err := s.track(context.Background())
	if err != nil {
		return err
	}
	defer leave()
	g, err := s.newGroup(scope, topic)
	if err != nil {
		return fmt.Errorf("amqp: initialize topic %q: %w", topic, err)
	}
	s.releaseUnused(g.layout)
	return nil
}

// Close ends all subscriptions, like the end of their contexts, and the connections. Handlers of
// messages in flight have CloseTimeout to finish; their contexts do not end before. Close waits for
// all goroutines of s.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	s.closed = true
	for cancel := range s.cancels {
		(*cancel)()
	}
	s.mu.Unlock()
	// Subscriptions have ended by then, unless one waits for a broker that hangs.
	defer time.AfterFunc(s.config.CloseTimeout+closeTimeout, func() { s.connections.each((*sharedConnection).cut) }).Stop()
	s.tasks.Wait()
	s.connections.each((*sharedConnection).close)
	return s.dead.Close()
}

// track returns a context that ends with ctx and with Close. Close waits until leave is called.
func (s *Subscriber) track(ctx context.Context) (scope context.Context, leave func(), err error) {
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

// newGroup declares or checks the topology of topic, and returns its subscription, with one for
// each partition.
func (s *Subscriber) newGroup(ctx context.Context, topic string) (*group, error) {
	l, err := layoutOf(&s.config, topic, s.config.Partitions)
	if err != nil {
		return nil, err
	}
	g := &group{s: s, layout: l, out: make(chan *message.Message)}
	g.logger = s.config.Logger.With("broker", s.connections.broker.name, "topic", topic)
	names := l.names()
	checks := []error{checkName("queue", names[len(names)-1])}
	if s.undecodable() {
		checks = append(checks, checkName("queue", l.queue+undecodableSuffix))
	}
	if err := errors.Join(append(checks, checkName("exchange", l.exchange))...); err != nil {
		return nil, err
	}
	for i, name := range names {
		sub := s.newSubscription(g, topic, name)
		if l.count > 0 {
			sub.partition = i + 1
		}
		if err := sub.declareWithRetries(ctx); err != nil {
			s.releaseUnused(l)
			return nil, err
		}
		g.subs = append(g.subs, sub)
	}
	return g, nil
}

// declareWithRetries declares or checks the topology of a new subscription. It tries again if the
// connection was lost meanwhile, since another queue may have ended the connection.
func (sub *subscription) declareWithRetries(ctx context.Context) error {
	connections := sub.s.connections
	for attempt := 0; ; attempt++ {
		conn, err := connections.get(ctx, sub.queue)
		if err != nil {
			return err
		}
		err = sub.declare(conn)
		if err == nil || !conn.IsClosed() || attempt == maxLosses || errors.Is(err, errNoAnswer) {
			connections.dedicate(sub.queue, err)
			return err
		}
		connections.broker.backoff.wait(ctx, attempt)
	}
}

// newSubscription returns a subscription to one queue of g.
func (s *Subscriber) newSubscription(g *group, topic, queue string) *subscription {
	return &subscription{
		s:         s,
		layout:    g.layout,
		topic:     topic,
		queue:     queue,
		logger:    g.logger.With("queue", queue),
		out:       g.out,
		finished:  make(chan *delivery, s.config.InFlight),
		handed:    make(chan *delivery),
		aside:     make(chan *delivery),
		abandoned: make(chan struct{}),
		excess:    make(chan struct{}, 1),
		inFlight:  make(map[*delivery]struct{}),
		tails:     make(map[string]*delivery),
	}
}

// declare declares or checks the topology of the subscription, with the queue for undecodable
// messages if needed.
func (sub *subscription) declare(conn *connection) error {
	s := sub.s
	return s.topology.declare(conn, s.timeout, func(t *topology, ch *amqp091.Channel, version int) error {
		if err := sub.declareQueue(t, ch, version); err != nil {
			return err
		}
		if !s.undecodable() {
			return nil
		}
		return t.ensureUndecodable(ch, sub.undecodableQueue(), version)
	})
}

func (sub *subscription) declareQueue(t *topology, ch *amqp091.Channel, version int) error {
	l := sub.layout
	if sub.partition == 0 {
		return t.ensureSubscription(ch, l.queue, l.exchange, version)
	}
	if err := t.ensureMarker(ch, l, version); err != nil {
		return err
	}
	if err := t.ensureExchange(ch, l.exchange); err != nil {
		return err
	}
	return t.ensurePartition(ch, l, sub.partition, version)
}

// undecodable tells whether a queue for undecodable messages has to be declared.
func (s *Subscriber) undecodable() bool {
	return s.config.DeadLetterExchange == "" && (!s.codec.readsAll() || s.customKey && s.config.Topology == Declare)
}

const undecodableSuffix = ".undecodable"

// undecodableQueue returns the name of the queue for undecodable messages, which all partitions
// share.
func (sub *subscription) undecodableQueue() string { return sub.layout.queue + undecodableSuffix }
