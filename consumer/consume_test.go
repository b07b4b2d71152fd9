package consumer_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

func TestCopiesAreAcknowledgedWithoutRunningTheHandler(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"window": 0, "window of one": 1, "no window": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, setup{config: consumer.Config{CacheSize: size}})
			for range 3 {
				for n := range 4 {
					r.consume(msg(n))
				}
			}
			r.wantCalls(4)
			for n := range 4 {
				r.wantDone(number(n), 1)
			}
			c := r.handler.Counters()
			if c.Applied != 4 || c.Duplicates() != 8 {
				t.Errorf("counters: %+v", c)
			}
			if size == 0 && c.DuplicatesByTable != 0 {
				t.Errorf("%d duplicates asked the database", c.DuplicatesByTable)
			}
		})
	}
}

func TestRestartedConsumerIsWarmedFromTheTable(t *testing.T) {
	t.Parallel()
	first := newRig(t, setup{})
	first.consume(msg(1))
	second := newRig(t, setup{store: first.store})
	second.consume(msg(1))
	second.wantCalls(0)
	if c := second.handler.Counters(); c.DuplicatesByWindow != 1 {
		t.Errorf("counters: %+v", c)
	}
}

func TestNothingIsRememberedBeforeItsCommit(t *testing.T) {
	t.Parallel()
	store := newFake()
	r := newRig(t, setup{store: store})
	r.consume(msg(0))
	store.fail("commit", errConflict)
	m := msg(1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // so that it is not held
	m.SetContext(ctx)
	if err := r.handler.Consume(m); !errors.Is(err, errConflict) {
		t.Fatalf("Consume: %v", err)
	}
	store.setFault(nil)
	r.consume(msg(1))
	r.wantCalls(3)
	r.wantDone(number(1), 1)
}

func TestUnknownCommitThatHappenedIsNotRunAgain(t *testing.T) {
	t.Parallel()
	store := newFake()
	r := newRig(t, setup{store: store})
	store.failCalls("answer", 1, 1, inbox.ErrCommitUnknown)
	r.consume(msg(1))
	r.wantCalls(1)
	r.wantDone(number(1), 1)
	if c := r.handler.Counters(); c.Applied != 1 || c.CommitsUnknown != 1 || c.Duplicates() != 0 {
		t.Errorf("counters: %+v", c)
	}
}

func TestUnknownCommitThatDidNotHappenIsRunAgainAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		r := newRig(t, setup{store: store})
		store.failCalls("commit", 1, 1, inbox.ErrCommitUnknown)
		begun := time.Now()
		r.consume(msg(1))
		if took := time.Since(begun); took != 0 {
			t.Errorf("waited for %v", took)
		}
		r.wantCalls(2)
		r.wantDone(number(1), 1)
		if c := r.handler.Counters(); c.Applied != 1 || c.Failed != 0 {
			t.Errorf("counters: %+v", c)
		}
	})
}

func TestOtherContentUnderAnAppliedIDIsSetAside(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"window": 0, "no window": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, setup{config: consumer.Config{CacheSize: size}})
			r.consume(msg(1))
			altered := event(1)
			altered.Payload = []byte("another payload")
			altered.Digest = transport.ContentDigest(&altered)
			r.consume(fresh(altered))
			r.wantCalls(1)
			r.wantStates(inbox.AlteredState)
			r.wantLog("level=ERROR", "other content", number(1).String())
			r.consume(msg(1)) // the true one is still a duplicate
			r.wantStates(inbox.AlteredState)
		})
	}
}

// A copy without a digest is a duplicate, but what was claimed may have one. If the
// window learned the ID from that copy, it would take any content for a duplicate.
func TestCopyWithoutDigestDoesNotHideAnAlteredOne(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{config: consumer.Config{CacheSize: 1}})
	r.consume(msg(1))
	r.consume(msg(2)) // takes the only place in the window
	bare := event(1)
	bare.Digest = transport.Digest{}
	r.consume(fresh(bare))
	altered := event(1)
	altered.Digest = transport.Digest{1}
	r.consume(fresh(altered))
	r.wantStates(inbox.AlteredState)
}

