package boxpairtest

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/outbox"
)

func newOutbox(t testing.TB) (*sql.DB, *producer.Outbox[*sql.Tx]) {
	t.Helper()
	db, store := SQLite(t)
	outbox, err := producer.New(store, producer.Config{Name: "shop", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	return db, outbox
}

func transact(ctx context.Context, outbox *producer.Outbox[*sql.Tx], then error, events ...producer.Event) error {
	return outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
		if _, err := w.Write(ctx, events...); err != nil {
			return err
		}
		return then
	})
}

func TestRecorderKnowsWhatWasCommittedWithItsContext(t *testing.T) {
	t.Parallel()
	_, outbox := newOutbox(t)
	var r Recorder
	ctx := r.Context(t.Context())
	ok(t, transact(ctx, outbox, nil, placed("1"), placed("2")))
	undone := errors.New("undone")
	if err := transact(ctx, outbox, undone, placed("3")); !errors.Is(err, undone) {
		t.Fatal(err)
	}
	ok(t, transact(t.Context(), outbox, nil, placed("4"))) // with another context
	err := outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
		err := w.Savepoint(ctx, func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
			if _, err := w.Write(ctx, placed("5")); err != nil {
				return err
			}
			return undone
		})
		if !errors.Is(err, undone) {
			return err
		}
		_, err = w.Write(ctx, placed("6"))
		return err
	})
	ok(t, err)
	RequireWritten(t, &r, placed("1"), placed("2"), placed("6"))
	r.Reset()
	RequireWritten(t, &r)
}

func TestRecorderKnowsWhatIsWrittenInATransactionOfTheCaller(t *testing.T) {
	t.Parallel()
	db, outbox := newOutbox(t)
	var r Recorder
	ctx := r.Context(t.Context())
	tx, err := db.BeginTx(ctx, nil)
	ok(t, err)
	_, err = outbox.Tx(tx).Write(ctx, placed("1"))
	ok(t, err)
	ok(t, tx.Commit())
	RequireWritten(t, &r, placed("1"))
}

func TestRolledBackTestLeavesNothing(t *testing.T) {
	t.Parallel()
	db, outbox := newOutbox(t)
	execute(t, db, `CREATE TABLE orders (id TEXT PRIMARY KEY)`)
	for range 2 {
		r := Rollback(t, outbox, func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
			if _, err := w.DB().ExecContext(ctx, `INSERT INTO orders VALUES ('1')`); err != nil {
				return err
			}
			if _, err := w.Write(ctx, placed("2")); err != nil {
				return err
			}
			_, err := w.Write(ctx, placed("1"))
			return err
		})
		RequireWritten(t, r, placed("1"), placed("2"))
	}
	state, err := Tables(db)(t.Context())
	ok(t, err)
	if rows := state.([]string); len(rows) != 0 {
		t.Errorf("orders: %q", rows)
	}
}

