package storetest

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	watermill "github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/consumer/request"
	"github.com/boxpair/boxpair/middleware/idempotent"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/transport"
)

// MisuseFixture is an empty outbox and inbox, for one test, and what a handler can do to its transaction there.
type MisuseFixture[TX any] struct {
	Store interface {
		producer.Store[TX]
		consumer.Store[TX]
		consumer.EffectStore[TX]
		request.Store[TX]
	}
	// Effect and Effects are those of an [InboxFixture].
	Effect  func(ctx context.Context, tx TX, name string) error
	Effects func(ctx context.Context) ([]string, error)
	// Exec runs a statement without arguments in tx.
	Exec func(ctx context.Context, tx TX, sql string) error
	// Commit and Rollback are the methods of tx.
	Commit, Rollback func(ctx context.Context, tx TX) error
	// LeaveOpen begins to read rows in tx, and does not close them.
	LeaveOpen func(ctx context.Context, tx TX) error
	// LeftOpenCloses tells that rows that were left open are closed with the function.
	LeftOpenCloses bool
	// Chains tells that the database has COMMIT AND CHAIN.
	Chains bool
	// Past runs statements on the connection of tx where the store does not see them. Nil: there is no way.
	Past func(ctx context.Context, tx TX, sql ...string) error
	// OneWriter is that of an [InboxFixture].
	OneWriter bool
}

// Misuse tests that a handler that misuses its transaction loses nothing: no message is acknowledged without its
// effect, none has two effects, no neighbour of a group is hurt, and an error says what was done wrong. It tries
// each misuse in each way in which a function is given a transaction. open returns a new, empty store for each test.
// only limits them to ways of those names, as go test -v shows them; defaults to all.
func Misuse[TX any](t *testing.T, open func(t *testing.T) MisuseFixture[TX], only ...string) {
	t.Helper()
	for mode, run := range map[string]func(*misuse[TX]){
		"handler alone":                               (*misuse[TX]).alone,
		"handler with an optimistic claim":            (*misuse[TX]).optimistic,
		"handler in a group":                          (*misuse[TX]).group,
		"handler in a batch":                          (*misuse[TX]).batch,
		"handler after it was parked":                 (*misuse[TX]).parkedBefore,
		"handler of what follows an effect elsewhere": (*misuse[TX]).afterEffect,
		"handler of an idempotent request":            (*misuse[TX]).request,
		"handler of Transact":                         (*misuse[TX]).transact,
		"handler of a group, with an error besides":   (*misuse[TX]).groupWithError,
		"handler alone, with an error besides":        (*misuse[TX]).aloneWithError,
	} {
		if len(only) > 0 && !slices.Contains(only, mode) {
			continue
		}
		t.Run(mode, func(t *testing.T) {
			for _, x := range misuses[TX]() {
				t.Run(x.fact, func(t *testing.T) {
					t.Parallel()
					f := open(t)
					if x.chains && !f.Chains || x.past && f.Past == nil {
						return // it cannot be done there
					}
					run(&misuse[TX]{rig: rig{t}, MisuseFixture: f, abuse: x})
				})
			}
		})
	}
}

// abuse is one way to misuse a transaction.
type abuse[TX any] struct {
	fact string
	do   func(m *misuse[TX], ctx context.Context, tx TX) error
	says string // what the error says; "": it does no harm
	// past tells that the store cannot refuse it: what it has committed stays, and an operator decides.
	past, chains bool
}

const saysOwner = "does not end the transaction"

