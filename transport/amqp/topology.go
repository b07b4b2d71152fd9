package amqp

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"
)

const (
	deadLetterExchangeArg = "x-dead-letter-exchange"
	deadLetterKeyArg      = "x-dead-letter-routing-key"

	deliveryLimitArg = "x-delivery-limit"
	noDeliveryLimit  = -1
)

// topology declares or checks exchanges, queues and bindings.
type topology struct {
	mode      Topology
	queueType QueueType
	amqp      wamqp.Config
	builder   wamqp.TopologyBuilder // nil for the default builder
	allowLoss bool
	logger    *slog.Logger

	partitions int // of queues without a number of their own; 0 is none

	limitIsSafe bool // queues are used with any delivery limit
	competing   bool // several consumers of a queue may be active
	consumes    bool // of a subscriber

	adopted map[adoption]bool // within declare: the arguments in which existing queues differ
	single  *sync.Map         // names of queues that have a single active consumer
}

// adoption is an argument in which an existing queue differs from the declaration, and which is
// declared as the queue has it.
type adoption struct{ queue, argument string }

func newTopology(mode Topology, queueType QueueType, c wamqp.Config, allowLoss bool, logger *slog.Logger) *topology {
	t := &topology{mode: mode, queueType: queueType, amqp: c, allowLoss: allowLoss, logger: logger, single: &sync.Map{}}
	// Without waiting for answers, a failed declaration would only close the channel later.
	t.amqp.Exchange.NoWait, t.amqp.Queue.NoWait, t.amqp.QueueBind.NoWait = false, false, false
	if customBuilder(&c) {
		t.builder = c.TopologyBuilder
	}
	return t
}

// declare runs f, which makes the declarations of the topology that it is given, on a channel of its
// own. An existing queue may have another delivery limit or another number of active consumers. If
// the queue may be used nevertheless, declare runs f again, with the argument as the queue has it.
// The next declaration begins anew: the queue may have been replaced or deleted by then.
func (t *topology) declare(conn *connection, timeout time.Duration, f func(t *topology, ch *amqp091.Channel, version int) error) error {
	now := *t
	now.adopted = make(map[adoption]bool)
	for {
		err := conn.withChannel(timeout, func(ch *amqp091.Channel) error { return f(&now, ch, conn.version()) })
		var other *argumentError
		if !errors.As(err, &other) || !other.safe {
			return err
		}
		key := adoption{other.queue, other.argument}
		if now.adopted[key] {
			return err
		}
		now.adopted[key] = true
		t.sayAdopted(other)
	}
}

// sayAdopted says what it means that an existing queue differs from the declaration.
func (t *topology) sayAdopted(other *argumentError) {
	log := t.logger.With("queue", other.queue, "argument", other.argument)
	switch {
	case other.argument != amqp091.SingleActiveConsumerArg || !t.consumes:
		log.Info("queue was declared elsewhere, with another argument")
	case t.competing:
		log.Warn("queue was declared with a single active consumer, so other processes stand by: CompetingConsumers has no effect until the queue " +
			"is deleted, and publishers that declare the queue have CompetingConsumers too")
	default:
		log.Warn("queue was declared without a single active consumer: a second process would get the messages of a key concurrently and out of order " +
			"(delete the queue to have it declared anew, or set CompetingConsumers if order does not matter)")
	}
}

// ensureExchange declares or checks an exchange. The default exchange always exists.
func (t *topology) ensureExchange(ch *amqp091.Channel, name string) error {
	c := t.amqp.Exchange
	if t.partitions > 0 {
		c.Durable = c.Durable || c.Type == ""
		c.Type = amqp091.ExchangeDirect
	}
	switch {
	case name == "" || t.mode == NoTopology:
		return nil
	case t.mode == Passive:
		err := ch.ExchangeDeclarePassive(name, c.Type, c.Durable, c.AutoDeleted, c.Internal, false, c.Arguments)
		return explain(err, "exchange", name)
	case c.Type == "" && t.builder == nil:
		return fmt.Errorf("exchange %q: AMQP.Exchange.Type is missing", name)
	case !c.Durable && !t.allowLoss:
		return fmt.Errorf("exchange %q: AMQP.Exchange.Durable and AllowLoss are both false", name)
	case t.builder != nil:
		return explain(t.builder.ExchangeDeclare(ch, name, t.amqp), "exchange", name)
	default:
		err := ch.ExchangeDeclare(name, c.Type, c.Durable, c.AutoDeleted, c.Internal, false, c.Arguments)
		return explain(err, "exchange", name)
	}
}

// ensureQueue declares or checks a queue, without its binding.
func (t *topology) ensureQueue(ch *amqp091.Channel, name string, version int) error {
	c := t.amqp.Queue
	var err error
	switch t.mode {
	case NoTopology:
	case Passive:
		_, err = ch.QueueDeclarePassive(name, c.Durable, c.AutoDelete, c.Exclusive, false, nil)
	default:
		if err := t.deadLetterExchange(ch, name); err != nil {
			return err
		}
		args := t.consumed(name, version)
		_, err = ch.QueueDeclare(name, c.Durable, c.AutoDelete, c.Exclusive, false, args)
		err = t.declared(err, name, args)
	}
	return explain(err, "queue", name)
}