func TestDifferencesAreNamed(t *testing.T) {
	t.Parallel()
	now := time.Now()
	written := Messages(t, "shop", producer.Event{
		Topic: "order.placed", Key: "1", Type: "placed", Source: "order/1", Version: 2, Payload: []byte(`{"item": "tea", "n": 1, "at": {"shelf": [1, 2]}, "old": true}`),
		Headers: map[string]string{"tenant": "a"},
	})
	if len(written) != 1 {
		t.Fatalf("%d messages", len(written))
	}
	records := func(events ...producer.Event) []outbox.Record {
		_, outbox := newOutbox(t)
		var r Recorder
		ok(t, transact(r.Context(t.Context()), outbox, nil, events...))
		return r.Events()
	}
	event := producer.Event{
		Topic: "order.placed", Key: "1", Type: "placed", Source: "order/1", Version: 2, OccurredAt: now, DeliverAt: now.Add(time.Hour),
		Payload: []byte(`{"item": "tea", "n": 1, "at": {"shelf": [1, 2]}, "old": true}`), Headers: map[string]string{"tenant": "a"},
	}
	keyed := producer.Event{Topic: "t", Source: "request", IdempotencyKey: "a", Payload: []byte("plain")}
	for name, c := range map[string]struct {
		written []producer.Event
		want    []producer.Event
		say     []string
	}{
		"equal":                          {[]producer.Event{event, keyed}, []producer.Event{event, keyed}, nil},
		"other keys in any order":        {[]producer.Event{placed("1"), placed("2")}, []producer.Event{placed("2"), placed("1")}, nil},
		"the general before the special": {[]producer.Event{placed("1"), placed("2")}, []producer.Event{{Topic: "order.placed"}, {Topic: "order.placed", Key: "1"}}, nil},
		"fields that are not named":      {[]producer.Event{event}, []producer.Event{{Topic: "order.placed"}}, nil},
		"JSON in another form": {
			[]producer.Event{event},
			[]producer.Event{{Topic: "order.placed", Payload: []byte(`{"n":1,"item":"tea","old":true,"at":{"shelf":[1,2]}}`)}}, nil,
		},
		"missing":   {nil, []producer.Event{placed("1")}, []string{"event 0 is missing: order.placed key 1 source order/1 version 1 payload 1"}},
		"another":   {[]producer.Event{placed("1")}, nil, []string{"not wanted: order.placed key 1 source order/1 version 1 payload 1"}},
		"one twice": {[]producer.Event{placed("1")}, []producer.Event{placed("1"), placed("1")}, []string{"event 1 is missing"}},
		"the order of a key": {
			[]producer.Event{{Topic: "a", Key: "1", Random: true}, {Topic: "b", Key: "1", Random: true}},
			[]producer.Event{{Topic: "b", Key: "1"}, {Topic: "a", Key: "1"}},
			[]string{`key "1": event 1 was written before event 0`},
		},
		"each field": {
			[]producer.Event{event},
			[]producer.Event{{
				Topic: "order.placed", Key: "2", Type: "other", Source: "order/2", Version: 3, SchemaVersion: 1, ContentType: "text/plain", CorrelationID: "c",
				TraceParent: "p", TraceState: "s", IdempotencyKey: "k", OccurredAt: now.Add(1), DeliverAt: now, Headers: map[string]string{"tenant": "b", "user": "u"},
				Payload: []byte(`{"item": "tea", "n": 2, "at": {"shelf": [1, 3]}, "new": null}`),
			}},
			[]string{
				"event 0, order.placed key 2 type other source order/2 version 3 payload", `Key: "1", want "2"`, `Type: "placed", want "other"`, `Source: "order/1", want "order/2"`, "Version: 2, want 3",
				"SchemaVersion: 0, want 1", `ContentType: "", want "text/plain"`, `CorrelationID: "", want "c"`, `TraceParent: "", want "p"`, `TraceState: "", want "s"`,
				`IdempotencyKey: another one, want "k"`, "OccurredAt: ", "DeliverAt: ", `Headers["tenant"]: "a", want "b"`, `Headers["user"]: missing, want "u"`,
				"Payload.n: 1, want 2", "Payload.at.shelf[1]: 2, want 3", "Payload.new: missing, want null", "Payload.old: true, want none",
			},
		},
		"a payload that is no JSON": {[]producer.Event{keyed}, []producer.Event{{Topic: "t", Payload: []byte("other")}}, []string{`Payload: "plain", want "other"`}},
	} {
		problems := strings.Join(compare(records(c.written...), c.want), "\n")
		if (problems == "") != (c.say == nil) {
			t.Errorf("%s: %s", name, problems)
		}
		for _, say := range c.say {
			if !strings.Contains(problems, say) {
				t.Errorf("%s: it does not say %s, but\n%s", name, say, problems)
			}
		}
	}
}

