package amqp

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/rabbitmq/amqp091-go"
)

// Repartition changes the number of partitions of a consumer's queues of topic from the given
// number to config.Partitions; 0 is one queue without partitions. If an old queue holds messages or
// has a consumer, Repartition changes nothing and returns [ErrNotDrained]. Otherwise it binds the
// new queues and unbinds the old ones. It then publishes a sentinel message to each old queue, and
// deletes the queues only if each of them delivers the sentinel first. Last, it declares the new
// number, which subscribers check. After an error, call Repartition again with the same numbers; if
// the new number is reached, the call does nothing.
//
// Stop the publishers of the topic (events stay in their outbox), wait until the old queues are
// empty, stop the consumers, call Repartition for each consumer, and start all of them with the new
// number. A forgotten publisher loses no message if both numbers are at least 1, since the new
// queues are bound before the old ones are unbound. Its messages to the old queues give
// ErrNotDrained again: stop the publisher, and let consumers with the old number handle the
// messages. From or to 0 partitions, the exchange is replaced. The error tells if queues of other
// consumers are still bound to the exchange; repartition these consumers, then call Repartition for
// this one again.
//
// config.Topology must be [Declare]. The user needs the permission to configure, to read the queues
// and to write to the default exchange. ctx bounds connecting; each request has 30 seconds.
func Repartition(ctx context.Context, config SubscriberConfig, topic string, from int) error {
	if err := checkRepartition(&config, from); err != nil {
		return fmt.Errorf("amqp: repartition topic %q: %w", topic, err)
	}
	s, err := NewSubscriber(config)
	if err != nil {
		return err
	}
	defer s.Close()
	old := *s.topology
	old.partitions = from
	r := repartition{from: &old, to: s.topology}
	if r.old, err = layoutOf(&config, topic, from); err == nil {
		r.layout, err = layoutOf(&config, topic, config.Partitions)
	}
	if err == nil {
		r.conn, err = s.connections.get(ctx, "")
	}
	if err == nil {
		err = r.run()
	}
	if err != nil {
		return fmt.Errorf("amqp: repartition topic %q from %d to %d: %w", topic, from, config.Partitions, err)
	}
	return nil
}

func checkRepartition(config *SubscriberConfig, from int) error {
	switch {
	case from < 0 || from > maxPartitions:
		return fmt.Errorf("from: %d is not within 0 to %d", from, maxPartitions)
	case from == config.Partitions:
		return fmt.Errorf("from: %d equals Partitions, so nothing would change", from)
	case config.Topology != Declare:
		return errors.New("Topology: must be Declare")
	case config.AMQP.QueueBind.GenerateRoutingKey == nil:
		return errors.New("AMQP.QueueBind.GenerateRoutingKey: missing")
	}
	return nil
}

// repartition is one call of [Repartition].
type repartition struct {
	conn   *connection
	from   *topology
	to     *topology
	old    layout
	layout layout
}

func (r *repartition) run() error {
	done, err := r.checkNumber()
	if done || err != nil {
		return err
	}
	if err := r.drained(); err != nil {
		return err
	}
	moved := r.old.count > 0 && r.layout.count > 0
	if moved {
		if err := r.declareQueues(); err != nil {
			return err
		}
	}
	if err := r.unbind(); err != nil {
		return err
	}
	// A publisher that still runs may have sent messages since the first check, which may also have
	// counted too few.
	if err := r.proveEmpty(); err != nil {
		return err
	}
	if !moved {
		if err := r.changeExchange(); err != nil {
			return err
		}
	}
	if err := r.remove(); err != nil {
		return err
	}
	return r.declare(r.to, func(t *topology, ch *amqp091.Channel, version int) error {
		if r.layout.count > 0 {
			return t.ensureLayout(ch, r.layout, version)
		}
		return t.ensureSubscription(ch, r.layout.queue, r.layout.exchange, version)
	})
}

func (r *repartition) channel(f func(*amqp091.Channel) error) error {
	return r.conn.withChannel(requestTimeout, f)
}

func (r *repartition) declare(t *topology, f func(t *topology, ch *amqp091.Channel, version int) error) error {
	return t.declare(r.conn, requestTimeout, f)
}

// checkNumber returns an error unless the broker has the old number of partitions. It reports done
// if the broker has the new number.
func (r *repartition) checkNumber() (done bool, err error) {
	err = r.declare(r.from, func(t *topology, ch *amqp091.Channel, version int) error { return declareNumber(ch, t, r.old, version) })
	if errorCode(err) != amqp091.PreconditionFailed {
		return false, err
	}
	other := r.declare(r.to, func(t *topology, ch *amqp091.Channel, version int) error {
		return declareNumber(ch, t, r.layout, version)
	})
	if other == nil {
		return true, nil
	}
	return false, err
}

