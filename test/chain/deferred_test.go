package chain

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/transport"
)

// appointments are deferred events and what was decided about them.
type appointments struct {
	db     *database[pgx.Tx]
	outbox *producer.Outbox[pgx.Tx]
	topic  string

	mu        sync.Mutex
	cancelled map[uuid.UUID]bool
	moved     int
}

// soon is a time within which all of a test's events are due, or changed.
func soon() time.Duration { return time.Duration(rand.IntN(1500)) * time.Millisecond }

// write writes an event that is deferred, in Go or in SQL.
func (a *appointments) write(ctx context.Context, n int) (id uuid.UUID, err error) {
	at, name, key := time.Now().Add(soon()), strconv.Itoa(n), fmt.Sprint("key-", n%12)
	err = a.outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
		if n%4 == 0 {
			return w.DB().QueryRow(ctx, `SELECT dispatch_id FROM boxpair.outbox_write(producer => 'shop', topic => $1, key => $2,
				source => $3, version => 1, payload => convert_to($4, 'UTF8'), deliver_at => $5)`, a.topic, key, "appointment/"+name, name, at).Scan((*[16]byte)(&id))
		}
		written, err := w.Write(ctx, producer.Event{
			Topic: a.topic, Key: key, Source: "appointment/" + name, Version: 1, Payload: []byte(name), DeliverAt: at,
		})
		if err == nil {
			id = written[0]
		}
		return err
	})
	return id, err
}

// change cancels or moves an event, sometimes in a transaction that takes its time or is rolled
// back.
func (a *appointments) change(ctx context.Context, id uuid.UUID) error {
	var changed []uuid.UUID
	cancels, regrets := rand.IntN(2) == 0, errors.New("regrets it")
	err := a.outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) (err error) {
		if cancels {
			changed, err = w.Cancel(ctx, "settled", id)
		} else {
			changed, err = w.Reschedule(ctx, time.Now().Add(soon()), id)
		}
		pause(soon() / 10)
		if err == nil && rand.IntN(5) == 0 {
			return regrets
		}
		return err
	})
	switch {
	case errors.Is(err, regrets):
		return nil
	case err != nil:
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, id := range changed {
		if cancels {
			a.cancelled[id] = true
		} else {
			a.moved++
		}
	}
	return nil
}

// TestDeferredEventsHaveOneEffectAtTheirTime: events are written for some time ahead, and cancelled
// and moved while relays move what is due. Everything is sent three times, and one relay is stopped
// in the middle.
func TestDeferredEventsHaveOneEffectAtTheirTime(t *testing.T) {
	t.Parallel()
	const count = 240
	db, url := newPostgres(t)
	execute(t, url, `CREATE TABLE applied (dispatch uuid, at timestamptz DEFAULT clock_timestamp())`)
	topic := newTopic(t, "stock")
	sent := record(t, topic)
	outbox := outboxOf(t, db)
	startService(t, db, nil, newSubscriber(t, "stock"), topic, consumer.Config{Service: "stock"}, consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}},
		func(ctx context.Context, w *consumer.Work[pgx.Tx], _ *message.Message) error {
			if err := db.exec(ctx, w.DB(), `INSERT INTO applied (dispatch) VALUES ($1)`, w.Event().ID.String()); err != nil {
				return err
			}
			return db.effect(ctx, w, "stock")
		})
	startRelay(t, outbox, thrice(newPublisher(t)), relay.Config{})
	other, err := relay.NewStandalone(openPostgres(t, url).store, thrice(newPublisher(t)), relay.Config{PollOnly: true})
	ok(t, err)
	stopOther := start(t, other.Run)

	a := &appointments{db: db, outbox: outbox, topic: topic, cancelled: map[uuid.UUID]bool{}}
	ids := make([]uuid.UUID, count)
	var writers sync.WaitGroup
	for first := range 8 {
		writers.Go(func() {
			for n := first; n < count; n += 8 {
				var err error
				if ids[n], err = a.write(t.Context(), n); err != nil {
					t.Error(err)
					return
				}
				if n%3 > 0 {
					writers.Go(func() {
						pause(soon())
						if err := a.change(t.Context(), ids[n]); err != nil {
							t.Error(err)
						}
					})
				}
			}
		})
	}
	pause(soon())
	stopOther()
	writers.Wait()
	if len(a.cancelled) == 0 || a.moved == 0 {
		t.Fatalf("%d were cancelled and %d moved", len(a.cancelled), a.moved)
	}

	db.wantEffects(t, "stock", count-len(a.cancelled))
	db.wantDrained(t)
	if n := db.number(`SELECT count(*) FROM boxpair.outbox_deferred`); n != 0 {
		t.Errorf("%d still wait", n)
	}
	for _, arrived := range sent.all() {
		if id := uuid.MustParse(arrived.id); a.cancelled[id] {
			t.Errorf("event %v was cancelled and sent", id)
		}
	}
	if n := db.number(`SELECT count(*) FROM boxpair.outbox_status WHERE state = 'cancelled'`); n != len(a.cancelled) {
		t.Errorf("%d are cancelled, %d were said to be", n, len(a.cancelled))
	}
	if n := db.number(`SELECT count(*) FROM boxpair.outbox_events e JOIN applied a ON a.dispatch = e.dispatch_id WHERE e.due_at IS NOT NULL`); n == 0 {
		t.Error("no event was deferred and applied")
	}
	early := db.list(`SELECT e.dispatch_id::text FROM boxpair.outbox_events e JOIN applied a ON a.dispatch = e.dispatch_id WHERE a.at < e.due_at`)
	if len(early) > 0 {
		t.Errorf("applied before their time: %v", early)
	}
}

