package child

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/transport/amqp"
)

// consumer adds a service: a router, and the inbox beside it.
func (s *service) consumer(st *store, name string) (closers []func(), err error) {
	c := &s.cfg
	outbox, err := producer.New(st.Store, producer.Config{Name: name, Logger: s.log})
	if err != nil {
		return nil, err
	}
	in, err := consumer.New(st.Store, consumer.Config{
		Service: name, CacheSize: c.CacheSize, MaxHold: c.MaxHold, Window: c.Memory, ForgetInterval: c.ForgetInterval,
		PollInterval: 200 * time.Millisecond, Logger: s.log,
	}, consumer.WithOutbox(outbox))
	if err != nil {
		return nil, err
	}
	a := &applier{s: s, service: name, failed: make(map[int64]bool), misbehaved: make(map[string]int64)}
	cfg := consumer.HandlerConfig{
		Timeout: c.Timeout, LockTimeout: c.LockTimeout, Isolation: inbox.Isolation(c.Isolation), Order: consumer.OrderConfig{ByKey: !c.Unordered},
		Retry: consumer.RetryConfig{QuickAttempts: 1, MaxAttempts: c.MaxAttempts, MaxSoloStarts: c.MaxSoloStarts}, Group: consumer.GroupConfig{Size: c.Group},
		Optimistic: c.Optimistic, StoreFirst: c.StoreFirst, Parked: consumer.ParkedConfig{MinBackoff: 20 * time.Millisecond, MaxBackoff: 200 * time.Millisecond},
	}
	var h *consumer.Handler[pgx.Tx]
	if c.Set {
		h, err = in.HandleBatch(HandlerName, a.applySet, cfg)
	} else {
		h, err = in.Handle(HandlerName, a.apply, cfg)
	}
	if err != nil {
		return nil, err
	}
	sub, err := amqp.NewSubscriber(amqp.SubscriberConfig{
		AMQP: Topology(c.AMQP, name), InFlight: c.InFlight, Prefetch: c.Prefetch, CloseTimeout: 5 * time.Second, Logger: s.log,
	})
	if err != nil {
		return nil, err
	}
	closers = []func(){func() { _ = sub.Close() }}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NewSlogLogger(s.log))
	if err != nil {
		return closers, err
	}
	router.AddConsumerHandler(name, c.Topic, patient{sub, s.log}, h.Consume)
	s.parts = append(s.parts,
		part{name: "router of " + name, run: router.Run, ready: router.Running()},
		part{name: "inbox of " + name, run: in.Run, tell: func(r *Report) {
			if r.Handlers == nil {
				r.Handlers = make(map[string]consumer.Counters)
			}
			r.Handlers[name] = h.Counters()
			a.tell(r)
		}})
	return closers, nil
}

// patient subscribes once the broker answers. Watermill's router gives up at the first error, and
// leaves a goroutine behind that waits for its handlers.
type patient struct {
	*amqp.Subscriber
	log *slog.Logger
}

// Subscribe returns a closed channel if ctx ends before.
func (p patient) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	for {
		messages, err := p.Subscriber.Subscribe(ctx, topic)
		if err == nil {
			return messages, nil
		}
		p.log.Warn("subscribe", "error", err)
		if !sleep(ctx, 50*time.Millisecond) {
			ended := make(chan *message.Message)
			close(ended)
			return ended, nil
		}
	}
}

// applier is a service's handler.
type applier struct {
	s       *service
	service string

	mu         sync.Mutex
	failed     map[int64]bool   // orders that have had their failure
	misbehaved map[string]int64 // how often, by kind
}

var (
	errAsked  = errors.New("asked to fail")
	errDoomed = errors.New("asked to refuse")
)

func (a *applier) apply(ctx context.Context, w *consumer.Work[pgx.Tx], msg *message.Message) error {
	var o Order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return consumer.Reject(fmt.Errorf("payload is no order"))
	}
	if a.doomed(&o) {
		return consumer.Reject(errDoomed)
	}
	if err := a.effect(ctx, w, &o); err != nil {
		return err
	}
	return a.misbehave(ctx, w.DB(), o.Number)
}

func (a *applier) doomed(o *Order) bool {
	doom := int64(a.s.cfg.Doom)
	return doom > 0 && o.Number%doom == 0
}

