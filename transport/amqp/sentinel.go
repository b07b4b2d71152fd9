package amqp

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/rabbitmq/amqp091-go"
)

// sentinelEncoding is the content-encoding property of sentinels, the messages by which
// [Repartition] proves that a queue is empty. A Subscriber acknowledges a sentinel that was left
// behind, and does not hand it out.
const sentinelEncoding = "boxpair-sentinel"

// proofTimeout is how long the proof that a queue is empty may take.
const proofTimeout = 15 * time.Second

// proveQueueEmpty returns nil if the queue holds no message and has no consumer, or does not exist.
// The counts in the answer to a declaration are no proof: when the leader of a quorum queue is
// silent for 250 ms, RabbitMQ answers 0 messages and 0 consumers. A sentinel proves that no message
// is waiting: it is queued behind all messages, and must be the first delivery. The consumer that
// receives the sentinel also proves the count of consumers, which must include it.
func (r *repartition) proveQueueEmpty(name string) error {
	err := r.channel(func(ch *amqp091.Channel) error {
		deliveries, err := ch.Consume(name, "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		if err := r.consumedAlone(name); err != nil {
			return err
		}
		if err := sentinelFirst(ch, name, deliveries); err != nil {
			return err
		}
		return r.consumedAlone(name) // no other consumer has taken messages before the sentinel
	})
	if errorCode(err) == amqp091.NotFound {
		return nil
	}
	if err != nil {
		return fmt.Errorf("queue %q: %w", name, err)
	}
	return nil
}

// sentinelFirst publishes a sentinel to the queue and returns nil if it is the first delivery.
func sentinelFirst(ch *amqp091.Channel, name string, deliveries <-chan amqp091.Delivery) error {
	if err := ch.Confirm(false); err != nil {
		return err
	}
	id := uuid.NewString()
	sentinel := amqp091.Publishing{ContentEncoding: sentinelEncoding, CorrelationId: id, DeliveryMode: amqp091.Persistent}
	confirm, err := ch.PublishWithDeferredConfirm("", name, false, false, sentinel)
	if err != nil {
		return err
	}
	timer := time.NewTimer(proofTimeout)
	defer timer.Stop()
	answered := confirm.Done()
	for {
		select {
		case d, ok := <-deliveries:
			switch {
			case !ok:
				return amqp091.ErrClosed
			case d.ContentEncoding != sentinelEncoding:
				return fmt.Errorf("%w: it holds messages", ErrNotDrained)
			}
			if err := d.Ack(false); err != nil || d.CorrelationId == id {
				return err
			}
		case <-answered:
			if answered = nil; !confirm.Acked() {
				return fmt.Errorf("%w: it nacked a message, so it may be full", ErrNotDrained)
			}
		case <-timer.C:
			return fmt.Errorf("%w: it delivered no message within %v", ErrNotDrained, proofTimeout)
		}
	}
}

// consumedAlone returns nil if the caller's consumer is the only consumer of the queue.
func (r *repartition) consumedAlone(name string) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(proofTimeout); ; <-tick.C {
		consumers := 0
		err := r.channel(func(ch *amqp091.Channel) error {
			q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
			consumers = q.Consumers
			return err
		})
		switch {
		case err != nil:
			return err
		case consumers == 1:
			return nil
		case consumers > 1:
			return fmt.Errorf("%w: it has other consumers", ErrNotDrained)
		case time.Now().After(deadline):
			return errors.New("RabbitMQ counts no consumer, although it has one")
		}
	}
}
