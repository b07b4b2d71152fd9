package amqp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

// Publisher publishes to RabbitMQ with a window of unconfirmed messages on one
// channel. It is a [transport.Sender] and a Watermill publisher. Its methods may
// be called by several goroutines at once.
type Publisher struct {
	config   PublisherConfig
	broker   *broker
	codec    codec
	topology *topology

	seq      atomic.Uint64
	window   chan struct{} // one element per unconfirmed message
	wake     chan struct{} // capacity 1: the judge should look
	ctxEnded atomic.Bool   // a context of an unconfirmed message has ended
	closing  chan struct{} // closed by Close
	tasks    sync.WaitGroup

	// mu guards what follows, and is the only lock of a publish. Nothing that may
	// wait for the network is done under it: writes are buffered.
	mu       sync.Mutex
	started  bool
	cancel   context.CancelFunc // ends attempts to connect
	closed   bool
	current  *confirmChannel // nil while there is no channel
	down     error           // why there is none, once an attempt has failed
	blocked  string          // why the broker blocks the connection, or ""
	bytes    int             // of unconfirmed messages
	waiting  int             // callers of wait
	changed  chan struct{}   // closed and replaced when any of these changes
	contexts contextWatches
	// suspects are what was unanswered when a channel ended with an exception; see narrow.
	suspects    []*slot
	freeSlots   *slot            // slots to be used again
	freePackets []*pendingPacket // likewise

	unblocked time.Time // when the broker last ended blocking

	confirmsAhead uint64 // see the constant

	// Scratch space of settle, which only the judge calls.
	answered []*slot
	judged   []judgement
}

var _ transport.Sender = (*Publisher)(nil)

// NewPublisher returns a publisher. It does no I/O. The error joins everything
// that is wrong with config, by field.
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
		codec:    newCodec(config.AMQP.Marshaler, config.Envelope),
		topology: newTopology(config.Topology, config.QueueType, config.AMQP, config.AllowLoss, config.Logger),
		window:   make(chan struct{}, config.Window),
		wake:     make(chan struct{}, 1),
		closing:  make(chan struct{}),
		changed:  make(chan struct{}),

		confirmsAhead: confirmsAhead,
	}
	p.topology.partitions = config.Partitions
	p.topology.limitIsSafe = true // for who publishes; subscribers look
	return p, nil
}

// Route returns the publisher's name, and the exchange and routing key of topic,
// without the shard: partitions of a topic are one route.
func (p *Publisher) Route(topic string) string {
	exchange, key := p.route(topic)
	return p.config.Name + " " + exchange + "/" + key
}

// route returns the exchange of topic, and its routing key without the shard. The
// default exchange knows only queues, so a partitioned topic gets one of its own.
func (p *Publisher) route(topic string) (exchange, key string) {
	exchange, key = p.config.AMQP.Exchange.GenerateName(topic), p.config.AMQP.Publish.GenerateRoutingKey(topic)
	if exchange == "" && p.config.Partitions > 0 {
		return key, ""
	}
	return exchange, key
}

// Connect connects if there is no connection yet, and waits until there is one,
// ctx ends or ConfirmTimeout passes. It is not needed before publishing; call it
// to learn early that the broker cannot be reached.
func (p *Publisher) Connect(ctx context.Context) error {
	w := waiter{p: p, ctx: ctx}
	defer w.stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.closed {
			return fmt.Errorf("amqp publisher: %w", ErrClosed)
		}
		p.start() //nolint:contextcheck // the connection outlives this call
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
	Err         error // why it is not connected, or why it is blocked
	Unconfirmed int   // messages
}

// Health returns the state of the connection. A publisher that was never used is
// not connected, and that is no error.
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

// Publish publishes messages to topic and waits until the broker has answered for each. The
// messages are on their way together, in their order; one that fails does not stop the others. The
// context of each message bounds the wait for it, besides ConfirmTimeout: once that has passed for
// one that could not be written, those behind it do not wait. An error of messages is a
// [*PublishError].
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

// Send implements [transport.Sender]. Besides ctx, ConfirmTimeout bounds how long
// it waits for the connection and for room in the window. While attempts to
// connect fail it does not wait at all.
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

// encodeMessage has msg encoded as the publishing of out. A panic of what the user gave for that, a
// marshaler, names or keys, is the message's error: a process that ends of it would end of the same
// message again.
func (p *Publisher) encodeMessage(topic string, msg *message.Message, out *outgoing) (used *pooled, err error) {
	defer func() {
		if v := recover(); v != nil {
			used, err = nil, fmt.Errorf("encode message %s: %w", shorten(msg.UUID), panicError(v))
		}
	}()
	if err = p.checkSize("payload", msg.Payload); err == nil { // before it is copied
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

// panicError is the error of a panic. Its value may hold the payload.
func panicError(v any) error {
	return fmt.Errorf("marshaler, key or name function panicked with a %T", v)
}

// encode has the messages of s encoded once more, as the publishing of out.
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

// Close waits until what was sent is confirmed, for ConfirmTimeout at most,
// reports the rest as unavailable, and closes the connection. It waits for all
// goroutines of p.
func (p *Publisher) Close() error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.closing)
		if p.started {
			p.cancel()
		}
		p.broadcast()
	}
	p.mu.Unlock()
	p.tasks.Wait()
	return nil
}

// publishRaw publishes pub as it is and waits for the outcome.
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

// broadcast wakes everybody who waits for a change. Called with mu locked.
func (p *Publisher) broadcast() {
	if p.waiting > 0 {
		close(p.changed)
		p.changed = make(chan struct{})
		p.waiting = 0
	}
}

// shorten keeps a message ID that is no ID from filling an error.
func shorten(id string) string {
	if len(id) > 64 {
		return id[:64] + "…"
	}
	return id
}
