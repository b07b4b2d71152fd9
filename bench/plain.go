package main

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/producer"
)

// plainOutbox is a hand-written outbox, as tutorials show it.
const plainOutbox = `CREATE TABLE plain_outbox (id bigserial PRIMARY KEY, topic text NOT NULL, payload bytea NOT NULL,
	headers jsonb NOT NULL, created_at timestamptz NOT NULL DEFAULT now())`

const insertPlain = `INSERT INTO plain_outbox (topic, payload, headers) VALUES ($1, $2, $3)`

// plainHeaders are the headers of an event in a hand-written outbox.
var plainHeaders = map[string]string{"type": eventType, "traceparent": traceParent, "tenant": tenant}

// An event carries what events carry in production.
const (
	eventType   = "OrderPlaced"
	traceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	tenant      = "eu-1"
)

// event returns an event with a type, a trace and a header of the user's.
func event(topic, key, source string, version int64, body []byte) producer.Event {
	return producer.Event{
		Topic: topic, Key: key, Source: source, Version: version, Payload: body,
		Type: eventType, TraceParent: traceParent, Headers: map[string]string{"tenant": tenant},
	}
}

// readme writes an order and its events as README does: each with a call of its own.
func readme(_ context.Context, d *desk) (func(context.Context) error, error) {
	return func(ctx context.Context) error {
		return d.outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			if _, err := w.DB().Exec(ctx, insertOrder, uuid.New(), payload); err != nil {
				return err
			}
			_, err := w.Write(ctx, d.batch()...)
			return err
		})
	}, nil
}

// plain writes an order and an event into a hand-written outbox, in four round trips.
func plain(ctx context.Context, d *desk) (func(context.Context) error, error) {
	return d.plainly(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, insertPlain, "topic-0", payload, plainHeaders)
		return err
	})
}

// plainMany writes an order and many events into a hand-written outbox by one statement.
func plainMany(ctx context.Context, d *desk) (func(context.Context) error, error) {
	return d.plainly(ctx, func(ctx context.Context, tx pgx.Tx) error {
		topics, bodies, headers := make([]string, d.events), make([][]byte, d.events), make([]map[string]string, d.events)
		for i := range topics {
			topics[i], bodies[i], headers[i] = "topic-0", payload, plainHeaders
		}
		_, err := tx.Exec(ctx, `INSERT INTO plain_outbox (topic, payload, headers) SELECT * FROM unnest($1::text[], $2::bytea[], $3::jsonb[])`,
			topics, bodies, headers)
		return err
	})
}

// plainly makes a hand-written outbox, and returns a transaction of an order and of what write does.
func (d *desk) plainly(ctx context.Context, write func(context.Context, pgx.Tx) error) (func(context.Context) error, error) {
	_, err := d.pool.Exec(ctx, plainOutbox)
	return func(ctx context.Context) error {
		return d.transaction(ctx, func(tx pgx.Tx) error { return write(ctx, tx) })
	}, err
}

// plainID returns the message ID of an event in a hand-written outbox.
func plainID(id int64) string {
	var u uuid.UUID
	binary.BigEndian.PutUint64(u[8:], uint64(id))
	return u.String()
}

// sampled publishes copies of an event as the relay publishes it: only the message ID is new.
func sampled(kind string) func(context.Context, *stage) error {
	return func(ctx context.Context, s *stage) error {
		sample, err := s.sample(ctx, kind)
		if err != nil {
			return err
		}
		return rawPublish(kind, 1000, func(id string) amqp.Publishing {
			msg := sample
			msg.MessageId = id
			return msg
		})(ctx, s)
	}
}

// sample publishes one event through a relay on its defaults, and returns it as it arrives.
func (s *stage) sample(ctx context.Context, kind string) (amqp.Publishing, error) {
	defer s.spend("sample")()
	store, _, _, err := s.store(ctx)
	if err != nil {
		return amqp.Publishing{}, err
	}
	outbox, err := producer.New(store, producer.Config{Name: "bench"})
	if err != nil {
		return amqp.Publishing{}, err
	}
	err = outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
		_, err := w.Write(ctx, event("topic-0", "key-12345", "order", time.Now().UnixNano(), payload))
		return err
	})
	if err != nil {
		return amqp.Publishing{}, err
	}
	q, err := s.queues(kind, 1)
	if err != nil {
		return amqp.Publishing{}, err
	}
	relay, err := s.relay(ctx, outbox, q, headers)
	if err != nil {
		return amqp.Publishing{}, err
	}
	if _, err := relay.RunOnce(ctx); err != nil {
		return amqp.Publishing{}, err
	}
	d, err := q.first(ctx)
	return amqp.Publishing{
		Headers: d.Headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: d.DeliveryMode, Priority: d.Priority,
		CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, Expiration: d.Expiration, MessageId: d.MessageId, Timestamp: d.Timestamp,
		Type: d.Type, UserId: d.UserId, AppId: d.AppId, Body: d.Body,
	}, err
}

// first waits for the first message of the first queue.
func (q *queues) first(ctx context.Context) (amqp.Delivery, error) {
	for {
		d, ok, err := q.ch.Get(q.names[0], true)
		if ok || err != nil {
			return d, err
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return d, err
		}
	}
}
