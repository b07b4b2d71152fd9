package consumer_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/sqlite"
)

func TestEffectIsCarriedOutOnceBesideItsMessage(t *testing.T) {
	t.Parallel()
	onEach(t, paidOnce[pgx.Tx], paidOnce[*sql.Tx])
}

func paidOnce[TX any](t *testing.T, db *database[TX]) {
	p := provider{t.TempDir()}
	in, h := pay(t, db.store, db, paying(db, p), consumer.EffectConfig{})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- in.Run(ctx) }()
	for range 2 {
		if err := h.Consume(msg(1)); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, func() bool { return h.Counters().EffectsDone == 1 })
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	p.wantCharges(t, number(1), 1)
	db.wantEffects(t, 1)
	wantEffect(t, in, inbox.EffectDone)
	if n := db.number(`SELECT count(DISTINCT dispatch_id) FROM ` + table(db, "outbox_events")); n != 2 {
		t.Errorf("%d events written", n)
	}
}

func TestEffectThatIsRecordedWithoutRunIsAnError(t *testing.T) {
	t.Parallel()
	db, _ := newSQLite(t)
	log := &logBuffer{}
	inbox, err := consumer.New(db.store, db.outbox, consumer.Config{Service: "stock", Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	h, err := consumer.HandleEffect(inbox, "pay", paying(db, provider{t.TempDir()}),
		consumer.EffectConfig{Handler: consumer.HandlerConfig{Topic: "orders"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Consume(msg(1)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "Inbox.Run was never called") {
		t.Errorf("logged %q", log.String())
	}
}

// The key is part of what users rely on: it must not change between attempts, nor between releases.
func TestEffectKeyIsStable(t *testing.T) {
	t.Parallel()
	if got := consumer.EffectKey("stock/pay", uuid.MustParse("00000000-0000-0000-0000-000000000002")).String(); got != "273e15ce-c1fe-577c-9a2e-0fcd4a88a790" {
		t.Errorf("key is %s", got)
	}
	db, _ := newSQLite(t)
	e := paying(db, provider{t.TempDir()})
	var keys []uuid.UUID
	e.Do = func(_ context.Context, key uuid.UUID, _ charge) (receipt, error) {
		keys = append(keys, key)
		return receipt{}, errHandler
	}
	in, h := pay(t, db.store, db, e, consumer.EffectConfig{Idempotent: true, MaxAttempts: 3})
	if err := h.Consume(msg(1)); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		runOnce(t, in)
		endLeases(t, db)
	}
	if len(keys) != 3 || len(slices.Compact(keys)) != 1 || keys[0] != consumer.EffectKey("stock/pay", number(1)) {
		t.Errorf("keys of the attempts are %v", keys)
	}
	if e := wantEffect(t, in, inbox.EffectUncertain); e.Attempts != 3 || e.LastError != errHandler.Error() {
		t.Errorf("effect is %+v", e)
	}
	if list, err := h.Attempts(t.Context(), number(1), 0); err != nil || len(list) != 3 || list[0].Outcome != "effect_uncertain" {
		t.Errorf("history is %+v, %v", list, err)
	}
}

// Do uses the database itself, with a pool of one connection: it would wait for ever within a
// transaction.
func TestCallIsMadeOutsideAnyTransaction(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		_, url := newPostgres(t)
		calledOutside(t, openPostgres(t, with(t, url, "pool_max_conns", "1").String()))
	})
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		db, _ := newSQLite(t)
		calledOutside(t, db)
	})
}

