package amqp

import (
	"context"
	"errors"
	"time"

	"github.com/rabbitmq/amqp091-go"
)

const (
	// consumerCheckEvery is the number of RebalanceIntervals between two checks for further
	// consumers of a queue without partitions.
	consumerCheckEvery = 12
	// consumerWarningEvery is the time between two warnings of an unchanged number of consumers.
	consumerWarningEvery = time.Hour
)

// warnOfConsumers warns, until ctx ends, when the queue has several consumers: the broker spreads
// the messages of a key over them. Every consumer of this library checks, so the first and the last
// one warn.
func (sub *subscription) warnOfConsumers(ctx context.Context, conn *connection) {
	if sub.s.config.CompetingConsumers || sub.s.topology.isSingle(sub.queue) {
		return
	}
	tick := time.NewTicker(consumerCheckEvery * sub.s.config.RebalanceInterval)
	defer tick.Stop()
	told, at := 1, time.Time{}
	for ctx.Err() == nil {
		// An error either ends the consumer channel too, or says that the queue was deleted;
		// consume logs both.
		if n, err := sub.consumers(conn); err == nil && n > 1 && (n != told || time.Since(at) > consumerWarningEvery) {
			sub.logger.WarnContext(ctx, "queue has several consumers, and each message goes to one of them: another handler needs a queue of its own. "+
				"Replicas of one handler get the messages of a key concurrently and out of order: delete the queue to have it declared anew "+
				"with x-single-active-consumer, set Partitions, or set CompetingConsumers if order does not matter", "consumers", n)
			told, at = n, time.Now()
		} else if err == nil && n <= 1 {
			told = 1
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// consumers returns the number of the queue's consumers.
func (sub *subscription) consumers(conn *connection) (int, error) {
	q, err := sub.inspect(conn)
	return q.Consumers, err
}

// Waiting implements [transport.Backlog].
func (sub *subscription) Waiting(ctx context.Context) (int, error) {
	if !sub.active.Load() {
		return 0, errNotActive
	}
	conn, err := sub.s.connections.get(ctx, sub.queue)
	if err != nil {
		return 0, err
	}
	q, err := sub.inspect(conn)
	return q.Messages, err
}

// errNotActive is the error of a queue whose messages go to another process.
var errNotActive = errors.New("the queue is not consumed, or another process gets its messages")

// inspect asks the broker for the state of the queue.
func (sub *subscription) inspect(conn *connection) (amqp091.Queue, error) {
	var q amqp091.Queue
	err := conn.withChannel(sub.s.timeout, func(ch *amqp091.Channel) (err error) {
		q, err = ch.QueueDeclarePassive(sub.queue, true, false, false, false, nil)
		return err
	})
	sub.s.connections.dedicate(sub.queue, err)
	return q, err
}