func TestMessageIsDeliveredTwiceAndAfterACrash(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	handle, err := s.subject(s.ship).Start()
	ok(t, err)
	msgs := Messages(t, "shop", placed("1"), placed("2"))
	shipped := producer.Event{Topic: "order.shipped", Key: "1"}
	Crash(t, handle, BeforeCommit, msgs[0])
	RequireWritten(t, Deliver(t, handle, msgs[0], msgs[0]), shipped)
	Crash(t, handle, AfterCommit, msgs[1])
	handle, err = s.subject(s.ship).Start() // a new process
	ok(t, err)
	RequireWritten(t, Deliver(t, handle, msgs[1], msgs[0]))
	state, err := Tables(s.db)(t.Context())
	ok(t, err)
	if rows := state.([]string); !slices.Equal(rows, []string{"shipments: id=1", "shipments: id=2", "stock: item=book n=98 last="}) {
		t.Errorf("shipments: %q", rows)
	}
}

func TestWhatIsWrittenTwiceIsRecordedOnce(t *testing.T) {
	t.Parallel()
	_, outbox := newOutbox(t)
	ok(t, transact(t.Context(), outbox, nil, placed("1")))
	var r Recorder
	ok(t, transact(r.Context(t.Context()), outbox, nil, placed("1")))
	RequireWritten(t, &r)
}

func TestRecorderKeepsCopies(t *testing.T) {
	t.Parallel()
	_, outbox := newOutbox(t)
	var r Recorder
	e := placed("1")
	ok(t, transact(r.Context(t.Context()), outbox, nil, e))
	e.Payload[0] = '2'
	RequireWritten(t, &r, placed("1"))
}

// TestWriterOfTheHandlersTransactionIsRecordedWithIt and not by itself.
func TestWriterOfTheHandlersTransactionIsRecordedWithIt(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	outbox, err := producer.New(s.store, producer.Config{Name: "warehouse", Logger: quiet})
	ok(t, err)
	inbox, err := consumer.New(s.store, consumer.Config{Service: "warehouse", Logger: quiet})
	ok(t, err)
	failures := 2
	h, err := inbox.Handle("ship", func(ctx context.Context, w *consumer.Work[*sql.Tx], _ *message.Message) error {
		if _, err := outbox.Tx(w.DB()).Write(ctx, producer.Event{Topic: "order.shipped", Source: "s", Version: 1}); err != nil {
			return err
		}
		if failures--; failures >= 0 {
			return errors.New("again")
		}
		return nil
	}, consumer.HandlerConfig{})
	ok(t, err)
	var r Recorder
	msg := Messages(t, "shop", placed("1"))[0]
	msg.SetContext(r.Context(t.Context()))
	ok(t, h.Consume(msg))
	RequireWritten(t, &r, producer.Event{Topic: "order.shipped"})
}

func TestNameThatIsNotThereCannotBeLeftOut(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	state, err := Tables(s.db, "shipments", "n", "stock.last")(t.Context())
	ok(t, err)
	if rows := state.([]string); !slices.Equal(rows, []string{"stock: item=book"}) {
		t.Errorf("rows: %q", rows)
	}
	if _, err := Tables(s.db, "stok")(t.Context()); err == nil || !strings.Contains(err.Error(), `"stok"`) {
		t.Errorf("it says %v", err)
	}
}

func TestMessagesAreThoseOfTheProducer(t *testing.T) {
	t.Parallel()
	_, outbox := newOutbox(t)
	var ids []uuid.UUID
	events := []producer.Event{placed("1"), placed("1"), {Topic: "t", Source: "request", IdempotencyKey: "k"}}
	err := outbox.Transact(t.Context(), func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
		written, err := w.Write(ctx, events...)
		ids = written
		return err
	})
	ok(t, err)
	for i, msg := range Messages(t, "shop", events...) {
		if msg.UUID != ids[i].String() {
			t.Errorf("message %d: %s, want %s", i, msg.UUID, ids[i])
		}
	}
}

// failing notes that a test has failed.
type failing struct {
	testing.TB
	failed bool
}

