package consumer_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

func TestOrderedHandlerRefusesMessagesThatAreOrderedByAnotherKey(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name       string
		ordered    bool
		subscriber string
		refused    bool
	}{
		{"the same key", true, "k", false},
		{"another key", true, "other", true},
		{"no key", true, "", true},
		{"another key where no order is asked for", false, "other", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, setup{handler: consumer.HandlerConfig{Ordered: test.ordered}})
			m := keyed(1, "k")
			m.SetContext(transport.WithOrderingKey(m.Context(), test.subscriber))
			err := r.handler.Consume(m)
			if errors.Is(err, consumer.ErrOtherKey) != test.refused || (err != nil) != test.refused {
				t.Errorf("Consume: %v", err)
			}
			if test.refused {
				r.wantCalls(0)
				r.wantLog("level=ERROR", "another key", number(1).String())
			}
		})
	}
}

func TestWhatAHandlerDoesToThePayloadIsNotParked(t *testing.T) {
	t.Parallel()
	var seen []string
	r := newRig(t, setup{handler: consumer.HandlerConfig{QuickAttempts: 2, QuickBackoff: 1}, fn: func(_ context.Context, w *work, m *message.Message) error {
		seen = append(seen, string(m.Payload))
		clear(m.Payload)
		clear(w.Event().Payload)
		return errHandler
	}})
	r.consume(msg(1))
	want := string(msg(1).Payload)
	if len(seen) != 2 || seen[1] != want || string(r.parked().Payload) != want {
		t.Errorf("attempts saw %q, parked is %q; want %q", seen, r.parked().Payload, want)
	}
}

func TestHungMemberOfAGroupDoesNotHoldUpTheNextGroup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hung := make(chan struct{})
		r := newRig(t, setup{handler: consumer.HandlerConfig{GroupSize: 8}, fn: func(_ context.Context, _ *work, m *message.Message) error {
			if m.UUID == number(0).String() {
				<-hung
			}
			return nil
		}})
		var first, rest sync.WaitGroup
		first.Go(func() { r.consume(msg(0)) })
		synctest.Wait()
		began := time.Now()
		for n := 1; n < 8; n++ {
			rest.Go(func() { r.consume(msg(n)) })
		}
		rest.Wait()
		if waited := time.Since(began); waited > time.Second {
			t.Errorf("waited for %v", waited)
		}
		close(hung)
		first.Wait()
	})
}

func TestEqualMessagesWithoutADispatchIDAreAllKept(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	bare := func() *message.Message { return message.NewMessage("", []byte("payload")) }
	for range 3 {
		r.consume(bare())
	}
	r.wantStates(inbox.Dead, inbox.Dead, inbox.Dead)
	for range 3 { // these may be one
		r.consume(again(bare()))
	}
	r.wantStates(inbox.Dead, inbox.Dead, inbox.Dead, inbox.Dead)
}

func TestEffectThatWasRedrivenAndNotCarriedOutIsTriedAgain(t *testing.T) {
	t.Parallel()
	onEach(t, redrivenNotDone[pgx.Tx], redrivenNotDone[*sql.Tx])
}

func redrivenNotDone[TX any](t *testing.T, db *database[TX]) {
	p := provider{t.TempDir()}
	e := paying(db, p)
	answers := []error{errors.New("lost"), consumer.NotDone(errors.New("busy")), nil}
	e.Do = func(_ context.Context, key uuid.UUID, c charge) (receipt, error) {
		err := answers[0]
		answers = answers[1:]
		if err != nil {
			return receipt{}, err
		}
		return p.charge(key, c)
	}
	in, h := pay(t, db.store, db, e, consumer.EffectConfig{})
	if err := h.Consume(msg(1)); err != nil {
		t.Fatal(err)
	}
	runOnce(t, in)
	wantEffect(t, in, inbox.EffectUncertain)
	if _, err := in.RedriveEffects(t.Context(), inbox.EffectFilter{Keys: []uuid.UUID{consumer.EffectKey("stock/pay", number(1))}}, "it was not"); err != nil {
		t.Fatal(err)
	}
	runOnce(t, in)
	wantEffect(t, in, inbox.EffectPending)
	endLeases(t, db)
	runOnce(t, in)
	wantEffect(t, in, inbox.EffectDone)
	p.wantCharges(t, number(1), 1)
}