// deadLetterExchange checks that the dead-letter exchange in the queue's arguments exists, or with
// the default exchange the queue: RabbitMQ drops a message that it cannot dead-letter.
func (t *topology) deadLetterExchange(ch *amqp091.Channel, queue string) error {
	args := t.amqp.Queue.Arguments
	name, there := args[deadLetterExchangeArg].(string)
	if !there || t.allowLoss {
		return nil
	}
	if name != "" {
		if err := ch.ExchangeDeclarePassive(name, amqp091.ExchangeDirect, true, false, false, false, nil); err != nil {
			return fmt.Errorf("%s of queue %q: %w", deadLetterExchangeArg, queue, explain(err, "exchange", name))
		}
		return nil
	}
	if key, _ := args[deadLetterKeyArg].(string); key != "" {
		if _, err := ch.QueueDeclarePassive(key, true, false, false, false, nil); err != nil {
			return fmt.Errorf("%s of queue %q: %w", deadLetterKeyArg, queue, explain(err, "queue", key))
		}
	}
	return nil
}

// arguments returns the arguments with which a queue is declared.
func (t *topology) arguments(name string, args amqp091.Table, version int) amqp091.Table {
	if t.adopted[adoption{name, deliveryLimitArg}] {
		version = 0
	}
	return queueArguments(args, t.queueType, version)
}

// consumed returns the arguments of a queue with consumers: unless they may compete, one consumer at
// a time is active, which keeps the order of keys.
func (t *topology) consumed(name string, version int) amqp091.Table {
	args := t.arguments(name, t.amqp.Queue.Arguments, version)
	if t.decidesConsumers() && t.competing == t.adopted[adoption{name, amqp091.SingleActiveConsumerArg}] {
		args[amqp091.SingleActiveConsumerArg] = true
	}
	return args
}

// decidesConsumers tells whether the number of active consumers is the choice of this package: an
// exclusive consumer is the only one anyway, and streams have none that is active.
func (t *topology) decidesConsumers() bool {
	_, there := t.amqp.Queue.Arguments[amqp091.SingleActiveConsumerArg]
	stream := t.amqp.Queue.Arguments[amqp091.QueueTypeArg] == amqp091.QueueTypeStream
	return t.partitions > 0 || !there && !stream && !t.amqp.Consume.Exclusive
}

// declared notes how many consumers of a queue are active, or returns an argumentError if err says
// that the existing queue differs in an argument that this package has chosen.
func (t *topology) declared(err error, name string, args amqp091.Table) error {
	if err == nil {
		if args[amqp091.SingleActiveConsumerArg] == true {
			t.single.Store(name, true)
		} else {
			t.single.Delete(name)
		}
		return nil
	}
	if t.partitions == 0 && t.decidesConsumers() && differsIn(err, amqp091.SingleActiveConsumerArg) {
		return &argumentError{queue: name, argument: amqp091.SingleActiveConsumerArg, safe: true, err: err}
	}
	return t.asLimitError(err, name, args, t.limitIsSafe)
}

// isSingle tells whether one consumer at a time of a queue is active.
func (t *topology) isSingle(queue string) bool {
	_, ok := t.single.Load(queue)
	return ok
}

// differsIn tells whether err says that an existing queue has another value of an argument.
func differsIn(err error, argument string) bool {
	return errorCode(err) == amqp091.PreconditionFailed && strings.Contains(err.Error(), "'"+argument+"'")
}

// asLimitError returns an argumentError if err says that the existing queue has another delivery
// limit than the declaration, which has none on version 4 or later. Otherwise it returns err.
func (t *topology) asLimitError(err error, name string, args amqp091.Table, safe bool) error {
	if differsIn(err, deliveryLimitArg) && args[deliveryLimitArg] == noDeliveryLimit {
		return &argumentError{queue: name, argument: deliveryLimitArg, safe: safe, err: err}
	}
	return err
}

// argumentError is the error for a queue that exists with another value of an argument.
type argumentError struct {
	queue, argument string
	safe            bool // the queue may be used as it is
	err             error
}

func (e *argumentError) Error() string {
	if e.argument != deliveryLimitArg {
		return fmt.Sprintf("queue %q was declared with another %s: %v", e.queue, e.argument, e.err)
	}
	return fmt.Sprintf("queue %q was declared without x-delivery-limit -1, for example on RabbitMQ 3, so RabbitMQ 4 drops its messages after "+
		"20 deliveries by default; set a policy with delivery-limit -1 for the queue, and assert DeliveryLimitIsSafe: %v", e.queue, e.err)
}