func TestMessageFromForgottenTimesIsSetAside(t *testing.T) {
	t.Parallel()
	store := newFake()
	store.forgotten = time.Now().Add(-time.Hour)
	r := newRig(t, setup{store: store})
	old := event(1)
	old.Stamp = time.Now().Add(-2 * time.Hour)
	r.consume(fresh(old))
	r.wantCalls(0)
	r.wantStates(inbox.TooOldState)
	r.wantLog("level=ERROR", "forgotten", number(1).String())
}

func TestOneOfManyRacingCopiesIsApplied(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{config: consumer.Config{CacheSize: 1}})
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for n := range 50 {
				if err := r.handler.Consume(msg(n)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for n := range 50 {
		r.wantDone(number(n), 1)
	}
	if c := r.handler.Counters(); c.Applied != 50 || c.Duplicates() != 31*50 {
		t.Errorf("counters: %+v", c)
	}
}

func TestTwoHandlersOfOneTopicBothRun(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	mails := 0
	mail, err := r.inbox.Handle("mail", func(context.Context, *work, *message.Message) error {
		mails++
		return nil
	}, consumer.HandlerConfig{Topic: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	r.consume(msg(1))
	for range 2 {
		if err := mail.Consume(msg(1)); err != nil {
			t.Fatal(err)
		}
	}
	r.wantCalls(1)
	if mails != 1 {
		t.Errorf("the second handler ran %d times", mails)
	}
	if r.handler.Name() != "stock/reserve" || mail.Name() != "stock/mail" {
		t.Errorf("names: %q, %q", r.handler.Name(), mail.Name())
	}
}

func TestTwoHandlersUnderOneNameAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	_, err := r.inbox.Handle("reserve", func(context.Context, *work, *message.Message) error { return nil }, consumer.HandlerConfig{})
	if !errors.Is(err, consumer.ErrDuplicateName) {
		t.Errorf("Handle: %v", err)
	}
}

func TestMessageWithoutDispatchIDNeverReachesTheHandler(t *testing.T) {
	t.Parallel()
	for name, id := range map[string]string{
		"phantom": "", "nil UUID": uuid.Nil.String(), "ULID": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "urn": "urn:uuid:" + number(1).String(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, setup{})
			r.consume(again(message.NewMessage(id, nil)))
			r.consume(again(message.NewMessage(id, nil))) // kept once
			r.consume(message.NewMessage(id, []byte("other")))
			r.wantCalls(0)
			r.wantStates(inbox.Dead, inbox.Dead)
			found, _ := r.inbox.ListParked(t.Context(), inbox.Filter{})
			if !strings.Contains(found[0].LastError, "not a dispatch ID") || found[0].Metadata[consumer.MetaForeignID] != id {
				t.Errorf("parked as %q, %v", found[0].LastError, found[0].Metadata)
			}
			if c := r.handler.Counters(); c.Refused != 3 || c.Dead != 2 {
				t.Errorf("counters: %+v", c)
			}
			r.wantLog("level=ERROR", "cannot be handled")
		})
	}
}

func TestForeignIDsAreDerivedOnRequest(t *testing.T) {
	t.Parallel()
	const ulid = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	var seen string
	r := newRig(t, setup{
		handler: consumer.HandlerConfig{DeriveID: true},
		fn: func(_ context.Context, _ *work, m *message.Message) error {
			seen = m.UUID
			return nil
		},
	})
	r.consume(message.NewMessage(ulid, nil))
	r.consume(message.NewMessage(ulid, nil))
	r.wantCalls(1)
	if want := idgen.OfKey("", "orders", ulid, 0).String(); seen != want {
		t.Errorf("handler saw %s, want %s", seen, want)
	}
	r.consume(message.NewMessage("", nil)) // still nothing to derive it from
	r.wantCalls(1)
	r.wantStates(inbox.Dead)
}

