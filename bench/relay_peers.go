package main

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// patience bounds the time of a slow peer; the messages published by then are counted.
func (s *stage) patience() time.Duration {
	if s.quick {
		return 1500 * time.Millisecond
	}
	return 10 * time.Second
}

// progress counts the messages that a peer has published, up to n.
type progress struct {
	n    int64
	done atomic.Int64
	all  chan struct{}
}

func newProgress(n int) *progress { return &progress{n: int64(n), all: make(chan struct{})} }

func (p *progress) add() {
	if p.done.Add(1) == p.n {
		close(p.all)
	}
}

// wait returns the number of published messages when all are published, or when patience has run
// out.
func (p *progress) wait(ctx context.Context, patience time.Duration) (int, error) {
	select {
	case <-p.all:
	case <-time.After(patience):
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	return int(p.done.Load()), nil
}

// counted is a publisher that counts its messages.
type counted struct {
	message.Publisher
	progress *progress
}

func (c counted) Publish(topic string, messages ...*message.Message) error {
	err := c.Publisher.Publish(topic, messages...)
	if err == nil {
		for range messages {
			c.progress.add()
		}
	}
	return err
}

// watermillSchema returns watermill-sql's schema with bytes as payload.
func watermillSchema(batch int) wsql.DefaultPostgreSQLSchema {
	return wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: batch, GeneratePayloadType: func(string) string { return "BYTEA" }}
}

// forward measures Watermill's forwarder.
func forward(tuned bool) func(context.Context, *stage) error {
	return func(ctx context.Context, s *stage) error {
		pool, _, err := s.schema(ctx)
		if err != nil {
			return err
		}
		q, err := s.queues("classic", 1)
		if err != nil {
			return err
		}
		out := wamqp.NewDurableQueueConfig(s.amqpURL)
		out.Publish.GenerateRoutingKey = func(string) string { return q.names[0] }
		out.Publish.ConfirmDelivery = true
		batch, poll := 0, time.Duration(0)
		if tuned {
			batch, poll, out.Publish.ChannelPoolSize = 1000, 10*time.Millisecond, 10
		}
		db := wsql.BeginnerFromPgx(pool)
		done := s.spend("events")
		if err := fillForwarder(ctx, pool, s.n); err != nil {
			return err
		}
		done()
		publisher, err := wamqp.NewPublisher(out, watermill.NopLogger{})
		if err != nil {
			return errors.New("connect watermill-amqp to RabbitMQ failed")
		}
		subscriber, err := wsql.NewSubscriber(db, wsql.SubscriberConfig{
			SchemaAdapter: watermillSchema(batch), OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{},
			InitializeSchema: true, PollInterval: poll,
		}, watermill.NopLogger{})
		if err != nil {
			return err
		}
		p := newProgress(s.n)
		f, err := forwarder.NewForwarder(subscriber, counted{publisher, p}, watermill.NopLogger{}, forwarder.Config{})
		if err != nil {
			return err
		}
		var running sync.WaitGroup
		s.later(func() {
			_ = f.Close()
			running.Wait()
			_ = publisher.Close()
		})
		return s.timed(ctx, func() (int, error) {
			running.Go(func() { _ = f.Run(ctx) })
			return p.wait(ctx, s.patience())
		})
	}
}

// fillForwarder commits n events, 500 in a transaction.
func fillForwarder(ctx context.Context, pool *pgxpool.Pool, n int) error {
	table, err := wsql.NewPublisher(wsql.BeginnerFromPgx(pool), wsql.PublisherConfig{
		SchemaAdapter: watermillSchema(0), AutoInitializeSchema: true}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	p := forwarder.NewPublisher(table, forwarder.PublisherConfig{})
	for at := 0; at < n; at += 500 {
		messages := make([]*message.Message, min(500, n-at))
		for i := range messages {
			messages[i] = watermillMessage()
			messages[i].SetContext(ctx)
		}
		if err := p.Publish("topic-0", messages...); err != nil {
			return err
		}
	}
	return nil
}

func watermillMessage() *message.Message {
	msg := message.NewMessage(uuid.NewString(), payload)
	msg.Metadata = message.Metadata{"key": "k", "producer": "bench", "source": "s", "version": "1"}
	return msg
}

// riverJob is an event as a job of River.
type riverJob struct {
	Topic string          `json:"topic"`
	Body  json.RawMessage `json:"body"`
}

// Kind implements [river.JobArgs].
func (riverJob) Kind() string { return "publish" }

// riverWorker publishes a job and waits for the confirm.
type riverWorker struct {
	river.WorkerDefaults[riverJob]
	publish  func(ctx context.Context, job riverJob) error
	progress *progress
}

// Work implements [river.Worker].
func (w *riverWorker) Work(ctx context.Context, job *river.Job[riverJob]) error {
	err := w.publish(ctx, job.Args)
	if err == nil {
		w.progress.add()
	}
	return err
}

// riverTables makes River's tables.
func riverTables(ctx context.Context, pool *pgxpool.Pool) error {
	m, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return err
	}
	_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

// riverRelay measures River as a relay: a job per event.
func riverRelay(ctx context.Context, s *stage) error {
	pool, _, err := s.schema(ctx)
	if err != nil {
		return err
	}
	if err := riverTables(ctx, pool); err != nil {
		return err
	}
	q, err := s.queues("classic", 1)
	if err != nil {
		return err
	}
	if err := q.ch.Confirm(false); err != nil {
		return err
	}
	workers, p := river.NewWorkers(), newProgress(s.n)
	river.AddWorker(workers, &riverWorker{publish: confirmedPublish(q.ch, q.names[0]), progress: p})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1000}},
		FetchCooldown: time.Millisecond, Workers: workers,
	})
	if err != nil {
		return err
	}
	done := s.spend("events")
	if err := fillRiver(ctx, client, s.n); err != nil {
		return err
	}
	done()
	s.later(func() { _ = client.StopAndCancel(context.WithoutCancel(ctx)) })
	return s.timed(ctx, func() (int, error) {
		if err := client.Start(ctx); err != nil {
			return 0, err
		}
		return p.wait(ctx, s.patience())
	})
}

func fillRiver(ctx context.Context, client *river.Client[pgx.Tx], n int) error {
	for at := 0; at < n; at += 1000 {
		jobs := make([]river.InsertManyParams, min(1000, n-at))
		for i := range jobs {
			jobs[i].Args = riverJob{"topic-0", payload}
		}
		if _, err := client.InsertManyFast(ctx, jobs); err != nil {
			return err
		}
	}
	return nil
}

// confirmedPublish publishes on one channel from many goroutines; each goroutine waits for its own
// confirm.
func confirmedPublish(ch *amqp.Channel, queue string) func(ctx context.Context, job riverJob) error {
	return func(ctx context.Context, job riverJob) error {
		msg := rawMessage(uuid.NewString())
		msg.Body = job.Body
		c, err := ch.PublishWithDeferredConfirm("", queue, true, false, msg)
		if err != nil {
			return err
		}
		if ok, err := c.WaitContext(ctx); !ok || err != nil {
			return errors.Join(errors.New("not confirmed"), err)
		}
		return nil
	}
}
