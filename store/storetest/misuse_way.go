package storetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"time"

	watermill "github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/consumer/effects"
	"github.com/boxpair/boxpair/middleware/idempotent"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

// misuse is a test of one abuse in one [way].
type misuse[TX any] struct {
	rig
	MisuseFixture[TX]
	abuse abuse[TX]
	fails bool // the handler returns an error besides

	outbox *producer.Outbox[TX]
	inbox  *consumer.Inbox[TX]
	self   *consumer.Handler[TX] // whose messages they are
	other  *consumer.Handler[TX]
	state  string // in a transaction of the store in which nobody has changed it

	mu     sync.Mutex
	ran    map[uuid.UUID]int
	called bool // a message that the abuse has had handled was taken

	kept     []TX
	behind   sync.WaitGroup
	returned chan struct{} // closed when no function runs any more
}

const (
	misuseMessages = 5
	culprit        = 2
	// misuseCalled is the number of the message that an abuse handles.
	misuseCalled = misuseMessages
	misuseTime   = 2 * time.Second // of a function that takes longer
)

func (m *misuse[TX]) open() {
	m.Helper()
	m.ran, m.returned = make(map[uuid.UUID]int), make(chan struct{})
	var err error
	m.outbox, err = producer.New[TX](m.Store, producer.Config{Name: "shop"})
	m.ok(err)
	m.inbox, err = consumer.New[TX](m.Store, consumer.Config{Service: "shop", Logger: slog.New(slog.DiscardHandler)}, consumer.WithOutbox(m.outbox))
	m.ok(err)
	m.other, err = m.inbox.Handle("other", func(ctx context.Context, w *consumer.Work[TX], _ *watermill.Message) error {
		return m.Effect(ctx, w.DB(), misuseName(misuseCalled))
	}, m.config())
	m.ok(err)
	m.state = m.stateNow()
}

// stateNow returns the state in a transaction of the store.
func (m *misuse[TX]) stateNow() (state string) {
	m.Helper()
	m.ok(m.outbox.Transact(m.ctx(), func(ctx context.Context, w *producer.Writer[TX]) (err error) {
		state, err = m.State(ctx, w.DB())
		return err
	}))
	return state
}

// misuseID returns the dispatch ID of message n.
func misuseID(n int) uuid.UUID { return uuid.NewSHA1(uuid.NameSpaceOID, []byte(strconv.Itoa(n))) }

func misuseName(n int) string { return "effect " + strconv.Itoa(n) }

const misusePayload = "payload"

func misuseMessage(n int) *watermill.Message {
	e := transport.Event{
		ID: misuseID(n), Topic: "in", Key: "key " + strconv.Itoa(n), Payload: []byte(misusePayload),
		Stamp: time.Now(), Producer: "shop",
	}
	e.Digest = transport.ContentDigest(&e)
	return e.Message()
}

// begun checks that no setting has leaked into a function that begins.
func (m *misuse[TX]) begun(ctx context.Context, tx TX) error {
	state, err := m.State(ctx, tx)
	if err == nil && state != m.state {
		m.Errorf("state is %s, left by another function; want %s", state, m.state)
	}
	return err
}

// work is the work of the handler for a message: the effect, the abuse for the culprit's message,
// and an event. It swallows the error of the abuse.
func (m *misuse[TX]) work(ctx context.Context, w *consumer.Work[TX], id uuid.UUID) error {
	n := 0
	for misuseID(n) != id {
		n++
	}
	msg := w.Message()
	payload := string(msg.Payload) // the handler after an effect gets the intent instead
	if payload != misusePayload && payload != "" || msg.UUID != w.Event().ID.String() || msg.Metadata.Get(transport.MetaKey) == "" {
		m.Errorf("message %d is %q, %q, %v: an earlier attempt has changed it", n, msg.UUID, msg.Payload, msg.Metadata)
	}
	if err := m.Effect(ctx, w.DB(), misuseName(n)); err != nil || n == misuseCalled {
		return err
	}
	if n == culprit {
		_ = m.abuse.do(m, ctx, &given[TX]{tx: w.DB(), msg: msg}) // a handler that ignores errors
	}
	if _, err := w.Write(ctx, producer.Event{Topic: "out", Random: true}); err != nil {
		return err
	}
	if n == culprit && m.fails {
		return errHandler
	}
	return nil
}

