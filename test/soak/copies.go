package soak

import (
	"context"
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/test/faults/child"
	"github.com/boxpair/boxpair/test/faults/system"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/amqp"
)

// copier publishes copies of delivered events, like a relay that sends twice.
type copier struct {
	sys       *system.System
	publisher *amqp.Publisher
	injected  int // copies confirmed by the broker
}

func newCopier(sys *system.System) (*copier, error) {
	cfg := amqp.PublisherConfig{
		AMQP: child.Topology(sys.Servers.RabbitMQ.URL(), ""), ConfirmTimeout: 5 * time.Second, Logger: slog.New(slog.DiscardHandler),
	}
	cfg.Queues = []amqp.Queue{{Topic: sys.Topic, Name: child.QueueName(sys.Topic, "stock")}}
	publisher, err := amqp.NewPublisher(cfg)
	return &copier{sys: sys, publisher: publisher}, err
}

// delivered reads some of the newest events outside the queue. Their messages were sent before, so
// a copy cannot arrive first.
const delivered = `
SELECT e.dispatch_id, e.digest, e.topic, e.key, e.type, e.producer, e.source, e.version, e.index, e.content_type,
    e.headers::text, e.payload, e.created_at
FROM boxpair.outbox_events e
WHERE e.id = ANY ($1)
  AND NOT EXISTS (SELECT FROM boxpair.outbox_queue q WHERE q.shard = e.shard AND q.id = e.id)
  AND NOT EXISTS (SELECT FROM boxpair.outbox_parked p WHERE p.id = e.id)`

// inject publishes copies of n events. A database or broker that is away for the moment is no
// error.
func (c *copier) inject(ctx context.Context, rnd *rand.Rand, n int) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var newest int64
	if c.sys.OutboxPool().QueryRow(ctx, `SELECT coalesce(max(id), 0) FROM boxpair.outbox_events`).Scan(&newest) != nil || newest == 0 {
		return
	}
	ids := make([]int64, n)
	for i := range ids {
		ids[i] = max(1, newest-rnd.Int64N(50_000))
	}
	rows, err := c.sys.OutboxPool().Query(ctx, delivered, ids)
	if err != nil {
		return
	}
	messages, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*message.Message, error) {
		e, err := scan(row)
		msg := e.Message()
		msg.SetContext(ctx)
		return msg, err
	})
	if err != nil || len(messages) == 0 {
		return
	}
	results := make(chan transport.Result, len(messages))
	for _, msg := range messages {
		c.publisher.Send(ctx, c.sys.Topic, msg, func(r transport.Result) { results <- r })
	}
	for range messages {
		if r := <-results; r.Outcome == transport.Confirmed {
			c.injected++
		}
	}
}

func scan(row pgx.CollectableRow) (e transport.Event, err error) {
	var (
		id      [16]byte
		digest  []byte
		headers string
	)
	err = row.Scan(&id, &digest, &e.Topic, &e.Key, &e.Type, &e.Producer, &e.Source, &e.Version, &e.Index, &e.ContentType,
		&headers, &e.Payload, &e.Stamp)
	if err == nil {
		err = json.Unmarshal([]byte(headers), &e.Headers)
	}
	e.ID = uuid.UUID(id)
	copy(e.Digest[:], digest)
	return e, err
}
