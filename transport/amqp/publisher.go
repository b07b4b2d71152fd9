package amqp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

// Publisher publishes to RabbitMQ with a window of unconfirmed messages on one channel. It is a
// [transport.Sender] and a Watermill publisher. Its methods are safe for concurrent use.
type Publisher struct {
	config   PublisherConfig
	broker   *broker
	codec    codec
	topology *topology

	seq     atomic.Uint64
	window  chan struct{} // one element per unconfirmed message
	closing chan struct{} // closed by Close
	tasks   sync.WaitGroup

	connector connector
	judge     judge
	packets   packets
	suspects  suspects
	slots     slots

	// mu guards the fields below and those of the parts above, and is the only lock of a publish. No
	// operation under the lock waits for the network: writes are buffered.
	mu      sync.Mutex
	closed  bool
	current *confirmChannel // nil while there is no channel
	down    error           // the reason for having no channel, after a failed attempt
	blocked string          // the reason for which the broker blocks the connection, or ""
	bytes   int             // in unconfirmed messages
	waiting int             // calls of waiter.wait
	changed chan struct{}   // closed and replaced when one of these fields changes
}

var _ transport.Sender = (*Publisher)(nil)

// NewPublisher returns a publisher. It does no I/O. The error joins all errors of config, by field.
func NewPublisher(config PublisherConfig) (*Publisher, error) {
	config.setDefaults()
	broker, err := newBroker(config.AMQP.Connection, config.Hosts, config.Credentials, "publisher")
	if err := errors.Join(err, config.validate()); err != nil {
		return nil, fmt.Errorf("amqp publisher: %w", err)
	}
	defaultTo(&config.Name, broker.name)
	p := &Publisher{
		config:   config,
		broker:   broker,
		codec:    codecOf(&config),
		topology: newTopology(config.Topology, config.QueueType, config.AMQP, config.AllowLoss, config.Logger),
		window:   make(chan struct{}, config.Window),
		closing:  make(chan struct{}),
		changed:  make(chan struct{}),
	}
	p.connector.Publisher, p.packets.Publisher, p.suspects.Publisher, p.slots.Publisher = p, p, p, p
	p.judge = judge{Publisher: p, wake: make(chan struct{}, 1), confirmsAhead: confirmsAhead}
	p.topology.partitions = config.Partitions
	p.topology.limitIsSafe = true // a publisher may use any queue; subscribers check the limit
	p.topology.competing = config.CompetingConsumers
	return p, nil
}

// Route returns the publisher's name with the exchange and routing key of topic, without the shard:
// partitions of a topic are one route.
func (p *Publisher) Route(topic string) string {
	exchange, key := p.route(topic)
	return p.config.Name + " " + exchange + "/" + key
}

// route returns the exchange of topic, and its routing key without the shard. The default exchange
// routes by names of queues only, so a partitioned topic gets an exchange of its own.
func (p *Publisher) route(topic string) (exchange, key string) {
	exchange, key = p.config.AMQP.Exchange.GenerateName(topic), p.config.AMQP.Publish.GenerateRoutingKey(topic)
	if exchange == "" && p.config.Partitions > 0 {
		return key, ""
	}
	return exchange, key
}

// Connect connects if there is no connection, and waits for the connection until ctx ends or
// ConfirmTimeout passes. Publishing does not need Connect; call Connect to detect early that the
// broker cannot be reached.
func (p *Publisher) Connect(ctx context.Context) error {
	w := waiter{p: p, ctx: ctx}
	defer w.stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.closed {
			return fmt.Errorf("amqp publisher: %w", ErrClosed)
		}
		p.connector.start() //nolint:contextcheck // the connection outlives this call
		if p.current != nil {
			return nil
		}
		reason := p.down
		if reason == nil {
			reason = errNotConnected
		}
		if err := w.wait(reason); err != nil {
			return fmt.Errorf("amqp publisher: %w", err)
		}
	}
}

// Health is the state of a publisher's connection.
type Health struct {
	Connected   bool
	Blocked     bool  // by the broker, for memory or disk
	Err         error // the reason for not being connected, or for being blocked
	Unconfirmed int   // number of messages
}

// Health returns the state of the connection. A publisher that was never used is not connected,
// which is no error.
func (p *Publisher) Health() Health {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := Health{Connected: p.current != nil, Blocked: p.blocked != "", Err: p.down, Unconfirmed: len(p.window)}
	if h.Blocked {
		h.Err = p.blockedError()
	}
	if p.closed {
		h.Err = ErrClosed
	}
	return h
}