// TestDeferredEventTakesItsPlaceInItsKeyWhenItIsDue: later events of the key do not wait for it
// before, and it goes before those that are still waiting then.
func TestDeferredEventTakesItsPlaceInItsKeyWhenItIsDue(t *testing.T) {
	t.Parallel()
	db, _ := newPostgres(t)
	topic := newTopic(t, "stock")
	sent := record(t, topic)
	outbox := outboxOf(t, db)
	apply(t, db, newSubscriber(t, "stock"), topic, "stock", consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}})
	var refused atomic.Bool // the events of key b
	to := newPublisher(t)
	startRelay(t, outbox, &sender{Sender: to, send: func(ctx context.Context, topic string, msg *message.Message, done func(transport.Result)) {
		if msg.Metadata.Get(transport.MetaKey) == "b" && refused.Load() {
			done(transport.Result{Outcome: transport.Refused, Err: errors.New("not yet")})
			return
		}
		to.Send(ctx, topic, msg, done)
	}}, relay.Config{MaxAttempts: 1_000_000, Backoff: relay.Backoff{Initial: 20 * time.Millisecond, Max: 20 * time.Millisecond}})

	write := func(key string, n int, in time.Duration) uuid.UUID {
		t.Helper()
		e := numbered(topic, key, n)
		if in > 0 {
			e.DeliverAt = time.Now().Add(in)
		}
		var written []uuid.UUID
		ok(t, outbox.Transact(t.Context(), func(ctx context.Context, w *producer.Writer[pgx.Tx]) (err error) {
			written, err = w.Write(ctx, e)
			return err
		}))
		return written[0]
	}
	due := func(id uuid.UUID) {
		t.Helper()
		if moved, err := outbox.Reschedule(t.Context(), time.Now().Add(-time.Hour), id); err != nil || len(moved) != 1 {
			t.Errorf("moved %v, %v", moved, err)
		}
	}

	later := write("a", 3, time.Hour)
	write("a", 1, 0)
	write("a", 2, 0)
	ok(t, sent.has(t.Context(), "a", "2"))
	due(later)
	ok(t, sent.has(t.Context(), "a", "3"))

	refused.Store(true)
	write("b", 1, 0)
	others := 0 // of a key that does well, so that the route is not what is judged
	waiting := func(n int) {
		t.Helper()
		eventually(t, fmt.Sprint(n, " events that wait"), func() bool {
			others++
			write("c", others, 0)
			return db.number(`SELECT count(*) FROM boxpair.outbox_parked WHERE key = 'b' AND state IN ('retrying', 'following')`) == n
		})
	}
	waiting(1)
	later = write("b", 2, time.Hour)
	write("b", 3, 0)
	write("b", 4, 0)
	waiting(3)
	due(later)
	waiting(4)
	refused.Store(false)

	db.wantEffects(t, "stock", 7+others)
	for key, n := range map[string]int{"a": 3, "b": 4, "c": others} {
		wantAscending(t, "on the wire, key "+key, sent.first(key), n)
		db.wantOrder(t, "stock", key, n)
	}
	db.wantDrained(t)
}
