package consumer_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
)

var errHandler = errors.New("stock is counted")

// failing is a handler function that fails so often.
func failing(times int64) (consumer.HandlerFunc[*fakeTx], *atomic.Int64) {
	var n atomic.Int64
	return func(context.Context, *work, *message.Message) error {
		if n.Add(1) <= times {
			return errHandler
		}
		return nil
	}, &n
}

func TestFailureIsRetriedQuicklyAndThenParked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fn, _ := failing(3)
		r := newRig(t, setup{fn: fn})
		begun := time.Now()
		r.consume(msg(1)) // acknowledged, since it is kept
		if took := time.Since(begun); took < 75*time.Millisecond || took > 150*time.Millisecond {
			t.Errorf("three quick attempts took %v", took)
		}
		r.wantCalls(3)
		r.wantStates(inbox.Retrying)
		p := r.parked()
		if p.Attempts != 3 || p.LastError != errHandler.Error() {
			t.Errorf("parked after %d attempts with %q", p.Attempts, p.LastError)
		}
		if wait := time.Until(p.NextAttemptAt); wait < time.Second/2 || wait > time.Second {
			t.Errorf("due in %v", wait)
		}
		r.consume(msg(1)) // a further copy
		r.wantCalls(3)

		stop := r.run()
		time.Sleep(time.Second)
		synctest.Wait()
		stop()
		r.wantCalls(4)
		r.wantDone(number(1), 1)
		r.wantStates()
		r.wantLog("level=WARN", "handler failed", "dispatch_id="+number(1).String(), "consumer=stock/reserve", "attempts=2", "correlation_id=conversation")
	})
}

func TestMessageIsDeadAfterItsAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fn, calls := failing(1 << 20)
		r := newRig(t, setup{fn: fn})
		stop := r.run()
		defer stop()
		r.consume(msg(1))
		time.Sleep(2 * time.Hour)
		if calls.Load() != 10 {
			t.Errorf("%d attempts", calls.Load())
		}
		r.wantStates(inbox.Dead)
		if p := r.parked(); p.Attempts != 10 {
			t.Errorf("dead after %d attempts", p.Attempts)
		}
		if c := r.handler.Counters(); c.Dead != 1 || c.Parked != 1 || c.Failed != 10 {
			t.Errorf("counters: %+v", c)
		}
		r.wantLog("level=ERROR", "handler failed: message is dead", "attempts=10")
		if lines := strings.Count(r.log.String(), "level=WARN") + strings.Count(r.log.String(), "level=ERROR"); lines != 10 {
			t.Errorf("%d records of 10 failed attempts:\n%s", lines, r.log.String())
		}

		// An operator has it run again, from its first attempt on.
		ids, err := r.inbox.Redrive(t.Context(), inbox.Filter{}, "mended")
		if err != nil || len(ids) != 1 {
			t.Fatalf("Redrive: %v, %v", ids, err)
		}
		synctest.Wait()
		if calls.Load() != 11 || r.parked().State != inbox.Retrying || r.parked().Attempts != 1 {
			t.Errorf("after the redrive: %d calls, %+v", calls.Load(), r.parked())
		}
		r.wantLog("redriven", "dispatch_id="+number(1).String(), "reason=mended")
	})
}

func TestLastAttemptIsDeadWhereverItIsMade(t *testing.T) {
	t.Parallel()
	fn, calls := failing(1 << 20)
	r := newRig(t, setup{fn: fn, handler: consumer.HandlerConfig{Retry: consumer.RetryConfig{MaxAttempts: 2, QuickBackoff: 1}}})
	r.consume(msg(1))
	r.wantStates(inbox.Dead)
	if calls.Load() != 2 {
		t.Errorf("%d attempts", calls.Load())
	}
}

func TestRejectedMessageIsDeadAtOnce(t *testing.T) {
	t.Parallel()
	for name, attempts := range map[string]int64{"when delivered": 0, "when parked": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var n int64
				r := newRig(t, setup{fn: func(context.Context, *work, *message.Message) error {
					if n++; n > attempts {
						return consumer.Reject(errHandler)
					}
					return errHandler
				}})
				stop := r.run()
				r.consume(msg(1))
				time.Sleep(time.Minute)
				stop()
				r.wantCalls(attempts + 1)
				r.wantStates(inbox.Dead)
				if p := r.parked(); p.Attempts != int(attempts)+1 || p.LastError != "rejected: "+errHandler.Error() {
					t.Errorf("%d attempts, %q", p.Attempts, p.LastError)
				}
				r.consume(msg(1)) // a dead one's copy is a duplicate
				r.wantCalls(attempts + 1)
			})
		})
	}
}

func TestRetryAfterSaysWhenAndCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{
			handler: consumer.HandlerConfig{Retry: consumer.RetryConfig{MaxAttempts: 3}},
			fn: func(context.Context, *work, *message.Message) error {
				return consumer.RetryAfter(time.Hour, errHandler)
			},
		})
		stop := r.run()
		defer stop()
		r.consume(msg(1))
		for want := int64(1); want <= 3; want++ {
			synctest.Wait()
			r.wantCalls(want)
			if p := r.parked(); p.Attempts != int(want) {
				t.Errorf("%d attempts counted, want %d", p.Attempts, want)
			}
			time.Sleep(time.Hour)
		}
		r.wantCalls(3)
		r.wantStates(inbox.Dead)
	})
}

