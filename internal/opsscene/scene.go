package opsscene

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/consumer/effects"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/ops"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/transport"
)

// Relay is the name of the relay that the scene pretends to be.
const Relay = "relay-7c5d9"

// Scene is an outbox and an inbox with their database.
type Scene struct {
	Store   Store
	Auditor ops.Registry
	Outbox  Outbox
	Inbox   Inbox
	Ledger  ops.Effects
	// Close closes the database.
	Close func() error

	write                func(ctx context.Context, e producer.Event) (uuid.UUID, error)
	reserve, notify, pay consume
	leases               map[int]outbox.Lease
	orders               int
}

// Store is what a scene needs of its store.
type Store interface {
	outbox.RelayStore
	// Register is that of an inbox.Store.
	Register(ctx context.Context, name string, window time.Duration) (inbox.Registration, error)
	// TakeEffects and SettleEffect are those of an inbox.EffectStore.
	TakeEffects(ctx context.Context, t inbox.EffectTake) (runs []inbox.EffectRun, next time.Duration, err error)
	// SettleEffect settles an effect.
	SettleEffect(ctx context.Context, r *inbox.EffectRun, o inbox.EffectOutcome) (bool, error)
}

// Outbox is a producer.Outbox.
type Outbox interface {
	ops.OutboxOperator
	ops.Editor
	outbox.Searcher
}

// Inbox is a consumer.Inbox.
type Inbox interface {
	ops.InboxOperator
	ops.MessageEditor
	inbox.Searcher
	// ListHandlers lists the handlers of running processes.
	ListHandlers(ctx context.Context) ([]inbox.RunningHandler, error)
	// Run does the work of the inbox until ctx ends.
	Run(ctx context.Context) error
	// RunOnce does the work of the inbox once.
	RunOnce(ctx context.Context) error
}

// consume hands a message to a consumer.
type consume func(msg *message.Message) error

// New makes an empty scene in a SQLite file of a folder.
func New(ctx context.Context, dir string) (*Scene, error) {
	db, err := sqlite.Open(filepath.Join(dir, "scene.db"))
	if err != nil {
		return nil, err
	}
	s := &Scene{Close: db.Close}
	if _, err = sqlite.Migrate(ctx, db, sqlite.Config{}); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	store, err := sqlite.New(db, sqlite.Config{})
	if err == nil {
		s.Auditor, err = sqlite.NewAuditor(db, sqlite.AuditorConfig{})
	}
	return set(ctx, s, store, err)
}

// NewPostgres makes an empty scene in an empty PostgreSQL database.
func NewPostgres(ctx context.Context, url string) (*Scene, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	s := &Scene{Close: func() error { pool.Close(); return nil }}
	if _, err = postgres.Migrate(ctx, pool, postgres.Config{}); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	store, err := postgres.New(pool, postgres.Config{})
	if err == nil {
		s.Auditor, err = postgres.NewAuditor(pool, postgres.AuditorConfig{})
	}
	return set(ctx, s, store, err)
}

// set sets an outbox and an inbox on a store.
func set[TX any, S interface {
	Store
	outbox.Store[TX]
	inbox.Store[TX]
}](ctx context.Context, s *Scene, store S, err error,
) (*Scene, error) {
	if err == nil {
		s.Store, s.leases = store, make(map[int]outbox.Lease)
		err = build[TX](s, store, store)
	}
	if err == nil {
		err = s.own(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func build[TX any](s *Scene, events outbox.Store[TX], messages inbox.Store[TX]) error {
	quiet := slog.New(slog.DiscardHandler)
	out, err := producer.New(events, producer.Config{Name: "shop", Logger: quiet})
	if err != nil {
		return err
	}
	in, err := consumer.New(messages, consumer.Config{Service: "stock", Logger: quiet, RunElsewhere: true}, consumer.WithOutbox(out))
	if err != nil {
		return err
	}
	ledger, err := effects.New(in)
	if err != nil {
		return err
	}
	s.Outbox, s.Inbox, s.Ledger = out, in, ledger
	s.write = func(ctx context.Context, e producer.Event) (id uuid.UUID, err error) {
		err = out.Transact(ctx, func(ctx context.Context, w *producer.Writer[TX]) error {
			written, err := w.Write(ctx, e)
			if err == nil {
				id = written[0]
			}
			return err
		})
		return id, err
	}
	return handlers(s, in)
}

// charge and receipt are the intent and the result of the effect.
type (
	charge  struct{ Order string }
	receipt struct{ Number string }
)

func handlers[TX any](s *Scene, in *consumer.Inbox[TX]) error {
	once := consumer.HandlerConfig{Topic: "order.placed", Retry: consumer.RetryConfig{QuickAttempts: 1}}
	once.Order.ByKey = true
	reserve, err := in.Handle("reserve", func(_ context.Context, _ *consumer.Work[TX], msg *message.Message) error {
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
	notify, err := in.Handle("notify", func(ctx context.Context, w *consumer.Work[TX], _ *message.Message) error {
		_, err := w.Write(ctx, producer.Event{Topic: "mail.sent"})
		return err
	}, once)
	if err != nil {
		return err
	}
	pay, err := effects.Handle(in, "pay", effects.Effect[TX, charge, receipt]{
		Prepare: func(_ context.Context, _ *consumer.Work[TX], msg *message.Message) (charge, error) {
			return charge{Order: string(msg.Payload)}, nil
		},
		Do: func(context.Context, uuid.UUID, charge) (receipt, error) {
			return receipt{}, errors.New("connection reset while waiting for the payment provider")
		},
		Finish: func(context.Context, *consumer.Work[TX], charge, receipt) error { return nil },
	}, effects.Config{Handler: once})
	if err != nil {
		return err
	}
	s.reserve, s.notify, s.pay = reserve.Consume, notify.Consume, pay.Consume
	return nil
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
func (s *Scene) Write(ctx context.Context, topic, key string, n int, due time.Time, payload string) ([]uuid.UUID, error) {
	ids := make([]uuid.UUID, n)
	for i := range ids {
		s.orders++
		order, k := 4200+s.orders, key
		if k == "" {
			k = fmt.Sprintf("order-%d", order)
		}
		var err error
		ids[i], err = s.write(ctx, producer.Event{
			Topic: topic, Key: k, Type: topic + ".v1", Source: fmt.Sprintf("order/%d", order), Version: 1, Payload: []byte(payload),
			ContentType: "application/json", Headers: map[string]string{"tenant": "north"}, DeliverAt: due, CorrelationID: fmt.Sprintf("checkout-%d", order),
		})
		if err != nil {
			return nil, err
		}
	}
	return ids, nil
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
func (s *Scene) Consume(ctx context.Context, q *outbox.Queued, consumers ...consume) {
	for _, c := range consumers {
		msg := q.Message()
		msg.SetContext(ctx)
		_ = c(msg)
	}
}

// Reserve hands an event to the consumer stock/reserve.
func (s *Scene) Reserve(ctx context.Context, q *outbox.Queued) { s.Consume(ctx, q, s.reserve) }

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
