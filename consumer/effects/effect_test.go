package effects_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/consumer/effects"
	"github.com/boxpair/boxpair/consumer/internal/consumertest"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/sqlite"
)

func TestEffectIsCarriedOutOnceBesideItsMessage(t *testing.T) {
	t.Parallel()
	consumertest.OnEach(t, paidOnce[pgx.Tx], paidOnce[*sql.Tx])
}

func paidOnce[TX any](t *testing.T, db *consumertest.Database[TX]) {
	p := provider{t.TempDir()}
	in, h := pay(t, db.Store, db, paying(db, p), effects.Config{})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- in.Run(ctx) }()
	for range 2 {
		if err := h.Consume(consumertest.Msg(1)); err != nil {
			t.Fatal(err)
		}
	}
	consumertest.WaitFor(t, func() bool { return h.Effects().Done == 1 })
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	p.wantCharges(t, consumertest.Number(1), 1)
	db.WantEffects(t, 1)
	wantEffect(t, in, inbox.EffectDone)
	if n := db.Number(`SELECT count(DISTINCT dispatch_id) FROM ` + db.Table("outbox_events")); n != 2 {
		t.Errorf("%d events written", n)
	}
}

func TestEffectThatIsRecordedWithoutRunIsAnError(t *testing.T) {
	t.Parallel()
	db, _ := consumertest.NewSQLite(t)
	log := &consumertest.LogBuffer{}
	inbox, err := consumer.New(db.Store, consumer.Config{Service: "stock", Logger: slog.New(slog.NewTextHandler(log, nil))}, consumer.WithOutbox(db.Outbox))
	if err != nil {
		t.Fatal(err)
	}
	h, err := effects.Handle(inbox, "pay", paying(db, provider{t.TempDir()}),
		effects.Config{Handler: consumer.HandlerConfig{Topic: "orders"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Consume(consumertest.Msg(1)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "Inbox.Run was never called") {
		t.Errorf("logged %q", log.String())
	}
}

func TestPausedConsumerTakesUpNoEffect(t *testing.T) {
	t.Parallel()
	db, _ := consumertest.NewSQLite(t)
	p := provider{t.TempDir()}
	_, h := pay(t, db.Store, db, paying(db, p), effects.Config{})
	if err := h.Consume(consumertest.Msg(1)); err != nil {
		t.Fatal(err)
	}
	// A new inbox knows no pauses yet.
	runOnce := func() *effects.Handler[*sql.Tx] {
		in, h := pay(t, db.Store, db, paying(db, p), effects.Config{})
		consumertest.RunOnce(t, in)
		return h
	}
	pause := control.Pause{Kind: control.Consumer, Name: "stock/pay", Reason: "the provider is down"}
	if err := db.Store.SetPause(t.Context(), pause); err != nil {
		t.Fatal(err)
	}
	if h := runOnce(); h.Effects().Done != 0 || h.Counters().Paused != 1 {
		t.Errorf("effects: %+v, counters: %+v", h.Effects(), h.Counters())
	}
	p.wantCharges(t, consumertest.Number(1), 0)
	if _, err := db.Store.EndPause(t.Context(), pause.Kind, pause.Name); err != nil {
		t.Fatal(err)
	}
	runOnce()
	p.wantCharges(t, consumertest.Number(1), 1)
}

// The key is part of what users rely on: it must not change between attempts, nor between releases.
func TestEffectKeyIsStable(t *testing.T) {
	t.Parallel()
	if got := effects.Key("stock/pay", uuid.MustParse("00000000-0000-0000-0000-000000000002")).String(); got != "273e15ce-c1fe-577c-9a2e-0fcd4a88a790" {
		t.Errorf("key is %s", got)
	}
	db, _ := consumertest.NewSQLite(t)
	e := paying(db, provider{t.TempDir()})
	var keys []uuid.UUID
	e.Do = func(_ context.Context, key uuid.UUID, _ charge) (receipt, error) {
		keys = append(keys, key)
		return receipt{}, errHandler
	}
	in, h := pay(t, db.Store, db, e, effects.Config{Idempotent: true, MaxAttempts: 3})
	if err := h.Consume(consumertest.Msg(1)); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		consumertest.RunOnce(t, in)
		endLeases(t, db)
	}
	if len(keys) != 3 || len(slices.Compact(keys)) != 1 || keys[0] != effects.Key("stock/pay", consumertest.Number(1)) {
		t.Errorf("keys of the attempts are %v", keys)
	}
	if e := wantEffect(t, in, inbox.EffectUncertain); e.Attempts != 3 || e.LastError != errHandler.Error() {
		t.Errorf("effect is %+v", e)
	}
	if list, err := h.Attempts(t.Context(), consumertest.Number(1), 0); err != nil || len(list) != 3 || list[0].Outcome != "effect_uncertain" {
		t.Errorf("history is %+v, %v", list, err)
	}
}

// Do uses the database itself, with a pool of one connection: it would wait for ever within a
// transaction.
func TestCallIsMadeOutsideAnyTransaction(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		_, url := consumertest.NewPostgres(t)
		calledOutside(t, consumertest.OpenPostgres(t, consumertest.With(t, url, "pool_max_conns", "1").String()))
	})
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		db, _ := consumertest.NewSQLite(t)
		calledOutside(t, db)
	})
}