func calledOutside[TX any](t *testing.T, db *database[TX]) {
	e := paying(db, provider{t.TempDir()})
	setup, err := db.store.Register(t.Context(), "setup", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	e.Do = func(ctx context.Context, key uuid.UUID, _ charge) (receipt, error) {
		calls++
		_, err := db.store.Apply(ctx, inbox.Claim{Consumer: setup.Consumer, ID: uuid.New()}, func(ctx context.Context, tx TX) error {
			return db.exec(ctx, tx, `INSERT INTO effects (seq, id) VALUES (0, 'asked')`)
		})
		return receipt{Number: key.String()}, err
	}
	in, h := pay(t, db.store, db, e, consumer.EffectConfig{Handler: consumer.HandlerConfig{Timeout: 5 * time.Second, QuickAttempts: 1}})
	if err := h.Consume(msg(1)); err != nil {
		t.Fatal(err)
	}
	if calls != 0 {
		t.Errorf("%d calls before the intent was committed", calls)
	}
	runOnce(t, in)
	wantEffect(t, in, inbox.EffectDone)
	db.wantEffects(t, 2)
}

func TestSQLiteOfOneConnectionCarriesEffectsOut(t *testing.T) {
	t.Parallel()
	db, path := newSQLite(t)
	one, err := sqlite.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = one.Close() })
	one.SetMaxOpenConns(1)
	if db.store, err = sqlite.New(one, sqlite.Config{}); err != nil {
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
		"not done":                          {consumer.NotDone(errHandler), false, inbox.EffectPending, false},
		"not done, later":                   {consumer.NotDone(consumer.RetryAfter(0, errHandler)), false, inbox.EffectPending, false},
		"rejected":                          {consumer.Reject(errHandler), true, inbox.EffectDead, false},
		"result that cannot be had as JSON": {nil, true, inbox.EffectPending, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, _ := newSQLite(t)
			inbox, err := consumer.New(db.store, db.outbox, consumer.Config{Service: "stock"})
			if err != nil {
				t.Fatal(err)
			}
			h, err := consumer.HandleEffect(inbox, "pay", consumer.Effect[*sql.Tx, string, any]{
				Prepare: func(context.Context, *consumer.Work[*sql.Tx], *message.Message) (string, error) {
					return "secret intent", nil
				},
				Do:     func(context.Context, uuid.UUID, string) (any, error) { return func() {}, c.err },
				Finish: func(context.Context, *consumer.Work[*sql.Tx], string, any) error { return errors.New("finished") },
			}, consumer.EffectConfig{Handler: consumer.HandlerConfig{Topic: "orders"}, Idempotent: c.idempotent, MaxAttempts: 9})
			if err != nil {
				t.Fatal(err)
			}
			if err := h.Consume(msg(1)); err != nil {
				t.Fatal(err)
			}
			runOnce(t, inbox)
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
	onEach(t, finishFails[pgx.Tx], finishFails[*sql.Tx])
}

func finishFails[TX any](t *testing.T, db *database[TX]) {
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
	in, h := pay(t, db.store, db, e, consumer.EffectConfig{MaxAttempts: 2})
	if err := h.Consume(msg(1)); err != nil {
		t.Fatal(err)
	}
	runOnce(t, in)
	wantEffect(t, in, inbox.EffectAnswered)
	endLeases(t, db)
	runOnce(t, in)
	dead := wantEffect(t, in, inbox.EffectDead)
	if dead.Uncertain || len(dead.Result) == 0 {
		t.Errorf("effect is %+v", dead)
	}
	db.wantEffects(t, 0)
	broken = false
	if ids, err := in.RedriveEffects(t.Context(), inbox.EffectFilter{States: []inbox.EffectState{inbox.EffectDead}}, "mended"); err != nil || len(ids) != 1 {
		t.Fatal(ids, err)
	}
	wantReason(t, in, number(1), "effect_redriven", "mended")
	runOnce(t, in)
	wantEffect(t, in, inbox.EffectDone)
	p.wantCharges(t, number(1), 1)
	db.wantEffects(t, 1)
}

func TestProbeIsAskedBeforeAnythingIsDoneAgain(t *testing.T) {
	t.Parallel()
	for name, found := range map[string]bool{"carried out": true, "not carried out": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, _ := newSQLite(t)
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
			in, h := pay(t, db.store, db, e, consumer.EffectConfig{})
			if err := h.Consume(msg(1)); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				runOnce(t, in)
				endLeases(t, db)
			}
			wantEffect(t, in, inbox.EffectDone)
			if want := map[bool]int{true: 1, false: 2}[found]; calls != want || probes != 2 {
				t.Errorf("%d calls and %d probes", calls, probes)
			}
			db.wantEffects(t, 1)
		})
	}
}

