package opsscene

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/consumer/effects"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/transport"
)

// Relay is the name of the relay that the scene pretends to be.
const Relay = "relay-7c5d9"

// Scene is an outbox and an inbox with their database.
type Scene struct {
	DB      *sql.DB
	Store   *sqlite.Store
	Auditor *sqlite.Auditor
	Outbox  *producer.Outbox[*sql.Tx]
	Inbox   *consumer.Inbox[*sql.Tx]
	Ledger  *effects.Ledger[*sql.Tx]

	reserve, notify *consumer.Handler[*sql.Tx]
	pay             *effects.Handler[*sql.Tx]
	leases          map[int]outbox.Lease
	orders          int
}

// New makes an empty scene in a folder. The caller closes DB.
func New(ctx context.Context, dir string) (*Scene, error) {
	s := &Scene{leases: make(map[int]outbox.Lease)}
	quiet := slog.New(slog.DiscardHandler)
	var err error
	if s.DB, err = sqlite.Open(filepath.Join(dir, "scene.db")); err != nil {
		return nil, err
	}
	if _, err = sqlite.Migrate(ctx, s.DB, sqlite.Config{}); err != nil {
		return nil, errors.Join(err, s.DB.Close())
	}
	if s.Store, err = sqlite.New(s.DB, sqlite.Config{}); err == nil {
		s.Auditor, err = sqlite.NewAuditor(s.DB, sqlite.AuditorConfig{})
	}
	if err == nil {
		s.Outbox, err = producer.New(s.Store, producer.Config{Name: "shop", Logger: quiet})
	}
	if err == nil {
		s.Inbox, err = consumer.New(s.Store, consumer.Config{Service: "stock", Logger: quiet, RunElsewhere: true}, consumer.WithOutbox(s.Outbox))
	}
	if err == nil {
		s.Ledger, err = effects.New(s.Inbox)
	}
	if err == nil {
		err = s.handlers()
	}
	if err == nil {
		err = s.own(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.DB.Close())
	}
	return s, nil
}

// charge and receipt are the intent and the result of the effect.
type (
	charge  struct{ Order string }
	receipt struct{ Number string }
)

func (s *Scene) handlers() (err error) {
	once := consumer.HandlerConfig{Topic: "order.placed", Retry: consumer.RetryConfig{QuickAttempts: 1}}
	once.Order.ByKey = true
	s.reserve, err = s.Inbox.Handle("reserve", func(_ context.Context, _ *consumer.Work[*sql.Tx], msg *message.Message) error {
		switch string(msg.Payload) {
		case `{"reject":true}`:
			return consumer.Reject(errors.New("article 4711 is not sold any more"))
		case `{"fail":true}`:
			return errors.New("stock is being counted")
		}
		return nil
	}, once)
	if err != nil {
		return err
	}
	s.notify, err = s.Inbox.Handle("notify", func(ctx context.Context, w *consumer.Work[*sql.Tx], _ *message.Message) error {
		_, err := w.Write(ctx, producer.Event{Topic: "mail.sent"})
		return err
	}, once)
	if err != nil {
		return err
	}
	s.pay, err = effects.Handle(s.Inbox, "pay", effects.Effect[*sql.Tx, charge, receipt]{
		Prepare: func(_ context.Context, _ *consumer.Work[*sql.Tx], msg *message.Message) (charge, error) {
			return charge{Order: string(msg.Payload)}, nil
		},
		Do: func(context.Context, uuid.UUID, charge) (receipt, error) {
			return receipt{}, errors.New("connection reset while waiting for the payment provider")
		},
		Finish: func(context.Context, *consumer.Work[*sql.Tx], charge, receipt) error { return nil },
	}, effects.Config{Handler: once})
	return err
}

