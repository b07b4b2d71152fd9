package amqp

import (
	"context"
	"errors"
	"fmt"

	"github.com/rabbitmq/amqp091-go"
)

// consumerChannel is one instance of a channel with a consumer. Its delivery tags are meaningless
// on another instance.
type consumerChannel struct {
	conn       *connection
	ch         *amqp091.Channel
	deliveries <-chan amqp091.Delivery
	closed     chan *amqp091.Error
	cancelled  chan string     // receives when the broker cancels the consumer and leaves the channel open
	ended      context.Context // ends with the channel
	end        context.CancelFunc
	acks       acks
}

// consume declares the topology and starts a consumer on a channel of its own.
func (sub *subscription) consume(ctx context.Context) (*consumerChannel, error) {
	sub.active.Store(false)
	select {
	case <-sub.excess: // a partition that this process no longer consumes was to be given back
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
		// Before the consumer was started, a change of the number of partitions could have gone
		// unnoticed; from now on it finds this consumer.
		if err := sub.checkPartitions(conn); err != nil {
			consumer.close()
			return nil, err
		}
		return consumer, nil
	}
	sub.tasks.Go(func() { sub.warnOfConsumers(consumer.ended, conn) })
	return consumer, nil
}

// startConsumer opens a channel and starts a consumer on it.
func (sub *subscription) startConsumer(ctx context.Context, conn *connection) (*consumerChannel, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("open channel: %w", err)
	}
	consumer := &consumerChannel{
		conn: conn, ch: ch,
		closed:    ch.NotifyClose(make(chan *amqp091.Error, 1)),
		cancelled: ch.NotifyCancel(make(chan string, 1)), // room for the one consumer, since the client waits for its listeners
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

// checkPartitions returns an error if the topic has another number of partitions by now.
func (sub *subscription) checkPartitions(conn *connection) error {
	return sub.s.topology.declare(conn, sub.s.timeout, func(t *topology, ch *amqp091.Channel, version int) error {
		return t.ensureMarker(ch, sub.layout, version)
	})
}

// close ends the consumer. The broker handles the acks that were sent before, then returns the
// other messages to the queue in their order.
func (consumer *consumerChannel) close() {
	consumer.end()
	consumer.conn.closeChannel(consumer.ch)
}

var errConsumerEnded = errors.New("consumer cancelled by the broker; the queue may have been deleted")

// err returns the reason for which the channel has ended, or the consumer was cancelled.
func (consumer *consumerChannel) err() error {
	select {
	case err := <-consumer.closed:
		return closedBy(err)
	default:
		return errConsumerEnded
	}
}

// closedBy returns err, the reason of a channel's end, or a general error if the channel ended
// without a reason.
func closedBy(err *amqp091.Error) error {
	if err != nil {
		return err
	}
	return amqp091.ErrClosed
}