func TestMessageMayNeedNoEffect(t *testing.T) {
	t.Parallel()
	db, _ := newSQLite(t)
	e := paying(db, provider{t.TempDir()})
	prepare := e.Prepare
	e.Prepare = func(ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) (charge, error) {
		c, err := prepare(ctx, w, msg)
		return c, errors.Join(err, consumer.ErrNoEffect)
	}
	in, h := pay(t, db.store, db, e, consumer.EffectConfig{})
	if err := h.Consume(msg(1)); err != nil {
		t.Fatal(err)
	}
	if list, err := in.ListEffects(t.Context(), inbox.EffectFilter{}); err != nil || len(list) != 0 || h.Counters().Applied != 1 {
		t.Errorf("effects are %+v, %v", list, err)
	}
	if n := db.number(`SELECT count(*) FROM boxpair_outbox_events`); n != 1 {
		t.Errorf("%d events written", n)
	}
}

func TestEffectsThatCannotBeAreRefused(t *testing.T) {
	t.Parallel()
	db, _ := newSQLite(t)
	in, err := consumer.New(db.store, nil, consumer.Config{Service: "stock"})
	if err != nil {
		t.Fatal(err)
	}
	e := paying(db, provider{t.TempDir()})
	_, err = consumer.HandleEffect(in, "pay", e, consumer.EffectConfig{Timeout: -1, MinBackoff: 2, MaxBackoff: 1, Concurrency: -1, Lease: -2})
	for _, field := range []string{"Timeout", "Lease", "MaxBackoff", "Concurrency"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("error does not name %s: %v", field, err)
		}
	}
	e.Do = nil
	if _, err = consumer.HandleEffect(in, "pay", e, consumer.EffectConfig{}); err == nil || !strings.Contains(err.Error(), "Do") {
		t.Error(err)
	}
	r := newRig(t, setup{})
	_, err = consumer.HandleEffect(r.inbox, "pay", consumer.Effect[*fakeTx, int, int]{}, consumer.EffectConfig{})
	if !errors.Is(err, consumer.ErrNoLedger) {
		t.Error(err)
	}
	if _, err := in.RedriveEffects(t.Context(), inbox.EffectFilter{}, "mended"); err == nil {
		t.Error("everything was redriven")
	}
	some := inbox.EffectFilter{States: []inbox.EffectState{inbox.EffectDead}}
	for _, reason := range []string{"", "a\x00b", strings.Repeat("a", 1025)} {
		if _, err := in.RedriveEffects(t.Context(), some, reason); err == nil {
			t.Errorf("redriven with the reason %q", reason)
		}
		if _, err := in.DiscardEffects(t.Context(), some, reason); err == nil {
			t.Errorf("discarded with the reason %q", reason)
		}
		if _, err := in.ResolveEffect(t.Context(), number(1), 1, reason); err == nil {
			t.Errorf("resolved with the reason %q", reason)
		}
	}
}

func TestEffectsOfAKeyAreCarriedOutInOrder(t *testing.T) {
	t.Parallel()
	db, _ := newSQLite(t)
	e := paying(db, provider{t.TempDir()})
	var order []string
	fail := true
	e.Do = func(_ context.Context, key uuid.UUID, c charge) (receipt, error) {
		if fail {
			fail = false
			return receipt{}, consumer.NotDone(errHandler)
		}
		order = append(order, c.Order)
		return receipt{Number: key.String()}, nil
	}
	inbox, h := pay(t, db.store, db, e, consumer.EffectConfig{Handler: consumer.HandlerConfig{Ordered: true}})
	var want []string
	for n := range 4 {
		if err := h.Consume(keyed(n, "a")); err != nil {
			t.Fatal(err)
		}
		want = append(want, number(n).String())
	}
	runOnce(t, inbox)
	if len(order) != 0 {
		t.Errorf("%v did not wait", order)
	}
	endLeases(t, db)
	runOnce(t, inbox)
	if !slices.Equal(order, want) {
		t.Errorf("order is %v, want %v", order, want)
	}
}