func misuses[TX any]() []abuse[TX] {
	exec := func(sql string) func(m *misuse[TX], ctx context.Context, tx TX) error {
		return func(m *misuse[TX], ctx context.Context, tx TX) error { return m.Exec(ctx, tx, sql) }
	}
	past := func(sql ...string) func(m *misuse[TX], ctx context.Context, tx TX) error {
		return func(m *misuse[TX], ctx context.Context, tx TX) error { return m.Past(ctx, tx, sql...) }
	}
	const saysEnded = "may have been ended"
	return []abuse[TX]{
		{fact: "commits", says: saysOwner, do: func(m *misuse[TX], ctx context.Context, tx TX) error { return m.Commit(ctx, tx) }},
		{fact: "rolls back", says: saysOwner, do: func(m *misuse[TX], ctx context.Context, tx TX) error { return m.Rollback(ctx, tx) }},
		{fact: "commits by SQL", says: saysOwner, do: exec("COMMIT")},
		{fact: "commits by SQL in small letters behind a comment", says: saysOwner, do: exec("/* done */ commit")},
		{fact: "rolls back by SQL", says: saysOwner, do: exec("ROLLBACK")},
		{fact: "commits and chains", says: saysOwner, chains: true, do: exec("COMMIT AND CHAIN")},
		{fact: "rolls back and chains", says: saysOwner, chains: true, do: exec("ROLLBACK AND CHAIN")},
		{fact: "commits past the store", says: saysEnded, past: true, do: past("COMMIT")},
		{fact: "rolls back past the store", says: saysEnded, past: true, do: past("ROLLBACK")},
		{fact: "commits and begins anew past the store", says: saysEnded, past: true, do: past("COMMIT", "BEGIN")},
		{fact: "rolls back and begins anew past the store", says: saysEnded, past: true, do: past("ROLLBACK", "BEGIN")},
		{fact: "leaves rows open", says: "left open", do: func(m *misuse[TX], ctx context.Context, tx TX) error { return m.LeaveOpen(ctx, tx) }},
		{fact: "keeps its transaction and uses it later", do: func(m *misuse[TX], _ context.Context, tx TX) error {
			m.kept = append(m.kept, tx)
			return nil
		}},
		{fact: "sets a savepoint and goes back to it", do: func(m *misuse[TX], ctx context.Context, tx TX) error {
			err := m.Exec(ctx, tx, "SAVEPOINT mine")
			err = errors.Join(err, m.Effect(ctx, tx, "undone"))
			return errors.Join(err, m.Exec(ctx, tx, "ROLLBACK TO SAVEPOINT mine"))
		}},
	}
}

// misuse is a test of one abuse in one way of handling.
type misuse[TX any] struct {
	rig
	MisuseFixture[TX]
	abuse abuse[TX]

	outbox *producer.Outbox[TX]
	inbox  *consumer.Inbox[TX]
	kept   []TX
	fails  bool // the handler returns an error besides

	mu  sync.Mutex
	ran map[uuid.UUID]int
}

const (
	misuseMessages = 5
	culprit        = 2
)

// harmful tells whether the abuse keeps the message from being applied.
func (m *misuse[TX]) harmful() bool {
	return m.fails || m.abuse.says != "" && (m.abuse.says != "left open" || !m.LeftOpenCloses)
}

func (m *misuse[TX]) open() {
	m.Helper()
	m.ran = make(map[uuid.UUID]int)
	var err error
	m.outbox, err = producer.New[TX](m.Store, producer.Config{Name: "shop"})
	m.ok(err)
	m.inbox, err = consumer.New[TX](m.Store, m.outbox, consumer.Config{Service: "shop"})
	m.ok(err)
}

// misuseID returns the dispatch ID of message n.
func misuseID(n int) uuid.UUID { return uuid.NewSHA1(uuid.NameSpaceOID, []byte(strconv.Itoa(n))) }

func misuseName(n int) string { return "effect " + strconv.Itoa(n) }

// work is what the handler does for a message: the effect, the abuse if it is the culprit's, and an event. It swallows
// what the abuse returned.
func (m *misuse[TX]) work(ctx context.Context, w *consumer.Work[TX], id uuid.UUID) error {
	n := 0
	for misuseID(n) != id {
		n++
	}
	if err := m.Effect(ctx, w.DB(), misuseName(n)); err != nil {
		return err
	}
	if n == culprit {
		_ = m.abuse.do(m, ctx, w.DB()) // a handler that looks at no error
	}
	if _, err := w.Queue(producer.Event{Topic: "out", Random: true}); err != nil {
		return err
	}
	if n == culprit && m.fails {
		return errHandler
	}
	return nil
}

func (m *misuse[TX]) config() consumer.HandlerConfig {
	return consumer.HandlerConfig{
		QuickAttempts: 2, MaxAttempts: 2, QuickBackoff: time.Nanosecond,
		MinBackoff: time.Nanosecond, MaxBackoff: time.Nanosecond, Topic: "in",
	}
}

func misuseMessage(n int) *watermill.Message {
	e := transport.Event{
		ID: misuseID(n), Topic: "in", Key: "key " + strconv.Itoa(n), Payload: []byte("payload"),
		Stamp: time.Now(), Producer: "shop",
	}
	e.Digest = transport.ContentDigest(&e)
	return e.Message()
}

// handle makes a handler of the work.
func (m *misuse[TX]) handle(cfg consumer.HandlerConfig) *consumer.Handler[TX] {
	m.Helper()
	m.open()
	h, err := m.inbox.Handle("handler", func(ctx context.Context, w *consumer.Work[TX], _ *watermill.Message) error {
		return m.work(ctx, w, w.Event().ID)
	}, cfg)
	m.ok(err)
	return h
}

// consume has all messages handled, at the same time or one after another.
func (m *misuse[TX]) consume(h *consumer.Handler[TX], together bool) {
	m.Helper()
	var wg sync.WaitGroup
	for n := range misuseMessages {
		msg := misuseMessage(n)
		wg.Go(func() {
			if err := h.Consume(msg); err != nil {
				m.Error(err)
			}
		})
		if !together {
			wg.Wait()
		}
	}
	wg.Wait()
}