func calledOutside[TX any](t *testing.T, db *consumertest.Database[TX]) {
	e := paying(db, provider{t.TempDir()})
	setup, err := db.Store.Register(t.Context(), "setup", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	e.Do = func(ctx context.Context, key uuid.UUID, _ charge) (receipt, error) {
		calls++
		_, err := db.Store.Apply(ctx, inbox.Claim{Consumer: setup.Consumer, ID: uuid.New()}, func(ctx context.Context, tx TX) error {
			return db.Exec(ctx, tx, `INSERT INTO effects (seq, id) VALUES (0, 'asked')`)
		})
		return receipt{Number: key.String()}, err
	}
	in, h := pay(t, db.Store, db, e, effects.Config{Handler: consumer.HandlerConfig{Timeout: time.Minute, Retry: consumer.RetryConfig{QuickAttempts: 1}}})
	if err := h.Consume(consumertest.Msg(1)); err != nil {
		t.Fatal(err)
	}
	if calls != 0 {
		t.Errorf("%d calls before the intent was committed", calls)
	}
	consumertest.RunOnce(t, in)
	wantEffect(t, in, inbox.EffectDone)
	db.WantEffects(t, 2)
}

func TestSQLiteOfOneConnectionCarriesEffectsOut(t *testing.T) {
	t.Parallel()
	db, path := consumertest.NewSQLite(t)
	one, err := sqlite.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = one.Close() })
	one.SetMaxOpenConns(1)
	if db.Store, err = sqlite.New(one, sqlite.Config{}); err != nil {
		t.Fatal(err)
	}
	calledOutside(t, db)
}

func TestFateOfErrorsOfDo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err        error
		idempotent bool
		state      inbox.EffectState
		uncertain  bool
	}{
		"error":                             {errHandler, false, inbox.EffectUncertain, true},
		"error, idempotent":                 {errHandler, true, inbox.EffectPending, true},
		"not done":                          {effects.NotDone(errHandler), false, inbox.EffectPending, false},
		"not done, later":                   {effects.NotDone(consumer.RetryAfter(0, errHandler)), false, inbox.EffectPending, false},
		"rejected":                          {consumer.Reject(errHandler), true, inbox.EffectDead, false},
		"result that cannot be had as JSON": {nil, true, inbox.EffectPending, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, _ := consumertest.NewSQLite(t)
			inbox, err := consumer.New(db.Store, consumer.Config{Service: "stock"}, consumer.WithOutbox(db.Outbox))
			if err != nil {
				t.Fatal(err)
			}
			h, err := effects.Handle(inbox, "pay", effects.Effect[*sql.Tx, string, any]{
				Prepare: func(context.Context, *consumer.Work[*sql.Tx], *message.Message) (string, error) {
					return "secret intent", nil
				},
				Do:     func(context.Context, uuid.UUID, string) (any, error) { return func() {}, c.err },
				Finish: func(context.Context, *consumer.Work[*sql.Tx], string, any) error { return errors.New("finished") },
			}, effects.Config{Handler: consumer.HandlerConfig{Topic: "orders"}, Idempotent: c.idempotent, MaxAttempts: 9})
			if err != nil {
				t.Fatal(err)
			}
			if err := h.Consume(consumertest.Msg(1)); err != nil {
				t.Fatal(err)
			}
			consumertest.RunOnce(t, inbox)
			e := wantEffect(t, inbox, c.state)
			if e.Uncertain != c.uncertain || e.LastError == "" || strings.Contains(e.LastError, "secret") {
				t.Errorf("effect is %+v", e)
			}
		})
	}
}