func (f *failing) Fatalf(string, ...any) { f.failed = true; panic(f) }
func (f *failing) Errorf(string, ...any) { f.failed = true }

// fails tells whether test fails.
func fails(t *testing.T, test func(t testing.TB)) bool {
	t.Helper()
	f := &failing{TB: t}
	func() {
		defer func() {
			if v := recover(); v != nil && v != f {
				panic(v)
			}
		}()
		test(f)
	}()
	return f.failed
}

func TestWhatIsWrongFailsTheTest(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	_, outbox := newOutbox(t)
	no := errors.New("no")
	handle, err := s.subject(func(context.Context, *consumer.Work[*sql.Tx], *message.Message) error { return no }).Start()
	ok(t, err)
	msgs := Messages(t, "shop", placed("1"), placed("2"))
	known := Messages(t, "shop", placed("4"))[0]
	handleAll, err := s.subject(s.ship).Start()
	ok(t, err)
	Deliver(t, handleAll, known)
	ok(t, transact(t.Context(), outbox, nil, placed("1")))
	for name, test := range map[string]func(t testing.TB){
		"an event that is missing":        func(t testing.TB) { RequireWritten(t, &Recorder{}, placed("1")) },
		"a handler that fails":            func(t testing.TB) { Deliver(t, handle, msgs[0]) },
		"a handler that fails at a crash": func(t testing.TB) { Crash(t, handle, BeforeCommit, msgs[1]) },
		"a handler that panics": func(t testing.TB) {
			handle, err := s.subject(func(context.Context, *consumer.Work[*sql.Tx], *message.Message) error { panic("boom") }).Start()
			ok(t, err)
			Deliver(t, handle, Messages(t, "shop", placed("5"))[0])
		},
		"a message that is set aside": func(t testing.TB) {
			altered := placed("4")
			altered.Payload = []byte("another")
			Deliver(t, handleAll, Messages(t, "shop", altered)[0])
		},
		"a message that is not rejected": func(t testing.TB) { RequireRejected(t, handleAll, Messages(t, "shop", placed("6"))[0]) },
		"a COMMIT that fails": func(t testing.TB) {
			handle, err := s.subject(func(ctx context.Context, w *consumer.Work[*sql.Tx], _ *message.Message) error {
				_, err := w.DB().ExecContext(ctx, `PRAGMA defer_foreign_keys = ON`)
				if err == nil {
					_, err = w.DB().ExecContext(ctx, `INSERT INTO parcels VALUES ('none')`)
				}
				return err
			}).Start()
			ok(t, err)
			Crash(t, handle, AfterCommit, Messages(t, "shop", placed("7"))[0])
		},
		"a duplicate that shall crash": func(t testing.TB) { Crash(t, handleAll, AfterCommit, known) },
		"an invalid event":             func(t testing.TB) { Messages(t, "shop", producer.Event{}) },
		"a producer without a name":    func(t testing.TB) { Messages(t, "", placed("1")) },
		"an error in a transaction": func(t testing.TB) {
			Rollback(t, outbox, func(context.Context, *producer.Writer[*sql.Tx]) error { return no })
		},
		"a queued event that cannot be written": func(t testing.TB) {
			Rollback(t, outbox, func(_ context.Context, w *producer.Writer[*sql.Tx]) error {
				other := placed("1")
				other.Payload = []byte("other")
				_, err := w.Write(t.Context(), other)
				return err
			})
		},
		"a finding": func(t testing.TB) {
			Explore(t, func(t testing.TB) Subject {
				s := newShop(t)
				return s.subject(func(context.Context, *consumer.Work[*sql.Tx], *message.Message) error { return no }, placed("1"))
			})
		},
		"a subject without a handler": func(t testing.TB) { Explore(t, func(testing.TB) Subject { return Subject{} }) },
	} {
		if !fails(t, test) {
			t.Errorf("%s does not fail the test", name)
		}
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
