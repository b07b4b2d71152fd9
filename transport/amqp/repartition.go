package amqp

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/rabbitmq/amqp091-go"
)

// Repartition takes a consumer's queues of topic from one number of partitions to
// config.Partitions; 0 is one queue without partitions. While one of the old queues holds messages
// or is consumed it changes nothing and returns [ErrNotDrained]. Then it binds the new queues and
// unbinds the old ones. It deletes those once each has handed out, as its first message, one that
// was published to it for that; and last declares the new number, which is what subscribers go by.
// After an error, call it again with the same numbers; where the new one is reached it does
// nothing.
//
// Stop the publishers of the topic (events stay in their outbox), wait until the old
// queues are empty, stop the consumers, call Repartition for each of them, and start
// all with the new number. From one number of partitions to another, a publisher that
// was forgotten loses nothing: the new queues are bound before the old ones are
// unbound. What it sent in between is ErrNotDrained again; stop it, and have consumers
// with the old number handle that. From or to 0 the exchange becomes another one. While
// queues of other consumers are bound to it, the error says so; repartition them, and
// call it for this one again.
//
// config.Topology must be [Declare], and the user needs the permission to configure, to read the
// queues and to write to the default exchange. ctx bounds the connecting; each request has 30
// seconds.
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
		return fmt.Errorf("from: %d is Partitions, so there is nothing to change", from)
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
	// What came after the first look, from a publisher that still runs, or was not counted.
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
	return r.declare(r.to, func(ch *amqp091.Channel, version int) error {
		if r.layout.count > 0 {
			return r.to.layout(ch, r.layout, version)
		}
		return r.to.subscription(ch, r.layout.queue, r.layout.exchange, version)
	})
}

func (r *repartition) channel(f func(*amqp091.Channel) error) error {
	return r.conn.withChannel(requestTimeout, f)
}

func (r *repartition) declare(t *topology, f func(ch *amqp091.Channel, version int) error) error {
	return t.declare(r.conn, requestTimeout, f)
}

// checkNumber checks that the old number is the one that is there, or that the new one is
// reached.
func (r *repartition) checkNumber() (done bool, err error) {
	err = r.declare(r.from, func(ch *amqp091.Channel, version int) error { return declareNumber(ch, r.from, r.old, version) })
	if errorCode(err) != amqp091.PreconditionFailed {
		return false, err
	}
	other := r.declare(r.to, func(ch *amqp091.Channel, version int) error { return declareNumber(ch, r.to, r.layout, version) })
	if other == nil {
		return true, nil
	}
	return false, err
}

// declareNumber declares the queue of the plain name.
func declareNumber(ch *amqp091.Channel, t *topology, l layout, version int) error {
	if l.count > 0 {
		return t.marker(ch, l, version)
	}
	return t.queue(ch, l.queue, version)
}

// oldQueues returns the names of all queues that are to go. The last one says that the others are
// there.
func (r *repartition) oldQueues() []string {
	if r.old.count == 0 {
		return r.old.names()
	}
	return append(r.old.names(), r.old.queue)
}

// drained looks at the old queues, one channel each since a queue that is missing
// closes it.
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

// proveEmpty has every old queue show that it is empty.
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

// declareQueues declares and binds the new queues, but not yet their number.
func (r *repartition) declareQueues() error {
	return r.declare(r.to, func(ch *amqp091.Channel, version int) error {
		if err := r.to.exchange(ch, r.layout.exchange); err != nil {
			return err
		}
		for i := range r.layout.count {
			if err := r.to.partition(ch, r.layout, i+1, version); err != nil {
				return err
			}
		}
		return nil
	})
}

// unbind takes the old queues off their exchange. What is not bound is no error.
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

// changeExchange has the exchange declared anew for a topic that is to be
// partitioned, or no longer. It goes only if nothing is bound to it any more.
func (r *repartition) changeExchange() error {
	if name := r.layout.exchange; name != "" {
		err := r.channel(func(ch *amqp091.Channel) error { return r.to.exchange(ch, name) })
		if errorCode(err) != amqp091.PreconditionFailed {
			return err
		}
	}
	if r.old.exchange == "" {
		return nil
	}
	err := r.channel(func(ch *amqp091.Channel) error { return ch.ExchangeDelete(r.old.exchange, true, false) })
	if errorCode(err) == amqp091.PreconditionFailed {
		return fmt.Errorf("%w: exchange %q is still bound to queues of other consumers; repartition them, then this one again: %w",
			ErrNotDrained, r.old.exchange, err)
	}
	return err
}

// remove deletes the old queues, which are bound to nothing and have shown that they are empty.
// RabbitMQ looks again at classic ones; for quorum queues it cannot.
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