// call handles a message within a handler.
func (m *misuse[TX]) call(ctx context.Context, h *consumer.Handler[TX]) error {
	msg := misuseMessage(misuseCalled)
	msg.SetContext(ctx)
	err := h.Consume(msg) //nolint:contextcheck // the message carries it
	m.mu.Lock()
	defer m.mu.Unlock()
	m.called = m.called || err == nil
	return err
}

func (m *misuse[TX]) config() consumer.HandlerConfig {
	cfg := consumer.HandlerConfig{
		Retry:  consumer.RetryConfig{QuickAttempts: 2, MaxAttempts: 2, QuickBackoff: time.Nanosecond},
		Parked: consumer.ParkedConfig{MinBackoff: time.Nanosecond, MaxBackoff: time.Nanosecond}, Topic: "in",
	}
	if m.abuse.late {
		cfg.Timeout = misuseTime
	}
	return cfg
}

// handle makes a handler of work.
func (m *misuse[TX]) handle(cfg consumer.HandlerConfig) *consumer.Handler[TX] {
	m.Helper()
	h, err := m.inbox.Handle("handler", func(ctx context.Context, w *consumer.Work[TX], _ *watermill.Message) error {
		if err := m.begun(ctx, w.DB()); err != nil {
			return err
		}
		return m.work(ctx, w, w.Event().ID)
	}, cfg)
	m.ok(err)
	return h
}

// consume handles all messages, at the same time or one after another.
func (m *misuse[TX]) consume(h *consumer.Handler[TX], together bool) {
	m.Helper()
	m.self = h
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
	m.open()
	m.consume(m.handle(m.config()), false)
	m.check()
}

func (m *misuse[TX]) aloneWithError() {
	m.fails = true
	m.alone()
}

func (m *misuse[TX]) optimistic() {
	m.open()
	cfg := m.config()
	cfg.Optimistic = true
	m.consume(m.handle(cfg), false)
	m.check()
}

func (m *misuse[TX]) grouped() consumer.HandlerConfig {
	cfg := m.config()
	cfg.Group.Size, cfg.Group.Wait = misuseMessages, patience
	if m.abuse.late || m.abuse.calls { // such abuses end with an error anyway
		cfg.Group.Wait = misuseTime / 8
	}
	return cfg
}

