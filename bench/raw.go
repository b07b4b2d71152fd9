package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
)

// payload is 512 bytes, like a small order event.
var payload = []byte(`{"order":"` + strings.Repeat("x", 500) + `"}`)

// newQueue declares an empty queue of the run's type and returns a channel beside it.
func newQueue(o options) (conn *amqp.Connection, ch *amqp.Channel, name string, err error) {
	if conn, err = amqp.Dial(o.amqpURL); err != nil {
		return nil, nil, "", errors.New("connect to RabbitMQ failed") // the cause may show the password
	}
	if ch, err = conn.Channel(); err != nil {
		return conn, nil, "", err
	}
	name = "bench-" + uuid.NewString()[:8]
	_, err = ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": o.queue})
	return conn, ch, name, err
}

// rawPublish publishes persistent, mandatory messages with window unconfirmed ones.
func rawPublish(ctx context.Context, o options, window int) (float64, error) {
	conn, ch, queue, err := newQueue(o)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer func() { _, _ = ch.QueueDelete(queue, false, false, false) }()
	if err := ch.Confirm(false); err != nil {
		return 0, err
	}
	open := make(chan *amqp.DeferredConfirmation, window)
	failed := make(chan error, 1)
	go func() {
		for c := range open {
			if ok, err := c.WaitContext(ctx); !ok || err != nil {
				failed <- fmt.Errorf("not confirmed: %v", err)
				return
			}
		}
		failed <- nil
	}()
	start := time.Now()
	for range o.events {
		c, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{
			DeliveryMode: amqp.Persistent, MessageId: uuid.NewString(), Body: payload,
			Headers: amqp.Table{"boxpair-key": "k", "boxpair-producer": "bench", "boxpair-source": "s", "boxpair-version": "1"},
		})
		if err != nil {
			return 0, err
		}
		open <- c
	}
	close(open)
	if err := <-failed; err != nil {
		return 0, err
	}
	return float64(o.events) / time.Since(start).Seconds(), nil
}

// schema makes an empty schema of the run's own and a pool that uses it.
func schema(ctx context.Context, o options) (*pgxpool.Pool, string, func(), error) {
	name := "bench_" + strings.ReplaceAll(uuid.NewString(), "-", "")[:12]
	cfg, err := pgxpool.ParseConfig(o.databaseURL)
	if err != nil {
		return nil, "", nil, fmt.Errorf("DATABASE_URL is not valid")
	}
	cfg.MaxConns = 16
	cfg.ConnConfig.RuntimeParams["search_path"] = name
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, "", nil, err
	}
	_, err = pool.Exec(ctx, `CREATE SCHEMA `+name)
	return pool, name, func() {
		_, _ = pool.Exec(context.WithoutCancel(ctx), `DROP SCHEMA `+name+` CASCADE`)
		pool.Close()
	}, err
}

// plainConsume consumes with 8 workers, each message in a transaction: begin, claim
// with ON CONFLICT DO NOTHING, effect, commit, acknowledge.
func plainConsume(ctx context.Context, o options) (float64, error) {
	pool, _, drop, err := schema(ctx, o)
	if err != nil {
		return 0, err
	}
	defer drop()
	if _, err := pool.Exec(ctx, `CREATE TABLE inbox (id uuid PRIMARY KEY, at timestamptz DEFAULT now()); CREATE TABLE effects (id uuid, body bytea)`); err != nil {
		return 0, err
	}
	conn, ch, queue, err := newQueue(o)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer func() { _, _ = ch.QueueDelete(queue, false, false, false) }()
	if err := fillQueue(ctx, ch, queue, o.events); err != nil {
		return 0, err
	}
	consuming, err := conn.Channel()
	if err != nil {
		return 0, err
	}
	if err := consuming.Qos(100, 0, false); err != nil {
		return 0, err
	}
	deliveries, err := consuming.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		return 0, err
	}
	todo := make(chan amqp.Delivery)
	errs := make(chan error, 8)
	start := time.Now()
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for d := range todo {
				if err := applyPlain(ctx, pool, d); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	for range o.events {
		select {
		case d := <-deliveries:
			todo <- d
		case err := <-errs:
			return 0, err
		}
	}
	close(todo)
	workers.Wait()
	return float64(o.events) / time.Since(start).Seconds(), nil
}

func applyPlain(ctx context.Context, pool *pgxpool.Pool, d amqp.Delivery) error {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `INSERT INTO inbox (id) VALUES ($1) ON CONFLICT DO NOTHING`, d.MessageId)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO effects VALUES ($1, $2)`, d.MessageId, d.Body)
		return err
	})
	if err != nil {
		return err
	}
	return d.Ack(false)
}

func fillQueue(ctx context.Context, ch *amqp.Channel, queue string, n int) error {
	if err := ch.Confirm(false); err != nil {
		return err
	}
	var last *amqp.DeferredConfirmation
	stamp := time.Now().UTC().Format(time.RFC3339Nano)
	for i := range n {
		id := uuid.NewSHA1(uuid.NameSpaceOID, fmt.Append(nil, i))
		var err error
		last, err = ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{
			DeliveryMode: amqp.Persistent, MessageId: id.String(), Body: payload,
			Headers: amqp.Table{
				"_watermill_message_uuid": id.String(), "boxpair-key": fmt.Sprint("key-", i%1000),
				"boxpair-digest": hex.EncodeToString(id[:]), "boxpair-stamp": stamp,
			},
		})
		if err != nil {
			return err
		}
	}
	if _, err := last.WaitContext(ctx); err != nil {
		return err
	}
	for { // confirms of a quorum queue may come out of order
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil || q.Messages >= n {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