func (m *misuse[TX]) alone() {
	m.consume(m.handle(m.config()), false)
	m.check()
}

func (m *misuse[TX]) aloneWithError() {
	m.fails = true
	m.alone()
}

func (m *misuse[TX]) optimistic() {
	cfg := m.config()
	cfg.Optimistic = true
	m.consume(m.handle(cfg), false)
	m.check()
}

func (m *misuse[TX]) grouped() consumer.HandlerConfig {
	cfg := m.config()
	cfg.GroupSize, cfg.GroupWait = misuseMessages, patience
	return cfg
}

func (m *misuse[TX]) group() {
	m.consume(m.handle(m.grouped()), true)
	m.check()
}

func (m *misuse[TX]) groupWithError() {
	m.fails = true
	m.group()
}

func (m *misuse[TX]) batch() {
	m.open()
	h, err := m.inbox.HandleBatch("handler", func(ctx context.Context, b *consumer.Batch[TX], _ []*watermill.Message) error {
		for n := range b.Len() {
			if err := m.work(ctx, b.Work(n), b.Work(n).Event().ID); err != nil {
				return err
			}
		}
		return nil
	}, m.grouped())
	m.ok(err)
	m.consume(h, true)
	m.check()
}

// parkedBefore has the first attempt of each message fail.
func (m *misuse[TX]) parkedBefore() {
	m.open()
	cfg := m.config()
	cfg.QuickAttempts, cfg.MaxAttempts = 1, 3
	h, err := m.inbox.Handle("handler", func(ctx context.Context, w *consumer.Work[TX], _ *watermill.Message) error {
		if first := m.first(w.Event().ID); first {
			return errHandler
		}
		return m.work(ctx, w, w.Event().ID)
	}, cfg)
	m.ok(err)
	m.consume(h, false)
	m.eventually("no message is to be retried", func() bool {
		m.ok(m.inbox.RunOnce(m.ctx()))
		stats, err := h.Stats(m.ctx())
		m.ok(err)
		return stats.Retrying == 0
	})
	m.check()
}

func (m *misuse[TX]) first(id uuid.UUID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ran[id]++
	return m.ran[id] == 1
}

func (m *misuse[TX]) afterEffect() {
	m.open()
	h, err := consumer.HandleEffect(m.inbox, "handler", consumer.Effect[TX, uuid.UUID, uuid.UUID]{
		Prepare: func(_ context.Context, w *consumer.Work[TX], _ *watermill.Message) (uuid.UUID, error) {
			return w.Event().ID, nil
		},
		Do: func(_ context.Context, _ uuid.UUID, intent uuid.UUID) (uuid.UUID, error) { return intent, nil },
		Finish: func(ctx context.Context, w *consumer.Work[TX], _, result uuid.UUID) error {
			return m.work(ctx, w, result)
		},
	}, consumer.EffectConfig{Handler: m.config(), MaxAttempts: 2, MinBackoff: time.Nanosecond, MaxBackoff: time.Nanosecond})
	m.ok(err)
	m.consume(h, false)
	m.eventually("all effects are settled", func() bool {
		m.ok(m.inbox.RunOnce(m.ctx()))
		stats, err := h.Stats(m.ctx())
		m.ok(err)
		return stats.Effects.Pending+stats.Effects.Doing+stats.Effects.Answered == 0
	})
	list, err := m.inbox.ListEffects(m.ctx(), consumer.EffectFilter{States: []consumer.EffectState{consumer.EffectDead}})
	m.ok(err)
	var errs []string
	for _, e := range list {
		errs = append(errs, e.LastError)
	}
	m.checkWith(errs)
}

// check looks at what became of the messages of an inbox.
func (m *misuse[TX]) check() {
	m.Helper()
	list, err := m.inbox.ListParked(m.ctx(), consumer.Filter{})
	m.ok(err)
	var errs []string
	for i := range list {
		errs = append(errs, list[i].LastError)
	}
	m.checkWith(errs)
}

// checkWith checks effects and events, with the errors of what waits for an operator.
func (m *misuse[TX]) checkWith(errs []string) {
	m.Helper()
	for _, tx := range m.kept {
		if m.Effect(m.ctx(), tx, "later") == nil {
			m.Error("a transaction is used after its handler has returned")
		}
	}
	m.checkEffects(errs)
	m.checkErrors(errs)
}