// misbehave makes the handler misbehave for selected orders.
func (a *applier) misbehave(ctx context.Context, tx pgx.Tx, number int64) error {
	c := &a.s.cfg
	switch {
	case a.turn("failed", c.Fail, number):
		return errAsked
	case a.turn("swallowed", c.Swallow, number):
		_, _ = tx.Exec(ctx, `SELECT 1 / 0`)
	case a.turn("panicked", c.Panic, number):
		panic(errAsked)
	case a.turn("hung", c.Hang, number):
		<-ctx.Done()
		return ctx.Err()
	case a.turn("ended", c.End, number):
		if number%2 == 0 {
			_, _ = tx.Exec(ctx, `ROLLBACK`)
		} else {
			_, _ = tx.Conn().Exec(ctx, `ROLLBACK`) // no store can refuse this statement
		}
	}
	return nil
}

func (a *applier) tell(r *Report) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r.Misbehaved = maps.Clone(a.misbehaved)
}

// applySet adds the effects of a set in one statement, in the order of its messages.
func (a *applier) applySet(ctx context.Context, b *consumer.Batch[pgx.Tx], msgs []*message.Message) error {
	var (
		dispatches, keys []string
		numbers, amounts []int64
		all              []int64
		stamps           []time.Time
	)
	for i, msg := range msgs {
		var o Order
		if err := json.Unmarshal(msg.Payload, &o); err != nil {
			return consumer.Reject(fmt.Errorf("payload is no order"))
		}
		if a.doomed(&o) {
			return consumer.Reject(errDoomed)
		}
		e := b.Work(i).Event()
		all = append(all, o.Number)
		dispatches, keys = append(dispatches, e.ID.String()), append(keys, o.Key)
		numbers, amounts, stamps = append(numbers, o.N), append(amounts, o.Amount), append(stamps, e.Stamp)
	}
	_, err := b.DB().Exec(ctx, `INSERT INTO effects (consumer, dispatch, key, n, amount, sent)
		SELECT $1, u.dispatch::uuid, u.key, u.n, u.amount, u.sent
		FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::timestamptz[])
			WITH ORDINALITY AS u (dispatch, key, n, amount, sent, place) ORDER BY u.place`,
		a.service, dispatches, keys, numbers, amounts, stamps)
	for i := 0; i < len(all) && err == nil; i++ {
		err = a.misbehave(ctx, b.DB(), all[i])
	}
	return err
}

// turn tells whether an order must fail, and counts it: once per order, if its number is a multiple
// of nth.
func (a *applier) turn(how string, nth int, number int64) bool {
	if nth == 0 || number%int64(nth) != 0 {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed[number] {
		return false
	}
	a.failed[number] = true
	a.misbehaved[how]++
	return true
}

// effect writes the consumer's effect: a row that is only ever added, a changed total, and an
// event.
func (a *applier) effect(ctx context.Context, w *consumer.Work[pgx.Tx], o *Order) error {
	const add = `INSERT INTO effects (consumer, dispatch, key, n, amount, sent) VALUES ($1, $2, $3, $4, $5, $6)`
	e := w.Event()
	if a.s.cfg.Lean {
		_, err := w.DB().Exec(ctx, add, a.service, e.ID.String(), o.Key, o.N, o.Amount, e.Stamp)
		return err
	}
	b := &pgx.Batch{}
	b.Queue(add, a.service, e.ID.String(), o.Key, o.N, o.Amount, e.Stamp)
	b.Queue(`INSERT INTO totals AS t VALUES ($1, $2, 1, $3, $3, $3) ON CONFLICT (consumer, key) DO UPDATE
		SET count = t.count + 1, sum = t.sum + $3, least = least(t.least, $3), most = greatest(t.most, $3)`,
		a.service, o.Key, o.Amount)
	receipt := producer.Event{Topic: a.s.cfg.Topic + "_receipts", Key: o.Key, Payload: []byte(Canary)}
	if a.s.cfg.Optimistic {
		for _, q := range b.QueuedQueries {
			if err := postgres.AtCommit(w.DB(), q.SQL, q.Arguments...); err != nil {
				return err
			}
		}
		_, err := w.Write(ctx, receipt)
		return err
	}
	if err := w.DB().SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	_, err := w.Write(ctx, receipt)
	return err
}
