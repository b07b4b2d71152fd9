package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/transport"
)

// rawPublish publishes persistent, mandatory messages to one queue, with at most window unconfirmed
// ones.
func rawPublish(kind string, window int, message func(id string) amqp.Publishing) func(context.Context, *stage) error {
	return rawPublishOf(1, kind, window, message)
}

// rawBatches publishes the same number of messages in AMQP messages of eventsOfBatch each.
func rawBatches(kind string) func(context.Context, *stage) error {
	return rawPublishOf(eventsOfBatch, kind, 1000/eventsOfBatch, batchedMessage)
}

func rawPublishOf(events int, kind string, window int, message func(id string) amqp.Publishing) func(context.Context, *stage) error {
	return func(ctx context.Context, s *stage) error {
		q, err := s.queues(kind, 1)
		if err != nil {
			return err
		}
		if err := q.ch.Confirm(false); err != nil {
			return err
		}
		return s.timed(ctx, func() (int, error) {
			n := (s.n + events - 1) / events
			return n * events, publishAll(ctx, q.ch, q.names[0], n, window, message)
		})
	}
}

// batchedMessage returns an AMQP message with eventsOfBatch events.
func batchedMessage(id string) amqp.Publishing {
	body := make([]byte, 0, eventsOfBatch*(len(envelopedPayload)+len(id)+8))
	body = append(body, "publish-seq=12345\n"...)
	for range eventsOfBatch {
		body = fmt.Appendf(body, "%s %d\n", uuid.New(), len(envelopedPayload))
		body = append(body, envelopedPayload...)
	}
	return amqp.Publishing{
		DeliveryMode: amqp.Persistent, MessageId: id, Body: body, Timestamp: time.Unix(0, 0), ContentEncoding: "boxpair-batch",
	}
}

func publishAll(ctx context.Context, ch *amqp.Channel, queue string, n, window int, message func(id string) amqp.Publishing) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	slots := make(chan struct{}, window)
	open := make(chan *amqp.DeferredConfirmation, window)
	done := make(chan error, 1)
	go func() {
		for c := range open {
			if ok, err := c.WaitContext(ctx); !ok || err != nil {
				err = errors.Join(errors.New("not confirmed"), err)
				cancel(err)
				done <- err
				return
			}
			<-slots
		}
		done <- nil
	}()
	for range n {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		c, err := ch.PublishWithDeferredConfirm("", queue, true, false, message(uuid.NewString()))
		if err != nil {
			return err
		}
		open <- c
	}
	close(open)
	return <-done
}

// rawMessage returns a message with four headers.
func rawMessage(id string) amqp.Publishing {
	return amqp.Publishing{
		DeliveryMode: amqp.Persistent, MessageId: id, Body: payload,
		Headers: amqp.Table{"boxpair-key": "k", "boxpair-producer": "bench", "boxpair-source": "s", "boxpair-version": "1"},
	}
}

// envelopedMessage returns a message with the headers of an event in its body.
func envelopedMessage(id string) amqp.Publishing {
	return amqp.Publishing{
		DeliveryMode: amqp.Persistent, MessageId: id, Body: envelopedPayload, Timestamp: time.Unix(0, 0), ContentEncoding: "boxpair",
	}
}

var envelopedPayload = append([]byte("publish-seq=12345&digest=0123456789abcdef0123456789abcdef&index=0&key=key-12345&producer=bench"+
	"&resend-until=2026-01-31T12:00:00.000001Z&source=order&stamp=2026-01-31T12:00:00.000001Z&version=1700000000000000000\n"), payload...)

// sink is a publisher that confirms every message at once.
type sink struct{}

func (sink) Publish(string, ...*message.Message) error { return nil }
func (sink) Close() error                              { return nil }
func (sink) Route(string) string                       { return "sink" }

func (sink) Send(_ context.Context, _ string, _ *message.Message, done func(transport.Result)) {
	done(transport.Result{Outcome: transport.Confirmed})
}

// databaseOnly reads events from the tables of this library, 1,000 at a time in the order of their
// IDs, and deletes their queue rows, without leases, order or a broker.
func databaseOnly(ctx context.Context, s *stage) error {
	store, pool, _, err := s.store(ctx)
	if err != nil {
		return err
	}
	outbox, err := producer.New(store, producer.Config{Name: "bench"})
	if err != nil {
		return err
	}
	if err := s.fillOutbox(ctx, outbox, 1, distinctKeys()); err != nil {
		return err
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return hidden(err)
	}
	defer conn.Release()
	return s.timed(ctx, func() (int, error) {
		for done := 0; ; {
			var ids []int64
			rows, err := conn.Query(ctx, `SELECT q.id, e.* FROM outbox_queue q JOIN outbox_events e USING (id) ORDER BY q.shard, q.id LIMIT 1000`)
			if err != nil {
				return 0, err
			}
			for rows.Next() {
				values := rows.RawValues()
				var id int64
				for _, b := range values[0] {
					id = id<<8 | int64(b)
				}
				ids = append(ids, id)
			}
			if err := rows.Err(); err != nil {
				return 0, err
			}
			if len(ids) == 0 {
				if done != s.n {
					return done, fmt.Errorf("%d of %d events read", done, s.n)
				}
				return done, nil
			}
			if _, err := conn.Exec(ctx, `DELETE FROM outbox_queue WHERE id = ANY ($1)`, ids); err != nil {
				return 0, err
			}
			done += len(ids)
		}
	})
}