// checkEffects counts effects and events of each message.
func (m *misuse[TX]) checkEffects(errs []string) {
	m.Helper()
	effects, err := m.Effects(m.ctx())
	m.ok(err)
	stats, err := m.outbox.Stats(m.ctx())
	m.ok(err)
	applied := 0
	for n := range misuseMessages {
		count := 0
		for _, name := range effects {
			if name == misuseName(n) {
				count++
			}
		}
		applied += count
		want := 1
		if n == culprit && m.harmful() {
			want = 0
		}
		if count > 1 || count != want && !m.abuse.past {
			m.Errorf("message %d has %d effects, want %d", n, count, want)
		}
	}
	if m.abuse.past { // some of it may have been committed; each that is not whole waits for an operator
		if whole := misuseMessages - len(errs); whole > int(stats.Pending) || len(errs) == 0 {
			m.Errorf("%d messages pass for applied, with %d events; errors are %q", whole, stats.Pending, errs)
		}
	} else if len(effects) != applied || int(stats.Pending) != applied {
		m.Errorf("effects are %q, events %d", effects, stats.Pending)
	}
}

// checkErrors looks at what the operator is told.
func (m *misuse[TX]) checkErrors(errs []string) {
	m.Helper()
	if !m.harmful() {
		if len(errs) > 0 {
			m.Errorf("errors are %q", errs)
		}
		return
	}
	says := m.abuse.says
	if m.fails && !m.abuse.past {
		says = "" // the handler's own error comes first
	}
	if len(errs) == 0 || !strings.Contains(strings.Join(errs, "\n"), says) {
		m.Errorf("errors are %q, want one that says %q", errs, says)
	}
}

// transact has the abuse in a Transact, and looks at its error.
func (m *misuse[TX]) transact() {
	m.open()
	err := m.outbox.Transact(m.ctx(), func(ctx context.Context, w *producer.Writer[TX]) error {
		if err := m.Effect(ctx, w.DB(), misuseName(culprit)); err != nil {
			return err
		}
		_ = m.abuse.do(m, ctx, w.DB())
		_, err := w.Queue(producer.Event{Topic: "out", Random: true})
		return err
	})
	m.checkOne(err)
}

// checkOne checks the effect and the event of one function, and its error.
func (m *misuse[TX]) checkOne(err error) {
	m.Helper()
	effects, failed := m.Effects(m.ctx())
	m.ok(failed)
	stats, failed := m.outbox.Stats(m.ctx())
	m.ok(failed)
	switch {
	case !m.harmful() && (err != nil || len(effects) != 1 || stats.Pending != 1):
		m.Errorf("effects are %q, events %d, error %v", effects, stats.Pending, err)
	case m.harmful() && (err == nil || !strings.Contains(err.Error(), m.abuse.says)):
		m.Errorf("error is %v, want one that says %q", err, m.abuse.says)
	case m.abuse.past && !errors.Is(err, producer.ErrCommitUnknown):
		m.Errorf("error is %v, want that the outcome is unknown", err)
	case m.harmful() && !m.abuse.past && (len(effects) != 0 || stats.Pending != 0):
		m.Errorf("effects are %q, events %d", effects, stats.Pending)
	}
}

// request has the abuse in the handler of an idempotent request, which is repeated.
func (m *misuse[TX]) request() {
	m.open()
	requests, err := idempotent.New(m.outbox, request.Store[TX](m.Store), idempotent.Config{Shared: true})
	m.ok(err)
	handler := requests.Handle(func(rw http.ResponseWriter, r *http.Request, w *producer.Writer[TX]) error {
		if err := m.Effect(r.Context(), w.DB(), misuseName(culprit)); err != nil {
			return err
		}
		_ = m.abuse.do(m, r.Context(), w.DB())
		_, err := w.Queue(idempotent.Identify(r.Context(), producer.Event{Topic: "out"}))
		rw.WriteHeader(http.StatusCreated)
		return err
	})
	for range 2 {
		r := httptest.NewRequestWithContext(m.ctx(), http.MethodPost, "/orders", strings.NewReader("lamp"))
		r.Header.Set(idempotent.HeaderKey, "key")
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, r)
		if ok := rec.Code == http.StatusCreated; ok == m.harmful() {
			m.Errorf("answer is %d %s", rec.Code, rec.Body)
		}
		if m.abuse.past && strings.Contains(rec.Body.String(), "othing was") {
			m.Errorf("answer is %d %s, but something may be committed", rec.Code, rec.Body)
		}
	}
	effects, err := m.Effects(m.ctx())
	m.ok(err)
	stats, err := m.outbox.Stats(m.ctx())
	m.ok(err)
	want := 1
	if m.harmful() {
		want = 0
	}
	if len(effects) > 1 || !m.abuse.past && (len(effects) != want || int(stats.Pending) != want) {
		m.Errorf("effects are %q, events %d, want %d", effects, stats.Pending, want)
	}
}