func TestConflictWithAnEventOfOtherContentIsDeadAtOnce(t *testing.T) {
	t.Parallel()
	store := newFake()
	outbox, err := producer.New(&fakeOutbox{fake: store, conflict: true}, producer.Config{Name: "stock"})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, setup{store: store, outbox: outbox, fn: func(ctx context.Context, w *work, _ *message.Message) error {
		_, _ = w.Write(ctx, producer.Event{Topic: "reserved"}) // nor can the error be swallowed
		return nil
	}})
	r.consume(msg(1))
	r.wantCalls(1)
	r.wantDone(number(1), 0)
	r.wantStates(inbox.Dead)
}

func TestPanicAndGoexitAreFailures(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(){
		"panic":  func() { panic("stock is gone") },
		"error":  func() { panic(errHandler) },
		"struct": func() { panic(struct{ s string }{"secret"}) },
		"goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, setup{
				handler: consumer.HandlerConfig{Retry: consumer.RetryConfig{QuickAttempts: 2, QuickBackoff: time.Nanosecond}},
				fn: func(context.Context, *work, *message.Message) error {
					end()
					return nil
				},
			})
			r.consume(msg(1))
			r.wantCalls(2)
			r.wantDone(number(1), 0)
			r.wantStates(inbox.Retrying)
			if c := r.handler.Counters(); c.Panics != 2 || c.Failed != 2 {
				t.Errorf("counters: %+v", c)
			}
			if name != "goexit" {
				r.wantLog("level=ERROR", "handler panicked", "TestPanicAndGoexitAreFailures")
			}
			if strings.Contains(r.log.String(), "secret") {
				t.Errorf("the log tells content:\n%s", r.log)
			}
		})
	}
}

func TestSwallowedErrorOfAStatementIsNoSuccess(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{
		handler: consumer.HandlerConfig{Retry: consumer.RetryConfig{QuickAttempts: 1}},
		fn: func(_ context.Context, w *work, _ *message.Message) error {
			w.DB().broken = true
			return nil
		},
	})
	r.consume(msg(1))
	r.wantDone(number(1), 0)
	r.wantStates(inbox.Retrying)
	if p := r.parked(); !strings.Contains(p.LastError, "rolled the transaction back") {
		t.Errorf("parked with %q", p.LastError)
	}
}

func TestErrorTextFitsTheDatabase(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{fn: func(context.Context, *work, *message.Message) error {
		return consumer.Reject(errors.New("a\x00b\xffc" + strings.Repeat("ä", 2000)))
	}})
	r.consume(msg(1))
	got := r.parked().LastError
	if !utf8.ValidString(got) || strings.Contains(got, "\x00") || len(got) > 1024 || len(got) < 1020 {
		t.Errorf("kept %d bytes, starting with %q", len(got), got[:20])
	}
}

func TestHandlerThatOverrunsItsDeadlineCountsWhateverTheErrorIs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{
			handler: consumer.HandlerConfig{Timeout: time.Second},
			fn: func(ctx context.Context, _ *work, _ *message.Message) error {
				<-ctx.Done()
				return errOutage // as when the driver gave the connection up
			},
		})
		begun := time.Now()
		r.consume(msg(1))
		if took := time.Since(begun); took < 3*time.Second || took > 4*time.Second {
			t.Errorf("three attempts took %v", took)
		}
		r.wantStates(inbox.Retrying)
		if p := r.parked(); p.Attempts != 3 {
			t.Errorf("%d attempts counted", p.Attempts)
		}
	})
}

func TestOrderOfAKeyIsKeptThroughParking(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var order []string
		n := 0
		r := newRig(t, setup{
			handler: consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}, Retry: consumer.RetryConfig{QuickAttempts: 1}},
			fn: func(_ context.Context, w *work, m *message.Message) error {
				if m.UUID == number(1).String() {
					if n++; n <= 2 {
						return errHandler
					}
				}
				order = append(order, m.UUID[35:])
				return nil
			},
		})
		stop := r.run()
		for i := range 4 {
			r.consume(keyed(1+i, "k"))
		}
		r.consume(keyed(8, "other"))
		time.Sleep(time.Minute)
		stop()
		if got := strings.Join(order, ""); got != "92345" {
			t.Errorf("applied in the order %s", got)
		}
		r.wantStates()
		if c := r.handler.Counters(); c.Followed != 3 || c.Applied != 5 {
			t.Errorf("counters: %+v", c)
		}
	})
}

func TestCopyThatWasAppliedMeanwhileIsNotParked(t *testing.T) {
	t.Parallel()
	store := newFake()
	var other *rig
	r := newRig(t, setup{
		store:   store,
		handler: consumer.HandlerConfig{Retry: consumer.RetryConfig{QuickAttempts: 1}},
		fn:      func(context.Context, *work, *message.Message) error { return errHandler },
	})
	other = newRig(t, setup{store: store})
	store.setFault(func(step string) error {
		if step == "failed" { // between the failure and the parking
			other.consume(msg(1))
		}
		return nil
	})
	r.consume(msg(1))
	r.wantStates()
	r.wantDone(number(1), 1)
	if c := r.handler.Counters(); c.Parked != 0 || c.DuplicatesByTable != 1 {
		t.Errorf("counters: %+v", c)
	}
}
