package boxpairtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/sqlite"
)

var quiet = slog.New(slog.DiscardHandler)

// shop is what handlers of these tests use.
type shop struct {
	db    *sql.DB
	store *sqlite.Store
	mails []string
	seen  map[string]bool
	calls int
}

func newShop(t testing.TB) *shop {
	t.Helper()
	db, store := SQLite(t)
	execute(t, db, `CREATE TABLE shipments (id TEXT PRIMARY KEY)`)
	execute(t, db, `CREATE TABLE parcels (shipment TEXT REFERENCES shipments)`)
	execute(t, db, `CREATE TABLE stock (item TEXT PRIMARY KEY, n INTEGER, last TEXT)`)
	execute(t, db, `INSERT INTO stock VALUES ('book', 100, '')`)
	return &shop{db: db, store: store, seen: make(map[string]bool)}
}

func execute(t testing.TB, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// subject is the service whose handler is fn.
func (s *shop) subject(fn consumer.HandlerFunc[*sql.Tx], events ...producer.Event) Subject {
	tables := Tables(s.db)
	return Subject{
		Start: func() (message.NoPublishHandlerFunc, error) {
			outbox, err := producer.New(s.store, producer.Config{Name: "warehouse", Logger: quiet})
			if err != nil {
				return nil, err
			}
			inbox, err := consumer.New(s.store, consumer.Config{Service: "warehouse", Logger: quiet}, consumer.WithOutbox(outbox))
			if err != nil {
				return nil, err
			}
			h, err := inbox.Handle("ship", fn, consumer.HandlerConfig{})
			if err != nil {
				return nil, err
			}
			return h.Consume, nil
		},
		Events: events,
		State: func(ctx context.Context) (any, error) {
			rows, err := tables(ctx)
			return map[string]any{"tables": rows, "mails": s.mails, "calls": s.calls}, err
		},
	}
}

func placed(id string) producer.Event {
	return producer.Event{Topic: "order.placed", Key: id, Source: "order/" + id, Version: 1, Payload: []byte(id)}
}

// found explores and returns the findings.
func found(t *testing.T, setup func(t testing.TB) Subject) (findings []string, err error) {
	t.Helper()
	_, err = explore(t, setup, func(finding string) { findings = append(findings, finding) })
	return findings, err
}

// ship is a handler without faults.
func (s *shop) ship(ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
	if _, err := w.DB().ExecContext(ctx, `INSERT INTO shipments VALUES (?)`, string(msg.Payload)); err != nil {
		return err
	}
	if _, err := w.DB().ExecContext(ctx, `UPDATE stock SET n = n - 1 WHERE item = 'book'`); err != nil {
		return err
	}
	_, err := w.Write(ctx, producer.Event{Topic: "order.shipped", Key: string(msg.Payload), Payload: msg.Payload})
	return err
}

func TestHandlerWithoutFaultsIsFoundToHaveNone(t *testing.T) {
	t.Parallel()
	Explore(t, func(t testing.TB) Subject {
		s := newShop(t)
		return s.subject(func(ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
			if err := s.ship(ctx, w, msg); err != nil {
				return err
			}
			_, err := w.Write(ctx, producer.Event{Topic: "order.queued"})
			return err
		}, placed("o-1"), placed("o-2"), placed("o-3"))
	})
}

// planted is a handler with a fault, and what is found.
type planted struct {
	handle func(s *shop, ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error
	around func(s *shop, next message.NoPublishHandlerFunc) message.NoPublishHandlerFunc
	want   []string
}

var escaping = map[string]planted{
	"a mail before COMMIT": {
		handle: func(s *shop, ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
			if _, err := w.DB().ExecContext(ctx, `INSERT INTO shipments VALUES (?)`, string(msg.Payload)); err != nil {
				return err
			}
			s.mails = append(s.mails, "shipped "+string(msg.Payload))
			_, err := w.DB().ExecContext(ctx, `UPDATE stock SET n = n - 1`)
			return err
		},
		want: []string{"effect outside of the transaction, before statement 2 (UPDATE stock SET n = n - 1)", `+ "shipped o-1"`},
	},
	"a mail after the last statement": {
		handle: func(s *shop, ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
			if err := s.ship(ctx, w, msg); err != nil {
				return err
			}
			s.mails = append(s.mails, "shipped "+string(msg.Payload))
			return nil
		},
		want: []string{"effect outside of the transaction, after statement 3 (the write of events), or once in a process"},
	},
	"a mail about an error": {
		handle: func(s *shop, ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
			err := s.ship(ctx, w, msg)
			if err != nil {
				s.mails = append(s.mails, "failed")
			}
			return err
		},
		want: []string{"before statement 1 (INSERT INTO shipments VALUES (?)): the handler has met the error, and has left", `+ "failed"`},
	},
	"an effect before a panic": {
		handle: func(s *shop, _ context.Context, _ *consumer.Work[*sql.Tx], msg *message.Message) error {
			s.mails = append(s.mails, "shipped")
			panic("boom " + string(msg.Payload))
		},
		want: []string{"the handler fails: handler panicked: boom o-1", "the handler fails: handler panicked: boom o-2", "an effect outside of the transaction, somewhere in the handler", `+ "shipped"`},
	},
	"an effect of a rejected message": {
		handle: func(s *shop, _ context.Context, _ *consumer.Work[*sql.Tx], _ *message.Message) error {
			s.mails = append(s.mails, "rejected")
			return consumer.Reject(errors.New("no such item"))
		},
		want: []string{"an effect outside of the transaction, somewhere in the handler", `+ "rejected"`},
	},
	"the database in place of the transaction": {
		handle: func(s *shop, ctx context.Context, _ *consumer.Work[*sql.Tx], msg *message.Message) error {
			_, err := s.db.ExecContext(ctx, `INSERT INTO shipments VALUES (?)`, string(msg.Payload))
			return err
		},
		want: []string{"the handler fails: ", "in place of w.DB()"},
	},
	"a count around the inbox": {
		handle: (*shop).ship,
		around: func(s *shop, next message.NoPublishHandlerFunc) message.NoPublishHandlerFunc {
			return func(msg *message.Message) error {
				if err := next(msg); err != nil {
					return err
				}
				s.calls++
				return nil
			}
		},
		want: []string{"a copy of the message changes", `- "calls": 1`, `+ "calls": 2`, "that comes to a new process changes"},
	},
}

var changing = map[string]planted{
	"the time in a payload": {
		handle: func(_ *shop, ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
			if _, err := w.DB().ExecContext(ctx, `INSERT INTO shipments VALUES (?)`, string(msg.Payload)); err != nil {
				return err
			}
			_, err := w.Write(ctx, producer.Event{Topic: "order.shipped", Payload: fmt.Appendf(nil, `{"at": %d, "n": 1}`, time.Now().UnixNano())})
			return err
		},
		want: []string{"written event 0 differs between runs, after statement 2 (the write of events)", "Payload.at is "},
	},
	"events in the order of a map": {
		handle: func(_ *shop, ctx context.Context, w *consumer.Work[*sql.Tx], _ *message.Message) error {
			for key := range map[string]bool{"a": true, "b": true, "c": true} {
				if _, err := w.Write(ctx, producer.Event{Topic: "part.shipped", Key: key}); err != nil {
					return err
				}
			}
			return nil
		},
		want: []string{"differs between runs", "Key is "},
	},
	"a random source": {
		handle: func(_ *shop, ctx context.Context, w *consumer.Work[*sql.Tx], _ *message.Message) error {
			_, err := w.Write(ctx, producer.Event{Topic: "order.shipped", Random: true})
			return err
		},
		want: []string{"written event 0 differs between runs", "dispatch ID is "},
	},
	"an error that is ignored": {
		handle: func(_ *shop, ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
			_, _ = w.DB().ExecContext(ctx, `INSERT INTO shipments VALUES (?)`, string(msg.Payload))
			return nil
		},
		want: []string{"returns nil although statement 1 (INSERT INTO shipments VALUES (?)) has failed"},
	},
	"an error that is ignored between others": {
		handle: func(_ *shop, ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
			_, _ = w.DB().ExecContext(ctx, `INSERT INTO shipments VALUES (?)`, string(msg.Payload))
			_, err := w.DB().ExecContext(ctx, `UPDATE stock SET n = n - 1`)
			return err
		},
		want: []string{"returns nil although statement 1 (INSERT INTO shipments VALUES (?)) has failed"},
	},
	"a memory that outlasts a rollback": {
		handle: func(s *shop, ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
			if s.seen[msg.UUID] {
				return nil
			}
			s.seen[msg.UUID] = true
			return s.ship(ctx, w, msg)
		},
		want: []string{"statement 1 (INSERT INTO shipments VALUES (?)) differs between runs: none"},
	},
}

var others = map[string]planted{
	"a COMMIT that fails": {
		handle: func(_ *shop, ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
			if _, err := w.DB().ExecContext(ctx, `PRAGMA defer_foreign_keys = ON`); err != nil {
				return err
			}
			_, err := w.DB().ExecContext(ctx, `INSERT INTO parcels VALUES (?)`, string(msg.Payload))
			return err
		},
		want: []string{"COMMIT fails: ", "FOREIGN KEY"},
	},
	"the first to come gets it": {
		handle: func(_ *shop, ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
			_, err := w.DB().ExecContext(ctx, `UPDATE stock SET last = last || ?`, string(msg.Payload))
			return err
		},
		want: []string{"the messages in the order [1 0] leave another state"},
	},
	"an event of the first to come": {
		handle: func(_ *shop, ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
			var n int
			if err := w.DB().QueryRowContext(ctx, `UPDATE stock SET n = n - 1 RETURNING n`).Scan(&n); err != nil || n != 99 {
				return err
			}
			_, err := w.Write(ctx, producer.Event{Topic: "winner", Payload: msg.Payload})
			return err
		},
		want: []string{"the messages in the order [1 0] leave another state", "+ event winner payload o-2"},
	},
	"an order of messages": {
		handle: func(_ *shop, ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
			_, err := w.DB().ExecContext(ctx, `UPDATE stock SET last = ?`, string(msg.Payload))
			return err
		},
		want: []string{"the messages in the order [1 0] leave another state than in the order [0 1]", "last=o-2", "last=o-1"},
	},
	"a failure": {
		handle: func(*shop, context.Context, *consumer.Work[*sql.Tx], *message.Message) error {
			return errors.New("no stock")
		},
		want: []string{"message 0 (order.placed, key o-1): the handler fails: no stock"},
	},
}

func TestPlantedFaultsAreFound(t *testing.T) {
	t.Parallel()
	for _, faults := range []map[string]planted{escaping, changing, others} {
		for name, c := range faults {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				c.found(t)
			})
		}
	}
}