func TestUnreadableParkedMessageIsDeadAndStopsNoOther(t *testing.T) {
	t.Parallel()
	onEach(t, unreadable[pgx.Tx], unreadable[*sql.Tx])
}

func unreadable[TX any](t *testing.T, db *database[TX]) {
	fails := true
	in, h := handle(t, db, consumer.Config{}, consumer.HandlerConfig{}, func(ctx context.Context, w *consumer.Work[TX], _ *message.Message) error {
		if fails {
			return consumer.RetryAfter(0, errHandler)
		}
		return db.do(ctx, w)
	})
	for n := range 3 {
		if err := h.Consume(msg(n)); err != nil {
			t.Fatal(err)
		}
	}
	found, err := in.ListParked(t.Context(), inbox.Filter{})
	if err != nil || len(found) != 3 {
		t.Fatalf("%d parked, %v", len(found), err)
	}
	column := "seq"
	if db.snapshots {
		column = "id"
	}
	if err := execute(t, db, `UPDATE `+table(db, "inbox_parked")+` SET metadata = '[]' WHERE `+column+` = (SELECT min(`+column+`) FROM `+table(db, "inbox_parked")+`)`); err != nil {
		t.Fatal(err)
	}
	fails = false
	runOnce(t, in)
	db.wantEffects(t, 2)
	found, err = in.ListParked(t.Context(), inbox.Filter{})
	if err != nil || len(found) != 1 || found[0].State != inbox.Dead || found[0].Unreadable == nil {
		t.Errorf("parked: %+v, %v", found, err)
	}
}

func TestParkedMessagesOfARenamedHandlerAreReported(t *testing.T) {
	t.Parallel()
	onEach(t, renamed[pgx.Tx], renamed[*sql.Tx])
}

func renamed[TX any](t *testing.T, db *database[TX]) {
	_, before := handle(t, db, consumer.Config{}, consumer.HandlerConfig{}, func(context.Context, *consumer.Work[TX], *message.Message) error {
		return consumer.Reject(errHandler)
	})
	if err := before.Consume(msg(1)); err != nil {
		t.Fatal(err)
	}
	var log logBuffer
	inbox, err := consumer.New(db.store, db.outbox, consumer.Config{Service: "stock", PollInterval: time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := inbox.Handle("book", nothing[TX], consumer.HandlerConfig{Topic: "orders"}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- inbox.Run(ctx) }()
	waitFor(t, func() bool { return strings.Contains(log.String(), before.Name()) })
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if text := log.String(); !strings.Contains(text, "level=WARN") || !strings.Contains(text, "renamed") {
		t.Errorf("log: %s", text)
	}
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
	db, _ := newSQLite(t)
	store := &cutOff{Store: db.store, EffectStore: db.store.(inbox.EffectStore[*sql.Tx])}
	store.down.Store(true)
	inbox, err := consumer.New[*sql.Tx](store, db.outbox, consumer.Config{Service: "stock", MaxHold: time.Millisecond, PollInterval: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	p := provider{t.TempDir()}
	h, err := consumer.HandleEffect(inbox, "pay", paying(db, p), consumer.EffectConfig{MinBackoff: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Consume(msg(1)); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- inbox.Run(ctx) }()
	waitFor(t, func() bool { return store.tries.Load() > 1 }) // MaxHold is over
	store.down.Store(false)
	waitFor(t, func() bool { return h.Counters().EffectsDone == 1 })
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	p.wantCharges(t, number(1), 1)
}

// The transaction that one handler of a group has ended says nothing about a message that was
// applied before it, nor about one whose claim is free afterwards.
func TestMessagesOfAnEndedGroupAreSetAsideOnlyIfItsTransactionMayHaveClaimedThem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ended, lost atomic.Bool
		s := grouped(func(_ context.Context, w *work, _ *message.Message) error {
			if w.Event().ID == number(3) && ended.CompareAndSwap(false, true) {
				return inbox.ErrEnded
			}
			return nil
		})
		s.config.CacheSize = -1
		r := newRig(t, s)
		r.store.setFault(func(step string) error { // the first commit after that
			if step == "answer" && ended.Load() && lost.CompareAndSwap(false, true) {
				return inbox.ErrCommitUnknown
			}
			return nil
		})
		r.consume(msg(1))
		r.wantAll(r.crowd(msgs(5)...))
		for n := range 5 {
			r.wantDone(number(n), 1)
		}
		r.wantStates()
	})
}
