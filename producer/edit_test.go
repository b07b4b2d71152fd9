package producer_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/transport"
)

// unsettled is a store whose next discards fail: before they did anything, or after it.
type unsettled[TX any] struct {
	outbox.Store[TX]
	before, after error
}

func (u *unsettled[TX]) Discard(ctx context.Context, f outbox.Filter, reason string) ([]uuid.UUID, error) {
	if u.before != nil {
		return nil, u.before
	}
	ids, err := u.Store.Discard(ctx, f, reason)
	return ids, errors.Join(err, u.after)
}

// TestEventsAreEdited runs each test on SQLite and PostgreSQL.
func TestEventsAreEdited(t *testing.T) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		editTests(t, func(t *testing.T) outbox.Store[*sql.Tx] {
			db, err := sqlite.Open(filepath.Join(t.TempDir(), "orders.db"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			if _, err := sqlite.Migrate(t.Context(), db, sqlite.Config{}); err != nil {
				t.Fatal(err)
			}
			store, err := sqlite.New(db, sqlite.Config{})
			if err != nil {
				t.Fatal(err)
			}
			return store
		})
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		editTests(t, func(t *testing.T) outbox.Store[pgx.Tx] {
			pool, err := pgxpool.New(t.Context(), testenv.Postgres(t))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			if _, err := postgres.Migrate(t.Context(), pool, postgres.Config{}); err != nil {
				t.Fatal(err)
			}
			store, err := postgres.New(pool, postgres.Config{})
			if err != nil {
				t.Fatal(err)
			}
			return store
		})
	})
}

func editTests[TX any](t *testing.T, open func(t *testing.T) outbox.Store[TX]) {
	for name, run := range map[string]func(r *editRig[TX]){
		"edited event is sent instead of the original":          editSends[TX],
		"edit that stops before or after the discard goes on":   editRepeats[TX],
		"same content is written once, and other content anew":  editAgain[TX],
		"discarded event keeps its reason and is edited":        editDiscarded[TX],
		"what cannot be edited is not changed":                  editRefuses[TX],
		"operators who edit at once write one copy of the same": editsRace[TX],
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(newEditRig(t, open(t)))
		})
	}
}

// editRig is an outbox with a dead event, which is too large for the broker.
type editRig[TX any] struct {
	*testing.T
	store  *unsettled[TX]
	out    *producer.Outbox[TX]
	relay  *relay.Relay
	broker *keeping
	dead   outbox.Parked
}

// keeping is a broker that takes messages up to 10 bytes and keeps them.
type keeping struct {
	narrow
	got []*message.Message
}

func (k *keeping) Publish(topic string, messages ...*message.Message) error {
	err := k.narrow.Publish(topic, messages...)
	if err == nil {
		k.got = append(k.got, messages...)
	}
	return err
}

func newEditRig[TX any](t *testing.T, store outbox.Store[TX]) *editRig[TX] {
	r := &editRig[TX]{T: t, store: &unsettled[TX]{Store: store}, broker: &keeping{narrow: narrow{limit: 10}}}
	var err error
	if r.out, err = producer.New[TX](r.store, producer.Config{Name: "orders"}); err != nil {
		t.Fatal(err)
	}
	if r.relay, err = relay.New(r.out, r.broker, relay.Config{}); err != nil {
		t.Fatal(err)
	}
	r.write(producer.Event{
		Topic: "order.placed", Key: "42", Type: "placed", Source: "order/42", Version: 3, ContentType: "text/plain",
		Headers: map[string]string{"shop": "north"}, Payload: []byte("lamp, lamp, candle"), CorrelationID: "request-7",
	})
	r.send()
	list := r.parked()
	if len(list) != 1 || list[0].State != outbox.Dead {
		t.Fatalf("parked are %+v", list)
	}
	r.dead = list[0]
	return r
}

func (r *editRig[TX]) write(e producer.Event) {
	r.Helper()
	err := r.out.Transact(r.Context(), func(ctx context.Context, w *producer.Writer[TX]) error {
		_, err := w.Write(ctx, e)
		return err
	})
	if err != nil {
		r.Fatal(err)
	}
}

func (r *editRig[TX]) send() {
	r.Helper()
	if _, err := r.relay.RunOnce(r.Context()); err != nil {
		r.Fatal(err)
	}
}

func (r *editRig[TX]) parked() []outbox.Parked {
	r.Helper()
	list, err := r.out.ListParked(r.Context(), outbox.Filter{})
	if err != nil {
		r.Fatal(err)
	}
	return list
}

// edit gives the dead event another payload.
func (r *editRig[TX]) edit(payload string) (uuid.UUID, error) {
	return r.out.Edit(r.Context(), r.dead.ID, "too many lamps", func(c *producer.Content) error {
		c.Payload = []byte(payload)
		return nil
	})
}

func (r *editRig[TX]) mustEdit(payload string) uuid.UUID {
	r.Helper()
	id, err := r.edit(payload)
	if err != nil {
		r.Fatal(err)
	}
	return id
}

// expectSent checks the payloads that the broker has got.
func (r *editRig[TX]) expectSent(want ...string) {
	r.Helper()
	r.send()
	var got []string
	for _, m := range r.broker.got {
		got = append(got, string(m.Payload))
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		r.Errorf("sent are %q, want %q", got, want)
	}
}