// Publish publishes messages to topic and waits until the broker has answered for each. All
// messages are under way at once, in their order; a failed message does not stop the others. The
// context of each message and ConfirmTimeout bound the wait. Once ConfirmTimeout has passed for a
// message that could not be written, the messages behind it do not wait. If messages fail, the
// error is a [*PublishError].
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	results := make([]transport.Result, len(messages))
	var pending sync.WaitGroup
	pending.Add(len(messages))
	call := &publishCall{}
	for i, msg := range messages {
		p.sendOne(msg.Context(), topic, msg, call, func(r transport.Result) {
			results[i] = r
			pending.Done()
		})
	}
	pending.Wait()
	var failed []FailedMessage
	for i, r := range results {
		if r.Outcome != transport.Confirmed {
			failed = append(failed, FailedMessage{i, messages[i].UUID, r})
		}
	}
	if failed != nil {
		return &PublishError{topic, len(messages), failed}
	}
	return nil
}

// Send implements [transport.Sender]. ctx and ConfirmTimeout bound how long it waits for the
// connection and for room in the window. While attempts to connect fail, Send does not wait at all.
func (p *Publisher) Send(ctx context.Context, topic string, msg *message.Message, done func(transport.Result)) {
	p.sendOne(ctx, topic, msg, nil, done)
}

func (p *Publisher) sendOne(ctx context.Context, topic string, msg *message.Message, call *publishCall, done func(transport.Result)) {
	out := outgoing{topic: topic, declare: true, msg: msg, seq: p.nextSeq(), messages: 1, mayBatch: p.config.BatchSize > 1, call: call}
	used, err := p.encodeMessage(topic, msg, &out)
	if err != nil {
		done(transport.Result{Outcome: transport.Invalid, Err: err})
		return
	}
	if r := p.send(ctx, &out, done); r != nil {
		done(*r)
	}
	if used != nil {
		used.release()
	}
}

// encodeMessage encodes msg as the publishing of out. A panic of the user's marshaler or of a
// function for names or keys becomes an error of the message: if it ended the process, the same
// message would end the process again.
func (p *Publisher) encodeMessage(topic string, msg *message.Message, out *outgoing) (used *pooled, err error) {
	defer func() {
		if v := recover(); v != nil {
			used, err = nil, fmt.Errorf("encode message %s: %w", shorten(msg.UUID), panicError(v))
		}
	}()
	if err = p.checkSize("payload", msg.Payload); err == nil { // checked before the payload is copied
		out.pub, used, err = p.codec.encode(msg, out.seq)
	}
	if err != nil {
		return nil, fmt.Errorf("encode message %s: %w", shorten(msg.UUID), err)
	}
	if p.config.CloudEvents {
		setCloudEvents(out.pub.Headers, topic, msg)
	}
	out.exchange, out.key = p.destination(topic, msg)
	return used, nil
}

// panicError returns the error of a panic, without its value, which may hold the payload.
func panicError(v any) error {
	return fmt.Errorf("marshaler, key or name function panicked with a %T", v)
}

// encode encodes the messages of s again, as the publishing of out.
func (p *Publisher) encode(s *slot, out *outgoing) (*pooled, error) {
	if s.msg != nil {
		return p.encodeMessage(s.topic, s.msg, out)
	}
	return p.encodeBatch(s.topic, s.msgs, out)
}

// destination returns the exchange and routing key of msg.
func (p *Publisher) destination(topic string, msg *message.Message) (exchange, key string) {
	exchange, key = p.route(topic)
	if p.config.Partitions > 0 {
		key = shardKey(key, shardOf(msg, p.config.Key(msg)))
	}
	return exchange, key
}

func (p *Publisher) nextSeq() string { return strconv.FormatUint(p.seq.Add(1), 10) }

// Close waits for the confirms of sent messages, for ConfirmTimeout at most, reports the other
// messages as unavailable, and closes the connection. It waits for all goroutines of p.
func (p *Publisher) Close() error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.closing)
		if p.connector.started {
			p.connector.cancel()
		}
		p.broadcast()
	}
	p.mu.Unlock()
	p.tasks.Wait()
	return nil
}

// publishRaw publishes pub unchanged, except for the number of the publish, and waits for the
// outcome.
func (p *Publisher) publishRaw(ctx context.Context, exchange, key string, pub amqp091.Publishing) transport.Result {
	pub.Headers = maps.Clone(pub.Headers)
	if pub.Headers == nil {
		pub.Headers = amqp091.Table{}
	}
	results := make(chan transport.Result, 1)
	out := outgoing{exchange: exchange, key: key, seq: p.nextSeq(), pub: pub, messages: 1}
	pub.Headers[seqHeader] = out.seq
	if r := p.send(ctx, &out, func(r transport.Result) { results <- r }); r != nil {
		return *r
	}
	return <-results
}

func unavailable(err error) *transport.Result {
	return &transport.Result{Outcome: transport.Unavailable, Err: err}
}

func (p *Publisher) blockedError() error {
	return fmt.Errorf("%w: %s", ErrBlocked, p.blocked)
}

// broadcast wakes all calls that wait for a change. Called with mu locked.
func (p *Publisher) broadcast() {
	if p.waiting > 0 {
		close(p.changed)
		p.changed = make(chan struct{})
		p.waiting = 0
	}
}

// shorten shortens a message ID that is too long for an error.
func shorten(id string) string {
	if len(id) > 64 {
		return id[:64] + "…"
	}
	return id
}
