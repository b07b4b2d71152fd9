package amqp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
)

// group is the subscription of one call of Subscribe: to one queue, or to one queue for each
// partition.
type group struct {
	s      *Subscriber
	layout layout
	logger *slog.Logger
	out    chan *message.Message
	subs   []*subscription
}

// run hands out messages until scope ends. See [subscription.run].
func (g *group) run(ctx, scope context.Context) {
	var tasks sync.WaitGroup
	for _, sub := range g.subs {
		tasks.Go(func() { sub.run(ctx, scope) })
	}
	if g.layout.count > 1 {
		tasks.Go(func() { g.rebalance(scope) })
	}
	tasks.Wait()
	g.s.release(g)
	close(g.out)
}

// rebalance limits the partitions of this process to its share. The broker makes the first consumer
// of a queue active and keeps it active, so a process with too many partitions has to give some
// back.
func (g *group) rebalance(scope context.Context) {
	for attempt := 0; scope.Err() == nil; attempt++ {
		begin := time.Now()
		err := g.rebalanceConnected(scope)
		if scope.Err() != nil {
			return
		}
		if time.Since(begin) > stableAfter {
			attempt = 0
		}
		g.s.connections.dedicate(g.layout.queue, err)
		if tells(attempt) {
			g.logger.Warn("cannot rebalance partitions", "attempt", attempt+1, "error", err)
		}
		g.s.connections.broker.backoff.wait(scope, attempt)
	}
}

// rebalanceConnected consumes from the marker queue, which tells the number of partitions and is
// always empty. The number of its consumers is the number of processes.
func (g *group) rebalanceConnected(scope context.Context) error {
	conn, err := g.s.connections.get(scope, g.layout.queue)
	if err != nil {
		return err
	}
	ch, strays, err := g.consumeMarker(conn)
	if err != nil {
		return err
	}
	defer conn.closeChannel(ch)
	return g.countProcesses(scope, conn, ch, strays)
}

// consumeMarker starts a consumer of the marker queue, so that this process is counted.
func (g *group) consumeMarker(conn *connection) (*amqp091.Channel, <-chan amqp091.Delivery, error) {
	var ch *amqp091.Channel
	var strays <-chan amqp091.Delivery
	err := conn.request(g.s.timeout, func() (err error) {
		if ch, err = conn.Channel(); err != nil {
			return fmt.Errorf("open channel: %w", err)
		}
		if err = ch.Qos(1, 0, false); err != nil {
			conn.closeChannel(ch)
			return fmt.Errorf("set prefetch count: %w", err)
		}
		if strays, err = ch.Consume(g.layout.queue, "", false, false, false, false, nil); err != nil {
			conn.closeChannel(ch)
			return fmt.Errorf("consume: %w", err)
		}
		return nil
	})
	return ch, strays, err
}

// countProcesses counts the processes in intervals until scope ends or ch breaks.
func (g *group) countProcesses(scope context.Context, conn *connection, ch *amqp091.Channel, strays <-chan amqp091.Delivery) error {
	interval := g.s.config.RebalanceInterval
	tick := time.NewTicker(interval - interval/8 + rand.N(interval/4+1))
	defer tick.Stop()
	for {
		select {
		case <-scope.Done():
			return nil
		case _, ok := <-strays:
			if !ok {
				return amqp091.ErrClosed
			}
			g.logger.Error("message in the marker queue of a partitioned topic, from a publisher that does not partition",
				"queue", g.layout.queue)
		case <-tick.C:
			var q amqp091.Queue
			err := conn.request(g.s.timeout, func() (err error) {
				q, err = ch.QueueDeclarePassive(g.layout.queue, true, false, false, false, nil)
				return err
			})
			if err != nil {
				return fmt.Errorf("count the processes: %w", err)
			}
			g.giveBackExcess(max(q.Consumers, 1))
		}
	}
}

// giveBackExcess makes subscriptions give back the partitions beyond the share of one of n
// processes.
func (g *group) giveBackExcess(n int) {
	excess := -(g.layout.count + n - 1) / n
	var idle []*subscription
	for _, sub := range g.subs {
		if sub.active.Load() {
			excess++
			if time.Now().UnixNano() > sub.keepUntil.Load() {
				idle = append(idle, sub)
			}
		}
	}
	rand.Shuffle(len(idle), func(i, k int) { idle[i], idle[k] = idle[k], idle[i] })
	for _, sub := range idle[:max(0, min(excess, len(idle)))] {
		select {
		case sub.excess <- struct{}{}:
		default:
		}
	}
}

var errGivenBack = errors.New("given back")

// keepIntervals is the number of intervals for which a partition is kept after a failed attempt to
// give it back. So one slow message does not hold up the partition's messages repeatedly.
const keepIntervals = 20

// giveBack ends the consumer once no message is in flight, so that the next process in line gets
// the queue. If messages stay in flight for an interval, or scope ends, the consumer stays.
func (sub *subscription) giveBack(scope context.Context, consumer *consumerChannel) error {
	interval := sub.s.config.RebalanceInterval
	timer := time.NewTimer(interval)
	defer timer.Stop()
	for len(sub.inFlight) > 0 {
		select {
		case d := <-sub.finished:
			sub.finish(consumer, d)
		case d := <-sub.aside:
			sub.finishSetAside(consumer, d)
		case <-timer.C:
			sub.keepUntil.Store(time.Now().Add(keepIntervals * interval).UnixNano())
			return sub.flush(consumer)
		case <-scope.Done():
			return sub.flush(consumer)
		}
	}
	if err := consumer.acks.flush(1, consumer.ch.Ack); err != nil {
		return err
	}
	return errGivenBack
}
