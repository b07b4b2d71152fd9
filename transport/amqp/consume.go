package amqp

import (
	"context"
	"errors"
	"fmt"

	"github.com/rabbitmq/amqp091-go"
)

// consumerChannel is one instance of a channel that is consumed from. Delivery tags mean
// nothing beyond it.
type consumerChannel struct {
	conn       *connection
	ch         *amqp091.Channel
	deliveries <-chan amqp091.Delivery
	closed     chan *amqp091.Error
	cancelled  chan string     // tells that the broker has ended the consumer, and not the channel
	ended      context.Context // ends with the source
	end        context.CancelFunc
	acks       acks
}

// consume declares the topology and starts to consume on a channel of its own.
func (sub *subscription) consume(ctx context.Context) (*consumerChannel, error) {
	sub.active.Store(false)
	select {
	case <-sub.excess: // told to give back what is not held any more
	default:
	}
	conn, err := sub.s.connections.get(ctx, sub.queue)
	if err != nil {
		return nil, err
	}
	if err := sub.declare(conn); err != nil {
		return nil, err
	}
	var consumer *consumerChannel
	err = conn.request(sub.s.timeout, func() (err error) {
		consumer, err = sub.startConsumer(ctx, conn)
		return err
	})
	if err != nil {
		return nil, err
	}
	if sub.partition > 0 {
		// A change of their number that came between sees this consumer only from now on.
		if err := sub.checkPartitions(conn); err != nil {
			consumer.close()
			return nil, err
		}
		return consumer, nil
	}
	sub.tasks.Go(func() { sub.warnOfConsumers(consumer.ended, conn) })
	return consumer, nil
}

// startConsumer starts to consume on a channel of its own.
func (sub *subscription) startConsumer(ctx context.Context, conn *connection) (*consumerChannel, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("open channel: %w", err)
	}
	consumer := &consumerChannel{
		conn: conn, ch: ch,
		closed:    ch.NotifyClose(make(chan *amqp091.Error, 1)),
		cancelled: ch.NotifyCancel(make(chan string, 1)), // room for the one consumer: the client waits for whoever listens
	}
	consumer.ended, consumer.end = context.WithCancel(ctx)
	c := sub.s.config.AMQP.Consume
	if err := ch.Qos(sub.s.config.Prefetch, 0, false); err != nil {
		consumer.close()
		return nil, fmt.Errorf("set prefetch count: %w", err)
	}
	consumer.deliveries, err = ch.Consume(sub.queue, c.Consumer, false, c.Exclusive, c.NoLocal, false, c.Arguments)
	if err != nil {
		consumer.close()
		return nil, fmt.Errorf("consume: %w", err)
	}
	return consumer, nil
}

// checkPartitions tells whether the topic still has as many partitions.
func (sub *subscription) checkPartitions(conn *connection) error {
	return sub.s.topology.declare(conn, sub.s.timeout, func(ch *amqp091.Channel, version int) error {
		return sub.s.topology.marker(ch, sub.layout, version)
	})
}

// close ends the source. The broker handles the acks that were sent before, and
// then returns the rest to the queue in its order.
func (consumer *consumerChannel) close() {
	consumer.end()
	consumer.conn.closeChannel(consumer.ch)
}

var errConsumerEnded = errors.New("the broker has ended the consumer, as it does when the queue is deleted")

// err says why the source has ended by itself.
func (consumer *consumerChannel) err() error {
	select {
	case err := <-consumer.closed:
		return closedBy(err)
	default:
		return errConsumerEnded
	}
}

// closedBy says why a channel is closed that gave this reason, or none.
func closedBy(err *amqp091.Error) error {
	if err != nil {
		return err
	}
	return amqp091.ErrClosed
}