func (e *argumentError) Unwrap() error { return e.err }

// ensureUndecodable declares or checks the queue for undecodable messages.
func (t *topology) ensureUndecodable(ch *amqp091.Channel, name string, version int) error {
	var err error
	switch t.mode {
	case NoTopology:
	case Passive:
		_, err = ch.QueueDeclarePassive(name, true, false, false, false, nil)
	default:
		args := t.arguments(name, nil, version)
		_, err = ch.QueueDeclare(name, true, false, false, false, args)
		err = t.asLimitError(err, name, args, true) // safe, since the queue has no consumer here
	}
	return explain(err, "queue", name)
}

func (t *topology) bind(ch *amqp091.Channel, queue, key, exchange string) error {
	if t.mode != Declare || exchange == "" {
		return nil
	}
	err := ch.QueueBind(queue, key, exchange, false, t.amqp.QueueBind.Arguments)
	if err != nil {
		return fmt.Errorf("bind queue %q to exchange %q: %w", queue, exchange, err)
	}
	return nil
}

// ensureSubscription declares or checks the queue, the exchange and the binding of a subscriber.
func (t *topology) ensureSubscription(ch *amqp091.Channel, queue, exchange string, version int) error {
	if t.mode == Declare && t.builder != nil {
		if err := t.deadLetterExchange(ch, queue); err != nil {
			return err
		}
		c := t.amqp
		c.Queue.Arguments = t.consumed(queue, version)
		err := t.builder.BuildTopology(ch, queue, exchange, c, watermill.NewSlogLogger(t.logger))
		return explain(t.declared(err, queue, c.Queue.Arguments), "queue", queue)
	}
	if err := t.ensureQueue(ch, queue, version); err != nil {
		return err
	}
	if err := t.ensureExchange(ch, exchange); err != nil {
		return err
	}
	if t.mode != Declare || exchange == "" {
		return nil
	}
	if t.amqp.QueueBind.GenerateRoutingKey == nil {
		return fmt.Errorf("bind queue %q: AMQP.QueueBind.GenerateRoutingKey is missing", queue)
	}
	// watermill-amqp passes the name of the queue, not the topic.
	return t.bind(ch, queue, t.amqp.QueueBind.GenerateRoutingKey(queue), exchange)
}

// queueArguments adds the queue's type, and for quorum queues of RabbitMQ 4 no delivery limit,
// since the default limit is 20 there. RabbitMQ treats the argument classic like a missing type if
// classic is its default. Before version 4 there is no limit by default; -1 is accepted, but drops
// a message after its first failure.
func queueArguments(args amqp091.Table, queueType QueueType, version int) amqp091.Table {
	args = maps.Clone(args)
	if args == nil {
		args = amqp091.Table{}
	}
	if _, ok := args[amqp091.QueueTypeArg]; !ok {
		args[amqp091.QueueTypeArg] = map[QueueType]string{Quorum: amqp091.QueueTypeQuorum, Classic: amqp091.QueueTypeClassic}[queueType]
	}
	if args[amqp091.QueueTypeArg] != amqp091.QueueTypeQuorum {
		return args
	}
	if _, ok := args[deliveryLimitArg]; !ok && version >= 4 {
		args[deliveryLimitArg] = noDeliveryLimit
	}
	return args
}

// classic tells whether queues are declared as classic.
func (t *topology) classic() bool {
	return queueArguments(t.amqp.Queue.Arguments, t.queueType, 0)[amqp091.QueueTypeArg] == amqp091.QueueTypeClassic
}

// explain adds the meaning and the remedy to an error of a declaration.
func explain(err error, kind, name string) error {
	if err == nil {
		return nil
	}
	var other *argumentError
	if errors.As(err, &other) {
		return err
	}
	var e *amqp091.Error
	if !errors.As(err, &e) {
		return fmt.Errorf("declare %s %q: %w", kind, name, err)
	}
	switch e.Code {
	case amqp091.PreconditionFailed:
		return fmt.Errorf("%s %q exists with other arguments; set the configuration (of a queue: QueueType, "+
			"AMQP.Queue and Partitions; of an exchange: its type, which is direct with Partitions) to what exists, "+
			"or Topology to Passive: %w", kind, name, err)
	case amqp091.AccessRefused:
		return fmt.Errorf("%s %q may not be declared by this user; grant the configure permission, or set "+
			"Topology to Passive: %w", kind, name, err)
	case amqp091.NotFound:
		return fmt.Errorf("%s %q does not exist: %w", kind, name, err)
	case amqp091.ResourceLocked:
		return fmt.Errorf("%s %q belongs to another connection: %w", kind, name, err)
	default:
		return fmt.Errorf("declare %s %q: %w", kind, name, err)
	}
}

// errorCode returns the code of the exception that err wraps, or 0.
func errorCode(err error) int {
	var e *amqp091.Error
	if errors.As(err, &e) && e.Server {
		return e.Code
	}
	return 0
}