// declareNumber declares the marker queue, or the queue of a topic without partitions.
func declareNumber(ch *amqp091.Channel, t *topology, l layout, version int) error {
	if l.count > 0 {
		return t.ensureMarker(ch, l, version)
	}
	return t.ensureQueue(ch, l.queue, version)
}

// oldQueues returns the names of the queues to delete. The last one, the marker queue, shows that
// the others exist.
func (r *repartition) oldQueues() []string {
	if r.old.count == 0 {
		return r.old.names()
	}
	return append(r.old.names(), r.old.queue)
}

// drained checks that the old queues hold no message and have no consumer. Each check has a channel
// of its own, since a missing queue closes the channel.
func (r *repartition) drained() error {
	var left []string
	for _, name := range r.oldQueues() {
		err := r.channel(func(ch *amqp091.Channel) error {
			q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
			if q.Messages > 0 || q.Consumers > 0 {
				left = append(left, fmt.Sprintf("queue %q: %d messages, %d consumers", name, q.Messages, q.Consumers))
			}
			return err
		})
		if err != nil && errorCode(err) != amqp091.NotFound {
			return explain(err, "queue", name)
		}
	}
	if left != nil {
		return fmt.Errorf("%w: %s", ErrNotDrained, strings.Join(left, "; "))
	}
	return nil
}

// proveEmpty proves that every old queue is empty.
func (r *repartition) proveEmpty() error {
	if err := r.drained(); err != nil {
		return err
	}
	for _, name := range r.oldQueues() {
		if err := r.proveQueueEmpty(name); err != nil {
			return err
		}
	}
	return nil
}

// declareQueues declares and binds the new queues, without the marker queue.
func (r *repartition) declareQueues() error {
	return r.declare(r.to, func(t *topology, ch *amqp091.Channel, version int) error {
		if err := t.ensureExchange(ch, r.layout.exchange); err != nil {
			return err
		}
		for i := range r.layout.count {
			if err := t.ensurePartition(ch, r.layout, i+1, version); err != nil {
				return err
			}
		}
		return nil
	})
}

// unbind unbinds the old queues from their exchange. A missing binding is no error.
func (r *repartition) unbind() error {
	if r.old.exchange == "" {
		return nil
	}
	args := r.from.amqp.QueueBind.Arguments
	return r.channel(func(ch *amqp091.Channel) error {
		if r.old.count == 0 {
			return ch.QueueUnbind(r.old.queue, r.from.amqp.QueueBind.GenerateRoutingKey(r.old.queue), r.old.exchange, args)
		}
		for i := range r.old.count {
			name := r.old.partition(i + 1)
			err := r.old.shards(i+1, func(key string) error { return ch.QueueUnbind(name, key, r.old.exchange, args) })
			if err != nil {
				return fmt.Errorf("unbind queue %q: %w", name, err)
			}
		}
		return nil
	})
}

// changeExchange replaces the exchange of a topic that begins or ceases to be partitioned. The
// broker deletes the old exchange only if no queue is bound to it.
func (r *repartition) changeExchange() error {
	if name := r.layout.exchange; name != "" {
		err := r.channel(func(ch *amqp091.Channel) error { return r.to.ensureExchange(ch, name) })
		if errorCode(err) != amqp091.PreconditionFailed {
			return err
		}
	}
	if r.old.exchange == "" {
		return nil
	}
	err := r.channel(func(ch *amqp091.Channel) error { return ch.ExchangeDelete(r.old.exchange, true, false) })
	if errorCode(err) == amqp091.PreconditionFailed {
		return fmt.Errorf("%w: exchange %q is still bound to queues of other consumers; repartition those consumers, then this one again: %w",
			ErrNotDrained, r.old.exchange, err)
	}
	return err
}

// remove deletes the old queues, after they were unbound and proved empty. RabbitMQ checks again
// that classic queues are empty and unused; it has no such check for quorum queues.
func (r *repartition) remove() error {
	classic := r.from.classic()
	return r.channel(func(ch *amqp091.Channel) error {
		for _, name := range r.oldQueues() {
			_, err := ch.QueueDelete(name, classic, classic, false)
			if errorCode(err) == amqp091.PreconditionFailed {
				return fmt.Errorf("%w: queue %q: %w", ErrNotDrained, name, err)
			}
			if err != nil {
				return fmt.Errorf("delete queue %q: %w", name, err)
			}
		}
		return nil
	})
}