func (m *misuse[TX]) group() {
	m.open()
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
		if err := m.begun(ctx, b.DB()); err != nil {
			return err
		}
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

// parkedBefore makes the first attempt of each message fail.
func (m *misuse[TX]) parkedBefore() {
	m.open()
	cfg := m.config()
	cfg.Retry.QuickAttempts, cfg.Retry.MaxAttempts = 1, 3
	h, err := m.inbox.Handle("handler", func(ctx context.Context, w *consumer.Work[TX], _ *watermill.Message) error {
		if first := m.first(w.Event().ID); first {
			return errHandler
		}
		if err := m.begun(ctx, w.DB()); err != nil {
			return err
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

func (m *misuse[TX]) effectConfig() effects.Config {
	return effects.Config{Handler: m.config(), MaxAttempts: 2, MinBackoff: time.Nanosecond, MaxBackoff: time.Nanosecond}
}

// settle waits for all effects outside the database.
func (m *misuse[TX]) settle(h *consumer.Handler[TX]) {
	m.Helper()
	m.eventually("all effects are settled", func() bool {
		m.ok(m.inbox.RunOnce(m.ctx()))
		stats, err := h.Stats(m.ctx())
		m.ok(err)
		return stats.Effects.Pending+stats.Effects.Doing+stats.Effects.Answered == 0
	})
}

// beforeEffect abuses the handler that prepares an effect outside the database. Only prepared
// effects may be done.
func (m *misuse[TX]) beforeEffect() {
	m.open()
	h, err := effects.Handle(m.inbox, "handler", effects.Effect[TX, uuid.UUID, uuid.UUID]{
		Prepare: func(ctx context.Context, w *consumer.Work[TX], _ *watermill.Message) (uuid.UUID, error) {
			if err := m.begun(ctx, w.DB()); err != nil {
				return uuid.Nil, err
			}
			return w.Event().ID, m.work(ctx, w, w.Event().ID)
		},
		Do: func(_ context.Context, _ uuid.UUID, intent uuid.UUID) (uuid.UUID, error) {
			m.first(intent)
			return intent, nil
		},
		Finish: func(ctx context.Context, w *consumer.Work[TX], _, _ uuid.UUID) error { return m.begun(ctx, w.DB()) },
	}, m.effectConfig())
	m.ok(err)
	m.consume(h.Handler, false)
	m.settle(h.Handler)
	for n := range misuseMessages {
		want := 1
		if n == culprit && m.harmful() {
			want = 0
		}
		if got := m.ran[misuseID(n)]; got != want {
			m.Errorf("outside effect of message %d was done %d times, want %d", n, got, want)
		}
	}
	m.check()
}

func (m *misuse[TX]) afterEffect() {
	m.open()
	h, err := effects.Handle(m.inbox, "handler", effects.Effect[TX, uuid.UUID, uuid.UUID]{
		Prepare: func(_ context.Context, w *consumer.Work[TX], _ *watermill.Message) (uuid.UUID, error) {
			return w.Event().ID, nil
		},
		Do: func(_ context.Context, _ uuid.UUID, intent uuid.UUID) (uuid.UUID, error) { return intent, nil },
		Finish: func(ctx context.Context, w *consumer.Work[TX], _, result uuid.UUID) error {
			if err := m.begun(ctx, w.DB()); err != nil {
				return err
			}
			return m.work(ctx, w, result)
		},
	}, m.effectConfig())
	m.ok(err)
	m.consume(h.Handler, false)
	m.settle(h.Handler)
	ledger, err := effects.New(m.inbox)
	m.ok(err)
	list, err := ledger.List(m.ctx(), inbox.EffectFilter{States: []inbox.EffectState{inbox.EffectDead}})
	m.ok(err)
	var errs []string
	for _, e := range list {
		errs = append(errs, e.LastError)
	}
	m.checkWith(errs)
}

// survived runs a function to any end, in a goroutine of its own. A panic becomes an error.
func survived(run func() error) (err error) {
	var wg sync.WaitGroup
	wg.Go(func() {
		err = errors.New("Goexit")
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("panic: %v", v)
			}
		}()
		err = run()
	})
	wg.Wait()
	return err
}

// timed returns a context that ends soon if the abuse is late.
func (m *misuse[TX]) timed() (context.Context, context.CancelFunc) {
	if m.abuse.late {
		return context.WithTimeout(m.ctx(), misuseTime/8)
	}
	return context.WithCancel(m.ctx())
}

// transact runs the abuse in a Transact, and checks the error.
func (m *misuse[TX]) transact() {
	m.open()
	ctx, cancel := m.timed()
	defer cancel()
	err := survived(func() error {
		return m.outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[TX]) error {
			if err := m.Effect(ctx, w.DB(), misuseName(culprit)); err != nil {
				return err
			}
			_ = m.abuse.do(m, ctx, &given[TX]{tx: w.DB()})
			_, err := w.Write(ctx, producer.Event{Topic: "out", Random: true})
			return err
		})
	})
	m.checkOne(err)
}

// request runs the abuse in the handler of an idempotent request, and repeats the request.
func (m *misuse[TX]) request() {
	m.open()
	var log strings.Builder
	requests, err := idempotent.New(m.outbox, inbox.RequestStore[TX](m.Store), idempotent.Config{Shared: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	m.ok(err)
	handler := requests.Handle(func(rw http.ResponseWriter, r *http.Request, w *producer.Writer[TX]) error {
		if err := m.begun(r.Context(), w.DB()); err != nil {
			return err
		}
		if err := m.Effect(r.Context(), w.DB(), misuseName(culprit)); err != nil {
			return err
		}
		_, err := w.Write(r.Context(), idempotent.Identify(r.Context(), producer.Event{Topic: "out"}))
		_ = m.abuse.do(m, r.Context(), &given[TX]{tx: w.DB(), r: r})
		rw.WriteHeader(http.StatusCreated)
		return err
	})
	var errs []string
	for range 2 {
		ctx, cancel := m.timed()
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/orders", strings.NewReader("lamp"))
		r.Header.Set(idempotent.HeaderKey, "key")
		rec := httptest.NewRecorder()
		err := survived(func() error {
			handler.ServeHTTP(rec, r)
			return nil
		})
		cancel()
		if err != nil {
			errs = append(errs, err.Error())
		}
		if ok := rec.Code == http.StatusCreated && err == nil; ok == m.harmful() {
			m.Errorf("answer is %d %s, %v", rec.Code, rec.Body, err)
		}
		if m.abuse.past && strings.Contains(rec.Body.String(), "othing was") {
			m.Errorf("answer is %d %s, but something may be committed", rec.Code, rec.Body)
		}
	}
	if log.Len() > 0 {
		errs = append(errs, log.String())
	}
	m.checkRequest(errs)
}
