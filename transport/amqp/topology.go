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

	"github.com/boxpair/boxpair/internal/choice"
)

const (
	deadLetterExchangeArg = "x-dead-letter-exchange"
	deadLetterKeyArg      = "x-dead-letter-routing-key"

	deliveryLimitArg = "x-delivery-limit"
	noDeliveryLimit  = -1
)

// topology declares, or checks, what messages need on their way.
type topology struct {
	mode      Topology
	queueType QueueType
	amqp      wamqp.Config
	builder   wamqp.TopologyBuilder // nil for the default one
	allowLoss bool
	logger    *slog.Logger

	partitions int // of queues, unless they say otherwise; 0 is none

	limitIsSafe bool      // whatever delivery limit a queue has
	unlimited   *sync.Map // names of queues that are to be declared without an argument for it
}

func newTopology(mode Topology, queueType QueueType, c wamqp.Config, allowLoss bool, logger *slog.Logger) *topology {
	t := &topology{mode: mode, queueType: queueType, amqp: c, allowLoss: allowLoss, logger: logger, unlimited: &sync.Map{}}
	// Without an answer to wait for, a failed declaration would show as a channel
	// that closes later.
	t.amqp.Exchange.NoWait, t.amqp.Queue.NoWait, t.amqp.QueueBind.NoWait = false, false, false
	if customBuilder(&c) {
		t.builder = c.TopologyBuilder
	}
	return t
}

// declare runs f, which declares, on a channel of its own. It does so again, with version 4 or
// later, for each queue that turns out to be there without an argument of a delivery limit, if that
// is safe.
func (t *topology) declare(conn *connection, timeout time.Duration, f func(ch *amqp091.Channel, version int) error) error {
	for {
		err := conn.withChannel(timeout, func(ch *amqp091.Channel) error { return f(ch, conn.version()) })
		var limit *limitError
		if !errors.As(err, &limit) || !limit.safe {
			return err
		}
		t.unlimited.Store(limit.queue, true)
		defer t.unlimited.Delete(limit.queue) // it may be another one, or missing, the next time
		t.logger.Info("queue was declared by someone else, with no argument for a delivery limit", "queue", limit.queue)
	}
}

// exchange sees to an exchange. The default one is always there.
func (t *topology) exchange(ch *amqp091.Channel, name string) error {
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
		return fmt.Errorf("exchange %q: AMQP.Exchange.Durable is false and AllowLoss too", name)
	case t.builder != nil:
		return explain(t.builder.ExchangeDeclare(ch, name, t.amqp), "exchange", name)
	default:
		err := ch.ExchangeDeclare(name, c.Type, c.Durable, c.AutoDeleted, c.Internal, false, c.Arguments)
		return explain(err, "exchange", name)
	}
}

// queue sees to a queue, without its binding.
func (t *topology) queue(ch *amqp091.Channel, name string, version int) error {
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
		err = t.limited(err, name, args, t.limitIsSafe)
	}
	return explain(err, "queue", name)
}

// deadLetterExchange checks that the exchange which the queue's arguments name is there, or the
// queue with the default exchange: RabbitMQ drops what it cannot dead-letter.
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

// arguments returns those of a queue.
func (t *topology) arguments(name string, args amqp091.Table, version int) amqp091.Table {
	if _, ok := t.unlimited.Load(name); ok {
		version = 0
	}
	return queueArguments(args, t.queueType, version)
}

// limited tells by its error that a queue is there, but not with the delivery limit that it is
// declared with on version 4 or later.
func (t *topology) limited(err error, name string, args amqp091.Table, safe bool) error {
	if errorCode(err) == amqp091.PreconditionFailed && strings.Contains(err.Error(), "'"+deliveryLimitArg+"'") && args[deliveryLimitArg] == noDeliveryLimit {
		return &limitError{queue: name, safe: safe, err: err}
	}
	return err
}

// limitError says that a queue was declared without an argument for its delivery limit.
type limitError struct {
	queue string
	safe  bool // to be used as it is
	err   error
}

func (e *limitError) Error() string {
	return fmt.Sprintf("queue %q was declared with another delivery limit than none (x-delivery-limit -1), as on RabbitMQ 3 or by someone else, "+
		"and RabbitMQ 4 drops a message of such a queue after 20 deliveries; set a policy with delivery-limit -1 for it and assert "+
		"DeliveryLimitIsSafe: %v", e.queue, e.err)
}

func (e *limitError) Unwrap() error { return e.err }

// undecodable sees to the queue of messages that cannot be read.
func (t *topology) undecodable(ch *amqp091.Channel, name string, version int) error {
	var err error
	switch t.mode {
	case NoTopology:
	case Passive:
		_, err = ch.QueueDeclarePassive(name, true, false, false, false, nil)
	default:
		args := t.arguments(name, nil, version)
		_, err = ch.QueueDeclare(name, true, false, false, false, args)
		err = t.limited(err, name, args, true) // nobody consumes it here
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

// subscription sees to everything that a subscriber needs.
func (t *topology) subscription(ch *amqp091.Channel, queue, exchange string, version int) error {
	if t.mode == Declare && t.builder != nil {
		if err := t.deadLetterExchange(ch, queue); err != nil {
			return err
		}
		c := t.amqp
		c.Queue.Arguments = t.arguments(queue, c.Queue.Arguments, version)
		err := t.builder.BuildTopology(ch, queue, exchange, c, watermill.NewSlogLogger(t.logger))
		return explain(t.limited(err, queue, c.Queue.Arguments, t.limitIsSafe), "queue", queue)
	}
	if err := t.queue(ch, queue, version); err != nil {
		return err
	}
	if err := t.exchange(ch, exchange); err != nil {
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

// queueArguments adds the queue's type, which RabbitMQ takes for equal to none where that is
// classic, and for quorum queues of RabbitMQ 4 that there is no delivery limit: the default there
// is 20. Before version 4 there is none by default, and -1 is taken and drops a message after its
// first failure.
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

// classic tells whether the queues that are declared are classic ones.
func (t *topology) classic() bool {
	return queueArguments(t.amqp.Queue.Arguments, t.queueType, 0)[amqp091.QueueTypeArg] == amqp091.QueueTypeClassic
}

// explain says what an error of a declaration means and what helps.
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

// Topology says who declares exchanges, queues and bindings.
type Topology uint8

// QueueType is the type of the queues that are declared.
type QueueType uint8

var (
	topologyWords  = []string{Declare: "declare", Passive: "passive", NoTopology: "none"}
	queueTypeWords = []string{Quorum: "quorum", Classic: "classic"}
)

// MarshalText returns "declare", "passive" or "none", and an error for any other value.
func (t Topology) MarshalText() ([]byte, error) {
	return choice.Text("Topology", topologyWords, t)
}

// UnmarshalText takes what MarshalText returns, and nothing else.
func (t *Topology) UnmarshalText(text []byte) error {
	return choice.Parse("Topology", topologyWords, text, t)
}

// MarshalText returns "quorum" or "classic", and an error for any other value.
func (q QueueType) MarshalText() ([]byte, error) {
	return choice.Text("QueueType", queueTypeWords, q)
}

// UnmarshalText takes what MarshalText returns, and nothing else.
func (q *QueueType) UnmarshalText(text []byte) error {
	return choice.Parse("QueueType", queueTypeWords, text, q)
}