func editSends[TX any](r *editRig[TX]) {
	id, err := r.out.Edit(r.Context(), r.dead.ID, "too many lamps", func(c *producer.Content) error {
		if string(c.Payload) != "lamp, lamp, candle" || c.Headers["shop"] != "north" || c.ContentType != "text/plain" {
			r.Errorf("content is %+v", c)
		}
		copy(c.Payload, "LAMP")
		c.Payload, c.Headers["lamps"], c.SchemaVersion = c.Payload[:4], "1", 2
		return nil
	})
	if err != nil {
		r.Fatal(err)
	}
	r.expectSent("LAMP")
	e, err := transport.Parse("order.placed", r.broker.got[0])
	if err != nil {
		r.Fatal(err)
	}
	if e.ID != id || e.Key != "42" || e.Type != "placed" || e.Source != "order/42" || e.Version != 3 || e.CorrelationID != "request-7" ||
		e.Headers["shop"] != "north" || e.Headers["lamps"] != "1" || e.SchemaVersion != 2 || e.ContentType != "text/plain" {
		r.Errorf("sent is %+v", e)
	}
	if e.Digest != transport.ContentDigest(&e) || e.Digest == r.dead.Digest {
		r.Errorf("digest of the edited event is %v", e.Digest)
	}
	p := r.parked()[0]
	want := "edited as " + id.String() + ": too many lamps"
	if p.State != outbox.Discarded || p.Reason != want || string(p.Payload) != "lamp, lamp, candle" || len(p.Headers) != 1 {
		r.Errorf("original is %+v, want the reason %q", p, want)
	}
	attempts, err := r.out.Attempts(r.Context(), r.dead.ID, 0)
	if err != nil || attempts[len(attempts)-1].Outcome != "discarded" || attempts[len(attempts)-1].Error != want {
		r.Errorf("attempts are %+v, %v", attempts, err)
	}
}

func editRepeats[TX any](r *editRig[TX]) {
	stopped := errors.New("process died")
	r.store.before = stopped
	first, err := r.edit("lamp")
	if !errors.Is(err, stopped) || first == uuid.Nil || r.parked()[0].State != outbox.Dead {
		r.Fatalf("Edit gives %v, %v", first, err)
	}
	r.store.before, r.store.after = nil, stopped
	if again, err := r.edit("lamp"); !errors.Is(err, stopped) || again != first {
		r.Fatalf("Edit gives %v, %v, want %v", again, err, first)
	}
	r.store.after = nil
	if again := r.mustEdit("lamp"); again != first {
		r.Errorf("copies are %v and %v", first, again)
	}
	if p := r.parked()[0]; p.State != outbox.Discarded {
		r.Errorf("original is %+v", p)
	}
	r.expectSent("lamp")
}

func editAgain[TX any](r *editRig[TX]) {
	lamp := r.mustEdit("lamp")
	candle := r.mustEdit("candle")
	if lamp == candle || lamp == r.dead.ID {
		r.Errorf("copies are %v and %v of %v", lamp, candle, r.dead.ID)
	}
	if again := r.mustEdit("lamp"); again != lamp {
		r.Errorf("copies of the same content are %v and %v", lamp, again)
	}
	r.expectSent("candle", "lamp")
}

func editDiscarded[TX any](r *editRig[TX]) {
	if _, err := r.out.Discard(r.Context(), outbox.Filter{}, "order was a test"); err != nil {
		r.Fatal(err)
	}
	r.mustEdit("lamp")
	if p := r.parked()[0]; p.State != outbox.Discarded || p.Reason != "order was a test" {
		r.Errorf("original is %+v", p)
	}
	r.expectSent("lamp")
}

func editRefuses[TX any](r *editRig[TX]) {
	refused := errors.New("changed my mind")
	keep := func(*producer.Content) error { return nil }
	for name, c := range map[string]struct {
		id     uuid.UUID
		reason string
		edit   func(c *producer.Content) error
		is     error
		says   string
	}{
		"unknown":       {uuid.New(), "reason", keep, producer.ErrNotEditable, "unknown or not parked"},
		"no reason":     {r.dead.ID, "", keep, nil, "reason is required"},
		"long reason":   {r.dead.ID, strings.Repeat("x", 1000), func(c *producer.Content) error { c.Payload = nil; return nil }, nil, "reason: has"},
		"unchanged":     {r.dead.ID, "reason", keep, nil, "content is unchanged"},
		"error of edit": {r.dead.ID, "reason", func(*producer.Content) error { return refused }, refused, ""},
		"reserved name": {r.dead.ID, "reason", func(c *producer.Content) error { c.Headers["boxpair-key"] = "1"; return nil }, nil, "Headers: the name"},
	} {
		id, err := r.out.Edit(r.Context(), c.id, c.reason, c.edit)
		if err == nil || id != uuid.Nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
			r.Errorf("%s: %v, %v", name, id, err)
		}
	}
	if p := r.parked(); len(p) != 1 || p[0].State != outbox.Dead {
		r.Errorf("parked are %+v", p)
	}
	r.expectSent()
}

func editsRace[TX any](r *editRig[TX]) {
	var wg sync.WaitGroup
	ids := make([]uuid.UUID, 4)
	for i := range ids {
		wg.Go(func() {
			var err error
			if ids[i], err = r.edit("lamp"); err != nil {
				r.Error(err)
			}
		})
	}
	wg.Wait()
	if len(slices.Compact(ids)) != 1 {
		r.Errorf("copies are %v", ids)
	}
	r.expectSent("lamp")
}