// What is known to be done is not done again, however often Finish fails.
func TestFailureOfFinishDoesNotAskAgain(t *testing.T) {
	t.Parallel()
	consumertest.OnEach(t, finishFails[pgx.Tx], finishFails[*sql.Tx])
}

func finishFails[TX any](t *testing.T, db *consumertest.Database[TX]) {
	p := provider{t.TempDir()}
	e := paying(db, p)
	finish, broken := e.Finish, true
	e.Finish = func(ctx context.Context, w *consumer.Work[TX], c charge, r receipt) error {
		err := finish(ctx, w, c, r)
		if broken {
			panic(fmt.Sprint("broken ", err))
		}
		return err
	}
	in, h := pay(t, db.Store, db, e, effects.Config{MaxAttempts: 2})
	if err := h.Consume(consumertest.Msg(1)); err != nil {
		t.Fatal(err)
	}
	consumertest.RunOnce(t, in)
	wantEffect(t, in, inbox.EffectAnswered)
	endLeases(t, db)
	consumertest.RunOnce(t, in)
	dead := wantEffect(t, in, inbox.EffectDead)
	if dead.Uncertain || len(dead.Result) == 0 {
		t.Errorf("effect is %+v", dead)
	}
	db.WantEffects(t, 0)
	broken = false
	if ids, err := ledgerOf(t, in).Redrive(t.Context(), inbox.EffectFilter{States: []inbox.EffectState{inbox.EffectDead}}, "mended"); err != nil || len(ids) != 1 {
		t.Fatal(ids, err)
	}
	wantReason(t, in, consumertest.Number(1), "effect_redriven", "mended")
	consumertest.RunOnce(t, in)
	wantEffect(t, in, inbox.EffectDone)
	p.wantCharges(t, consumertest.Number(1), 1)
	db.WantEffects(t, 1)
}

func TestProbeIsAskedBeforeAnythingIsDoneAgain(t *testing.T) {
	t.Parallel()
	for name, found := range map[string]bool{"carried out": true, "not carried out": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, _ := consumertest.NewSQLite(t)
			p := provider{t.TempDir()}
			e := paying(db, p)
			do, calls, probes := e.Do, 0, 0
			e.Do = func(ctx context.Context, key uuid.UUID, c charge) (receipt, error) {
				if calls++; calls == 1 {
					return receipt{}, errHandler
				}
				return do(ctx, key, c)
			}
			e.Probe = func(_ context.Context, key uuid.UUID, _ charge) (receipt, bool, error) {
				if probes++; probes == 1 {
					return receipt{}, false, errors.New("no answer")
				}
				return receipt{Number: key.String()}, found, nil
			}
			in, h := pay(t, db.Store, db, e, effects.Config{})
			if err := h.Consume(consumertest.Msg(1)); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				consumertest.RunOnce(t, in)
				endLeases(t, db)
			}
			wantEffect(t, in, inbox.EffectDone)
			if want := map[bool]int{true: 1, false: 2}[found]; calls != want || probes != 2 {
				t.Errorf("%d calls and %d probes", calls, probes)
			}
			db.WantEffects(t, 1)
		})
	}
}