// own leases every shard, as a relay does.
func (s *Scene) own(ctx context.Context) error {
	if _, err := s.Store.Heartbeat(ctx, Relay, time.Hour); err != nil {
		return err
	}
	grants, err := s.Store.Acquire(ctx, Relay, time.Hour, idgen.Shards)
	for _, g := range grants {
		s.leases[g.Shard] = g.Lease
	}
	return err
}

// Write writes n events of a topic, and returns their dispatch IDs.
func (s *Scene) Write(ctx context.Context, topic, key string, n int, due time.Time, payload string) (ids []uuid.UUID, err error) {
	err = s.Outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
		ids = ids[:0]
		for range n {
			s.orders++
			k := key
			if k == "" {
				k = fmt.Sprintf("order-%d", 4200+s.orders)
			}
			written, err := w.Write(ctx, producer.Event{
				Topic: topic, Key: k, Type: topic + ".v1", Source: fmt.Sprintf("order/%d", 4200+s.orders), Version: 1, Payload: []byte(payload),
				ContentType: "application/json", Headers: map[string]string{"tenant": "north"}, DeliverAt: due,
				CorrelationID: fmt.Sprintf("checkout-%d", 4200+s.orders),
			})
			if err != nil {
				return err
			}
			ids = append(ids, written[0])
		}
		return nil
	})
	return ids, err
}

// Queued reads the queue, at most limit events of each shard.
func (s *Scene) Queued(ctx context.Context, limit int) ([]outbox.Queued, error) {
	ranges := make([]outbox.Range, idgen.Shards)
	for i := range ranges {
		ranges[i] = outbox.Range{Shard: i, Limit: limit}
	}
	return s.Store.Fetch(ctx, ranges)
}

// Deliver marks queued events as confirmed.
func (s *Scene) Deliver(ctx context.Context, events []outbox.Queued) error {
	marks := make([]outbox.Mark, len(events))
	for i := range events {
		marks[i] = s.mark(&events[i])
	}
	_, err := s.Store.Mark(ctx, Relay, marks)
	return err
}

func (s *Scene) mark(q *outbox.Queued) outbox.Mark {
	return outbox.Mark{Lease: s.leases[q.Shard], Seq: q.Seq, Round: q.Round}
}

// Fail parks a queued event after its attempts: dead, or retrying.
func (s *Scene) Fail(ctx context.Context, q *outbox.Queued, attempts int, dead bool, why string) error {
	_, err := s.Store.Park(ctx, Relay, s.leases[q.Shard], []outbox.Failure{{
		Seq: q.Seq, Round: q.Round, Attempts: attempts, Dead: dead, RetryIn: 4 * time.Minute, Outcome: transport.Returned, Error: why,
	}})
	return err
}

// Follow parks a queued event behind an earlier one of its key.
func (s *Scene) Follow(ctx context.Context, q *outbox.Queued) error {
	_, err := s.Store.Follow(ctx, Relay, s.leases[q.Shard], []outbox.Mark{s.mark(q)})
	return err
}

// Consume hands an event to the consumers. Their errors are part of the scene.
func (s *Scene) Consume(ctx context.Context, q *outbox.Queued, consumers ...*consumer.Handler[*sql.Tx]) {
	for _, c := range consumers {
		msg := q.Message()
		msg.SetContext(ctx)
		_ = c.Consume(msg)
	}
}

// Tick lets some events be written and most of what waits be sent, as in a second of a busy shop.
func (s *Scene) Tick(ctx context.Context, written, left int) error {
	if _, err := s.Write(ctx, "order.placed", "", written, time.Time{}, `{"total":4990}`); err != nil {
		return err
	}
	queued, err := s.Queued(ctx, 100)
	if err != nil || len(queued) <= left {
		return err
	}
	return s.Deliver(ctx, queued[:len(queued)-left])
}

// Pause pauses the topic invoice.created.
func (s *Scene) Pause(ctx context.Context) error {
	return s.Outbox.Pause(ctx, control.Pause{Kind: control.Topic, Name: "invoice.created", Reason: "the accounting system is being migrated", By: "dana"})
}
