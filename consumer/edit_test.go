package consumer_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

// unsettled is a store whose next discards fail: before they did anything, or after it.
type unsettled[TX any] struct {
	inbox.Store[TX]
	before, after error
}

func (u *unsettled[TX]) FindConsumer(ctx context.Context, name string) (int, error) {
	return u.Store.(inbox.ConsumerFinder).FindConsumer(ctx, name)
}

func (u *unsettled[TX]) DiscardMessages(ctx context.Context, f inbox.Filter, reason string) ([]uuid.UUID, error) {
	if u.before != nil {
		return nil, u.before
	}
	ids, err := u.Store.DiscardMessages(ctx, f, reason)
	return ids, errors.Join(err, u.after)
}

// editor is the inbox of an operator without handlers, and a handler that takes only "lamp" and
// "candle".
type editor[TX any] struct {
	*testing.T
	db      *database[TX]
	store   *unsettled[TX]
	inbox   *consumer.Inbox[TX]
	running *consumer.Inbox[TX]
	handler *consumer.Handler[TX]
	events  []transport.Event
	got     []message.Metadata
}

func newEditor[TX any](t *testing.T, db *database[TX]) *editor[TX] {
	e := &editor[TX]{T: t, db: db, store: &unsettled[TX]{Store: db.Store}}
	e.running, e.handler = handle(t, db, consumer.Config{}, consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}},
		func(ctx context.Context, w *consumer.Work[TX], m *message.Message) error {
			if p := string(m.Payload); p != "lamp" && p != "candle" {
				return consumer.Reject(errHandler)
			}
			e.events, e.got = append(e.events, w.Event()), append(e.got, m.Metadata)
			return db.Do(ctx, w)
		})
	var err error
	if e.inbox, err = consumer.New[TX](e.store, consumer.Config{Service: "operator"}); err != nil {
		t.Fatal(err)
	}
	m := message.NewMessage(number(1).String(), []byte("lamp, lamp"))
	m.Metadata = message.Metadata{
		transport.MetaKey: "42", "shop": "north", transport.MetaDigest: strings.Repeat("ab", 16),
		transport.MetaSignature: "1; key; abc", transport.MetaSigned: "shop", transport.MetaCorrelationID: "request-7",
	}
	e.consume(m)
	return e
}

func (e *editor[TX]) consume(m *message.Message) {
	e.Helper()
	if err := e.handler.Consume(m); err != nil {
		e.Fatal(err)
	}
}

func (e *editor[TX]) edit(payload string) (uuid.UUID, error) {
	return e.inbox.Edit(e.Context(), e.handler.Name(), number(1), "too many lamps", func(c *consumer.Content) error {
		c.Payload = []byte(payload)
		return nil
	})
}

func (e *editor[TX]) mustEdit(payload string) uuid.UUID {
	e.Helper()
	id, err := e.edit(payload)
	if err != nil {
		e.Fatal(err)
	}
	return id
}

// run runs what is due, and checks the number of effects.
func (e *editor[TX]) run(effects int) {
	e.Helper()
	if err := e.running.RunOnce(e.Context()); err != nil {
		e.Fatal(err)
	}
	e.db.WantEffects(e.T, effects)
}

func (e *editor[TX]) original() inbox.Parked {
	e.Helper()
	list, err := e.inbox.ListParked(e.Context(), inbox.Filter{IDs: []uuid.UUID{number(1)}})
	if err != nil || len(list) != 1 {
		e.Fatalf("original is %+v, %v", list, err)
	}
	return list[0]
}

func TestEditedMessageIsHandledInsteadOfTheOriginal(t *testing.T) {
	t.Parallel()
	onEach(t, editHandled[pgx.Tx], editHandled[*sql.Tx])
}