func (c planted) found(t *testing.T) {
	t.Helper()
	findings, err := found(t, func(t testing.TB) Subject {
		s := newShop(t)
		subject := s.subject(func(ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
			return c.handle(s, ctx, w, msg)
		}, placed("o-1"), placed("o-2"))
		if c.around != nil {
			start := subject.Start
			subject.Start = func() (message.NoPublishHandlerFunc, error) {
				next, err := start()
				return c.around(s, next), err
			}
		}
		return subject
	})
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(findings, "\n")
	for _, want := range c.want {
		if !strings.Contains(all, want) {
			t.Errorf("not found: %s", want)
		}
	}
	if t.Failed() || testing.Verbose() {
		t.Logf("findings:\n%s", all)
	}
}

func TestTransactionOfAHandlersOwnIsFound(t *testing.T) {
	t.Parallel()
	findings, err := found(t, func(t testing.TB) Subject {
		s := newShop(t)
		_, store := SQLite(t)
		audit, err := producer.New(store, producer.Config{Name: "audit"})
		if err != nil {
			t.Fatal(err)
		}
		return s.subject(func(ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
			err := audit.Transact(context.WithoutCancel(ctx), func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
				_, err := w.Write(ctx, producer.Event{Topic: "audit", Source: msg.UUID, Version: 1})
				return err
			})
			if err != nil {
				return err
			}
			return s.ship(ctx, w, msg)
		}, placed("o-1"))
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(findings) != 1 || !strings.Contains(findings[0], "commits another transaction, before statement 1") {
		t.Errorf("findings: %q", findings)
	}
}

func TestOrderOfAKeyIsKeptOnRequest(t *testing.T) {
	t.Parallel()
	Explore(t, func(t testing.TB) Subject {
		s := newShop(t)
		first, second := placed("o-1"), placed("o-1")
		second.Version, second.Payload = 2, []byte("later")
		subject := s.subject(func(ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
			_, err := w.DB().ExecContext(ctx, `UPDATE stock SET last = ?`, string(msg.Payload))
			return err
		}, first, second)
		subject.OrderByKey = true
		return subject
	})
}

func TestMessageThatNeedsAnotherComesAgainAfterIt(t *testing.T) {
	t.Parallel()
	Explore(t, func(t testing.TB) Subject {
		s := newShop(t)
		return s.subject(func(ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
			if string(msg.Payload) == "o-2" {
				var n int
				if err := w.DB().QueryRowContext(ctx, `SELECT count(*) FROM shipments WHERE id = 'o-1'`).Scan(&n); err != nil {
					return err
				}
				if n == 0 {
					return errors.New("o-1 comes first")
				}
			}
			return s.ship(ctx, w, msg)
		}, placed("o-1"), placed("o-2"))
	})
}

func TestErrorOfAnOptionalEffectMayBeHandled(t *testing.T) {
	t.Parallel()
	Explore(t, func(t testing.TB) Subject {
		s := newShop(t)
		return s.subject(func(ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
			if err := s.ship(ctx, w, msg); err != nil {
				return err
			}
			_ = w.Savepoint(ctx, func(ctx context.Context, w *consumer.Work[*sql.Tx]) error {
				_, err := w.DB().ExecContext(ctx, `UPDATE stock SET n = n - 1`)
				return err
			})
			return nil
		}, placed("o-1"), placed("o-2"))
	})
}

func TestRejectedMessageMustChangeNothing(t *testing.T) {
	t.Parallel()
	handle := func(s *shop) consumer.HandlerFunc[*sql.Tx] {
		return func(ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
			if string(msg.Payload) == "bad" {
				return consumer.Reject(errors.New("no order"))
			}
			return s.ship(ctx, w, msg)
		}
	}
	Explore(t, func(t testing.TB) Subject {
		s := newShop(t)
		return s.subject(handle(s), placed("o-1"), placed("bad"), placed("o-2"))
	})
	s := newShop(t)
	start, err := s.subject(handle(s)).Start()
	ok(t, err)
	RequireRejected(t, start, Messages(t, "shop", placed("bad"))[0])
}

func TestMessageOfAnotherProgramIsExplored(t *testing.T) {
	t.Parallel()
	foreign := message.NewMessage("6f2c1a1e-1f7e-5d0b-9d7e-3f0f5c1d2e3a", []byte("o-1"))
	seen := 0
	type tenant struct{}
	foreign.SetContext(context.WithValue(t.Context(), tenant{}, "acme"))
	Explore(t, func(t testing.TB) Subject {
		s := newShop(t)
		subject := s.subject(func(ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
			if msg.Context().Value(tenant{}) == "acme" {
				seen++
			}
			return s.ship(ctx, w, msg)
		})
		subject.Messages = []*message.Message{foreign}
		return subject
	})
	if seen == 0 {
		t.Error("the context of the message was lost")
	}
}

// TestMiddlewareThatRepeatsFindsADeadProcess after a crash.
func TestMiddlewareThatRepeatsFindsADeadProcess(t *testing.T) {
	t.Parallel()
	Explore(t, func(t testing.TB) Subject {
		s := newShop(t)
		subject := s.subject(s.ship, placed("o-1"), placed("o-2"))
		start := subject.Start
		subject.Start = func() (message.NoPublishHandlerFunc, error) {
			next, err := start()
			return func(msg *message.Message) (err error) {
				for range 3 {
					if err = next(msg); err == nil {
						return nil
					}
				}
				return err
			}, err
		}
		return subject
	})
}

func TestHandlerThatIsNotRunIsNoSuccess(t *testing.T) {
	t.Parallel()
	_, err := found(t, func(t testing.TB) Subject {
		s := newShop(t)
		subject := s.subject(s.ship)
		subject.Messages = []*message.Message{message.NewMessage("no dispatch ID", []byte("o-1"))}
		return subject
	})
	if err == nil || !strings.Contains(err.Error(), "set aside as dead") {
		t.Errorf("it says %v", err)
	}
}

func TestSubjectThatLacksSomethingIsRefused(t *testing.T) {
	t.Parallel()
	_, err := found(t, func(testing.TB) Subject { return Subject{} })
	for _, want := range []string{"Subject.Start is nil", "Subject.State is nil", "Subject.Events is empty"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