func TestMessageMayNeedNoEffect(t *testing.T) {
	t.Parallel()
	db, _ := consumertest.NewSQLite(t)
	e := paying(db, provider{t.TempDir()})
	prepare := e.Prepare
	e.Prepare = func(ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) (charge, error) {
		c, err := prepare(ctx, w, msg)
		return c, errors.Join(err, effects.ErrNoEffect)
	}
	in, h := pay(t, db.Store, db, e, effects.Config{})
	if err := h.Consume(consumertest.Msg(1)); err != nil {
		t.Fatal(err)
	}
	if list, err := ledgerOf(t, in).List(t.Context(), inbox.EffectFilter{}); err != nil || len(list) != 0 || h.Counters().Applied != 1 {
		t.Errorf("effects are %+v, %v", list, err)
	}
	if n := db.Number(`SELECT count(*) FROM boxpair_outbox_events`); n != 1 {
		t.Errorf("%d events written", n)
	}
}

func TestEffectsThatCannotBeAreRefused(t *testing.T) {
	t.Parallel()
	db, _ := consumertest.NewSQLite(t)
	in, err := consumer.New(db.Store, consumer.Config{Service: "stock"})
	if err != nil {
		t.Fatal(err)
	}
	e := paying(db, provider{t.TempDir()})
	_, err = effects.Handle(in, "pay", e, effects.Config{Timeout: -1, MinBackoff: 2, MaxBackoff: 1, Concurrency: -1, Lease: -2})
	for _, field := range []string{"Timeout", "Lease", "MaxBackoff", "Concurrency"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("error does not name %s: %v", field, err)
		}
	}
	e.Do = nil
	if _, err = effects.Handle(in, "pay", e, effects.Config{}); err == nil || !strings.Contains(err.Error(), "Do") {
		t.Error(err)
	}
	bare, err := consumer.New[*sql.Tx](struct{ inbox.Store[*sql.Tx] }{db.Store}, consumer.Config{Service: "stock"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = effects.Handle(bare, "pay", effects.Effect[*sql.Tx, int, int]{}, effects.Config{})
	if !errors.Is(err, effects.ErrNoLedger) {
		t.Error(err)
	}
	if _, err := ledgerOf(t, in).Redrive(t.Context(), inbox.EffectFilter{}, "mended"); err == nil {
		t.Error("everything was redriven")
	}
	some := inbox.EffectFilter{States: []inbox.EffectState{inbox.EffectDead}}
	for _, reason := range []string{"", "a\x00b", strings.Repeat("a", 1025)} {
		if _, err := ledgerOf(t, in).Redrive(t.Context(), some, reason); err == nil {
			t.Errorf("redriven with the reason %q", reason)
		}
		if _, err := ledgerOf(t, in).Discard(t.Context(), some, reason); err == nil {
			t.Errorf("discarded with the reason %q", reason)
		}
		if _, err := ledgerOf(t, in).Resolve(t.Context(), consumertest.Number(1), 1, reason); err == nil {
			t.Errorf("resolved with the reason %q", reason)
		}
	}
}

func TestEffectsOfAKeyAreCarriedOutInOrder(t *testing.T) {
	t.Parallel()
	db, _ := consumertest.NewSQLite(t)
	e := paying(db, provider{t.TempDir()})
	var order []string
	fail := true
	e.Do = func(_ context.Context, key uuid.UUID, c charge) (receipt, error) {
		if fail {
			fail = false
			return receipt{}, effects.NotDone(errHandler)
		}
		order = append(order, c.Order)
		return receipt{Number: key.String()}, nil
	}
	inbox, h := pay(t, db.Store, db, e, effects.Config{Handler: consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}}})
	var want []string
	for n := range 4 {
		if err := h.Consume(consumertest.Keyed(n, "a")); err != nil {
			t.Fatal(err)
		}
		want = append(want, consumertest.Number(n).String())
	}
	consumertest.RunOnce(t, inbox)
	if len(order) != 0 {
		t.Errorf("%v did not wait", order)
	}
	endLeases(t, db)
	consumertest.RunOnce(t, inbox)
	if !slices.Equal(order, want) {
		t.Errorf("order is %v, want %v", order, want)
	}
}

