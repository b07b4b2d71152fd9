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

	limitIsSafe bool      // queues are used with any delivery limit
	unlimited   *sync.Map // names of queues that are to be declared without the argument for a delivery limit
}

func newTopology(mode Topology, queueType QueueType, c wamqp.Config, allowLoss bool, logger *slog.Logger) *topology {
	t := &topology{mode: mode, queueType: queueType, amqp: c, allowLoss: allowLoss, logger: logger, unlimited: &sync.Map{}}
	// Without waiting for answers, a failed declaration would only close the channel later.
	t.amqp.Exchange.NoWait, t.amqp.Queue.NoWait, t.amqp.QueueBind.NoWait = false, false, false
	if customBuilder(&c) {
		t.builder = c.TopologyBuilder
	}
	return t
}

// declare runs f, which makes declarations, on a channel of its own. On RabbitMQ 4 or later, an
// existing queue may lack the argument for a delivery limit. If such queues are safe, declare runs
// f again without the argument for the queue.
func (t *topology) declare(conn *connection, timeout time.Duration, f func(ch *amqp091.Channel, version int) error) error {
	for {
		err := conn.withChannel(timeout, func(ch *amqp091.Channel) error { return f(ch, conn.version()) })
		var limit *limitError
		if !errors.As(err, &limit) || !limit.safe {
			return err
		}
		t.unlimited.Store(limit.queue, true)
		defer t.unlimited.Delete(limit.queue) // the queue may be replaced or deleted before the next declaration
		t.logger.Info("queue was declared elsewhere, without an argument for a delivery limit", "queue", limit.queue)
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
		args := t.arguments(name, c.Arguments, version)
		if t.partitions > 0 {
			args[amqp091.SingleActiveConsumerArg] = true
		}
		_, err = ch.QueueDeclare(name, c.Durable, c.AutoDelete, c.Exclusive, false, args)
		err = t.asLimitError(err, name, args, t.limitIsSafe)
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
	if _, ok := t.unlimited.Load(name); ok {
		version = 0
	}
	return queueArguments(args, t.queueType, version)
}

// asLimitError returns a limitError if err says that the existing queue has another delivery limit
// than the declaration, which has none on version 4 or later. Otherwise it returns err.
func (t *topology) asLimitError(err error, name string, args amqp091.Table, safe bool) error {
	if errorCode(err) == amqp091.PreconditionFailed && strings.Contains(err.Error(), "'"+deliveryLimitArg+"'") && args[deliveryLimitArg] == noDeliveryLimit {
		return &limitError{queue: name, safe: safe, err: err}
	}
	return err
}

// limitError is the error for a queue that was declared without an argument for its delivery limit.
type limitError struct {
	queue string
	safe  bool // the queue may be used as it is
	err   error
}

func (e *limitError) Error() string {
	return fmt.Sprintf("queue %q was declared without x-delivery-limit -1, for example on RabbitMQ 3, so RabbitMQ 4 drops its messages after "+
		"20 deliveries by default; set a policy with delivery-limit -1 for the queue, and assert DeliveryLimitIsSafe: %v", e.queue, e.err)
}

func (e *limitError) Unwrap() error { return e.err }

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
		c.Queue.Arguments = t.arguments(queue, c.Queue.Arguments, version)
		err := t.builder.BuildTopology(ch, queue, exchange, c, watermill.NewSlogLogger(t.logger))
		return explain(t.asLimitError(err, queue, c.Queue.Arguments, t.limitIsSafe), "queue", queue)
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
	var limit *limitError
	if errors.As(err, &limit) {
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