func editHandled[TX any](t *testing.T, db *database[TX]) {
	e := newEditor(t, db)
	id, err := e.inbox.Edit(t.Context(), e.handler.Name(), number(1), "too many lamps", func(c *consumer.Content) error {
		if string(c.Payload) != "lamp, lamp" || len(c.Headers) != 1 || c.Headers["shop"] != "north" {
			t.Errorf("content is %+v", c)
		}
		copy(c.Payload, "LAMP")
		c.Payload, c.Headers["lamps"] = []byte("lamp"), "1"
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	e.run(1)
	got, metadata := e.events[0], e.got[0]
	if got.ID != id || got.Key != "42" || got.CorrelationID != "request-7" || got.Headers["shop"] != "north" || got.Headers["lamps"] != "1" {
		t.Errorf("handled is %+v", got)
	}
	_, signed := metadata[transport.MetaSignature]
	if got.Digest != transport.ContentDigest(&got) || metadata[transport.MetaDigest] != got.Digest.String() || signed {
		t.Errorf("digest of %+v is %v", metadata, got.Digest)
	}
	want := "edited as " + id.String() + ": too many lamps"
	if p := e.original(); p.State != inbox.Discarded || p.Reason != want || string(p.Payload) != "lamp, lamp" || len(p.Metadata) != 6 {
		t.Errorf("original is %+v, want the reason %q", p, want)
	}
	e.consume(msg(1)) // a copy of the original
	e.run(1)
}

func TestEditOfAMessageIsRepeated(t *testing.T) {
	t.Parallel()
	onEach(t, editRepeated[pgx.Tx], editRepeated[*sql.Tx])
}

func editRepeated[TX any](t *testing.T, db *database[TX]) {
	e := newEditor(t, db)
	stopped := errors.New("process died")
	e.store.before = stopped
	first, err := e.edit("lamp")
	if !errors.Is(err, stopped) || first == uuid.Nil || e.original().State != inbox.Dead {
		t.Fatalf("Edit gives %v, %v", first, err)
	}
	e.run(1)
	e.store.before, e.store.after = nil, stopped
	if again, err := e.edit("lamp"); !errors.Is(err, stopped) || again != first {
		t.Fatalf("Edit gives %v, %v, want %v", again, err, first)
	}
	e.store.after = nil
	if again := e.mustEdit("lamp"); again != first {
		t.Errorf("copies are %v and %v", first, again)
	}
	e.run(1)
	if other := e.mustEdit("candle"); other == first || other == number(1) {
		t.Errorf("other content has the ID %v", other)
	}
	e.run(2)
	if p := e.original(); !strings.HasPrefix(p.Reason, "edited as "+first.String()) {
		t.Errorf("original is %+v", p)
	}
}

// TestRetryingMessageIsEdited, since a poison message may be retried for long. It is discarded first: a
// handler may be at work on it.
func TestRetryingMessageIsEdited(t *testing.T) {
	t.Parallel()
	onEach(t, retryingEdited[pgx.Tx], retryingEdited[*sql.Tx])
}

func retryingEdited[TX any](t *testing.T, db *database[TX]) {
	e := newEditor(t, db)
	ids := []uuid.UUID{number(1)}
	if got, err := e.store.RedriveMessages(t.Context(), inbox.Filter{IDs: ids, States: []inbox.State{inbox.Dead}, Limit: 1}, "again"); err != nil || len(got) != 1 {
		t.Fatalf("redriven are %v, %v", got, err)
	}
	stopped := errors.New("process died")
	e.store.before = stopped
	if id, err := e.edit("lamp"); !errors.Is(err, stopped) || id != uuid.Nil || !strings.Contains(err.Error(), "no copy is parked") {
		t.Fatalf("Edit gives %v, %v", id, err)
	}
	if list, err := e.inbox.ListParked(t.Context(), inbox.Filter{}); err != nil || len(list) != 1 || list[0].State != inbox.Retrying {
		t.Fatalf("parked are %+v, %v", list, err)
	}
	e.store.before, e.store.after = nil, stopped
	if id, err := e.edit("lamp"); !errors.Is(err, stopped) || id != uuid.Nil || e.original().State != inbox.Discarded {
		t.Fatalf("Edit gives %v, %v", id, err)
	}
	e.store.after = nil
	id := e.mustEdit("lamp")
	e.run(1)
	if e.events[0].ID != id {
		t.Errorf("handled is %+v, want %v", e.events[0], id)
	}
	if p := e.original(); p.State != inbox.Discarded || p.Reason != "edited as "+id.String()+": too many lamps" {
		t.Errorf("original is %+v", p)
	}
}

func TestMessageThatCannotBeEditedIsNotChanged(t *testing.T) {
	t.Parallel()
	onEach(t, editRefused[pgx.Tx], editRefused[*sql.Tx])
}

func editRefused[TX any](t *testing.T, db *database[TX]) {
	e := newEditor(t, db)
	forged := number(2)
	number, err := e.store.FindConsumer(t.Context(), e.handler.Name())
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.store.ParkMessage(t.Context(), inbox.Parking{Consumer: number, State: inbox.Dead, Message: &inbox.Message{
		ID: forged, Topic: "orders", Metadata: map[string]string{consumer.MetaNotVerified: "no signature"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	refused, keep := errors.New("changed my mind"), func(*consumer.Content) error { return nil }
	dead := e.original().ID
	for name, c := range map[string]struct {
		consumer string
		id       uuid.UUID
		reason   string
		edit     func(c *consumer.Content) error
		is       error
		says     string
	}{
		"unknown":          {e.handler.Name(), uuid.New(), "reason", keep, consumer.ErrNotEditable, "unknown or not parked"},
		"unknown consumer": {"nobody", dead, "reason", keep, inbox.ErrNoConsumer, `consumer "nobody"`},
		"not verified":     {e.handler.Name(), forged, "reason", keep, consumer.ErrNotEditable, "not verified"},
		"no reason":        {e.handler.Name(), dead, "", keep, nil, "a reason is required"},
		"unchanged":        {e.handler.Name(), dead, "reason", keep, nil, "content is unchanged"},
		"error of edit":    {e.handler.Name(), dead, "reason", func(*consumer.Content) error { return refused }, refused, ""},
		"reserved name": {e.handler.Name(), dead, "reason", func(c *consumer.Content) error {
			c.Headers[transport.MetaKey] = "1"
			return nil
		}, nil, "Headers: the name"},
	} {
		id, err := e.inbox.Edit(t.Context(), c.consumer, c.id, c.reason, c.edit)
		if err == nil || id != uuid.Nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v", name, id, err)
		}
	}
	list, err := e.inbox.ListParked(t.Context(), inbox.Filter{})
	if err != nil || len(list) != 2 || slices.ContainsFunc(list, func(p inbox.Parked) bool { return p.State != inbox.Dead }) {
		t.Errorf("parked are %+v, %v", list, err)
	}
	e.run(0)
}