func TestEffectThatWasRedrivenAndNotCarriedOutIsTriedAgain(t *testing.T) {
	t.Parallel()
	consumertest.OnEach(t, redrivenNotDone[pgx.Tx], redrivenNotDone[*sql.Tx])
}

func redrivenNotDone[TX any](t *testing.T, db *consumertest.Database[TX]) {
	p := provider{t.TempDir()}
	e := paying(db, p)
	answers := []error{errors.New("lost"), effects.NotDone(errors.New("busy")), nil}
	e.Do = func(_ context.Context, key uuid.UUID, c charge) (receipt, error) {
		err := answers[0]
		answers = answers[1:]
		if err != nil {
			return receipt{}, err
		}
		return p.charge(key, c)
	}
	in, h := pay(t, db.Store, db, e, effects.Config{})
	if err := h.Consume(consumertest.Msg(1)); err != nil {
		t.Fatal(err)
	}
	consumertest.RunOnce(t, in)
	wantEffect(t, in, inbox.EffectUncertain)
	if _, err := ledgerOf(t, in).Redrive(t.Context(), inbox.EffectFilter{Keys: []uuid.UUID{effects.Key("stock/pay", consumertest.Number(1))}}, "it was not"); err != nil {
		t.Fatal(err)
	}
	consumertest.RunOnce(t, in)
	wantEffect(t, in, inbox.EffectPending)
	endLeases(t, db)
	consumertest.RunOnce(t, in)
	wantEffect(t, in, inbox.EffectDone)
	p.wantCharges(t, consumertest.Number(1), 1)
}

// cutOff is a store that cannot be reached when the other side has answered.
type cutOff struct {
	inbox.Store[*sql.Tx]
	inbox.EffectStore[*sql.Tx]
	down  atomic.Bool
	tries atomic.Int64
}

func (s *cutOff) FinishEffect(ctx context.Context, c inbox.Claim, r *inbox.EffectRun, result []byte, fn func(context.Context, *sql.Tx) error) (bool, error) {
	if s.down.Load() {
		return false, driver.ErrBadConn
	}
	return s.EffectStore.FinishEffect(ctx, c, r, result, fn)
}

func (s *cutOff) SettleEffect(ctx context.Context, r *inbox.EffectRun, o inbox.EffectOutcome) (bool, error) {
	if s.tries.Add(1); s.down.Load() {
		return false, driver.ErrBadConn
	}
	return s.EffectStore.SettleEffect(ctx, r, o)
}

func TestResultOfAnEffectIsKeptThroughALongOutage(t *testing.T) {
	t.Parallel()
	db, _ := consumertest.NewSQLite(t)
	store := &cutOff{Store: db.Store, EffectStore: db.Store.(inbox.EffectStore[*sql.Tx])}
	store.down.Store(true)
	inbox, err := consumer.New[*sql.Tx](store, consumer.Config{Service: "stock", MaxHold: time.Millisecond, PollInterval: 10 * time.Millisecond}, consumer.WithOutbox(db.Outbox))
	if err != nil {
		t.Fatal(err)
	}
	p := provider{t.TempDir()}
	h, err := effects.Handle(inbox, "pay", paying(db, p), effects.Config{MinBackoff: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Consume(consumertest.Msg(1)); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- inbox.Run(ctx) }()
	consumertest.WaitFor(t, func() bool { return store.tries.Load() > 1 }) // MaxHold is over
	store.down.Store(false)
	consumertest.WaitFor(t, func() bool { return h.Effects().Done == 1 })
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	p.wantCharges(t, consumertest.Number(1), 1)
}