func TestUnreadableMessageDoesNotTakeTheDispatchIDOfAnother(t *testing.T) {
	t.Parallel()
	for _, name := range []string{transport.MetaDigest, transport.MetaStamp, transport.MetaVersion} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, setup{handler: consumer.HandlerConfig{DeriveID: true}})
			bad := msg(1)
			bad.Metadata[name] = "secret nonsense"
			r.consume(bad)
			r.wantCalls(0)
			r.wantStates(inbox.Dead)
			r.consume(msg(1))
			r.wantDone(number(1), 1)
			if strings.Contains(r.log.String(), "secret") {
				t.Errorf("the log tells content:\n%s", r.log)
			}
		})
	}
}

func TestHandlerGetsACopyThatCannotAcknowledge(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{fn: func(_ context.Context, _ *work, m *message.Message) error {
		m.Ack()
		m.Metadata["mine"] = "x"
		return nil
	}})
	m := msg(1)
	r.consume(m)
	if m.Metadata["mine"] != "" {
		t.Error("the handler changed the delivered message")
	}
	if !m.Nack() {
		t.Error("the handler acknowledged the delivered message")
	}
}

func TestNothingIsAcknowledgedWhileItsHandlerRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		running := make(chan struct{})
		r := newRig(t, setup{fn: func(_ context.Context, w *work, _ *message.Message) error {
			if w.Event().ID == number(2) {
				<-running
			}
			return nil
		}})
		r.consume(msg(1)) // and so the consumer is registered
		acknowledged := make(chan error, 1)
		go func() { acknowledged <- r.handler.Consume(msg(2)) }()
		synctest.Wait()
		select {
		case err := <-acknowledged:
			t.Errorf("answered with %v before the handler had ended", err)
		default:
		}
		r.wantDone(number(2), 0)
		close(running)
		synctest.Wait()
		r.wantDone(number(2), 1)
	})
}

func TestTransactionOutlivesTheRoutersContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	r := newRig(t, setup{fn: func(ctx context.Context, _ *work, m *message.Message) error {
		cancel() // the router closes
		if _, ok := ctx.Deadline(); !ok {
			t.Error("no deadline")
		}
		return errors.Join(ctx.Err(), m.Context().Err())
	}})
	m := msg(1)
	m.SetContext(ctx)
	r.consume(m)
	r.wantDone(number(1), 1)
}

func TestKeyThatNoDatabaseKeepsIsHashed(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"NUL": "a\x00b", "not UTF-8": "a\xff", "long": strings.Repeat("k", 300)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, setup{
				handler: consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}},
				fn:      func(context.Context, *work, *message.Message) error { return consumer.RetryAfter(time.Hour, nil) },
			})
			r.consume(keyed(1, key))
			if got := r.parked().Key; !strings.HasPrefix(got, "sha256:") || len(got) > 80 {
				t.Errorf("key kept as %q", got)
			}
			r.consume(keyed(2, key))
			r.wantStates(inbox.Retrying, inbox.Following)
		})
	}
}

func TestKeyComesFromTheConfiguredFunction(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{
		handler: consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true, Key: func(m *message.Message) string {
			if m.Metadata["customer"] == "" {
				panic("no customer")
			}
			return m.Metadata["customer"]
		}}},
		fn: func(context.Context, *work, *message.Message) error { return consumer.RetryAfter(time.Hour, nil) },
	})
	m := msg(1)
	m.Metadata["customer"] = "c7"
	r.consume(m)
	if p := r.parked(); p.Key != "c7" {
		t.Errorf("parked with the key %q", p.Key)
	}
	r.consume(msg(2)) // on which it panics: refused, or it would come back for ever
	r.wantStates(inbox.Retrying, inbox.Dead)
}
