package consumer_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
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
			r := newRig(t, setup{handler: consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: test.ordered}}})
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
	r := newRig(t, setup{handler: consumer.HandlerConfig{Retry: consumer.RetryConfig{QuickAttempts: 2, QuickBackoff: 1}}, fn: func(_ context.Context, w *work, m *message.Message) error {
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
		r := newRig(t, setup{handler: consumer.HandlerConfig{Group: consumer.GroupConfig{Size: 8}}, fn: func(_ context.Context, _ *work, m *message.Message) error {
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
		return db.Do(ctx, w)
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
	if db.Snapshots {
		column = "id"
	}
	if err := db.Execute(t, `UPDATE `+db.Table("inbox_parked")+` SET metadata = '[]' WHERE `+column+` = (SELECT min(`+column+`) FROM `+db.Table("inbox_parked")+`)`); err != nil {
		t.Fatal(err)
	}
	fails = false
	runOnce(t, in)
	db.WantEffects(t, 2)
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
	inbox, err := consumer.New(db.Store, consumer.Config{Service: "stock", PollInterval: time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil))}, consumer.WithOutbox(db.Outbox))
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
