package consumer_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/inbox"
)

// notices collects what an observer is told, in order.
type notices struct {
	mu  sync.Mutex
	all []string
}

func (n *notices) add(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, fmt.Sprintf(format, args...))
}

// take returns the notices since the last take. It runs in a synctest bubble.
func (n *notices) take() []string {
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.all
	n.all = nil
	return all
}

func (n *notices) want(t *testing.T, want ...string) {
	t.Helper()
	if got := n.take(); !reflect.DeepEqual(got, want) {
		t.Errorf("notices:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func (n *notices) observer() consumer.Observer {
	told := func(what string) func(consumer.MessageNotice) {
		return func(m consumer.MessageNotice) {
			n.add("%s %s by %s: %s after %d, again in %v: %s", what, m.ID, m.Consumer, m.State, m.Attempts, m.RetryIn, m.Error)
		}
	}
	return consumer.Observer{
		OnDead: told("dead"), OnParked: told("parked"),
		OnPaused:  func(p consumer.PauseNotice) { n.add("%s paused %v %q", p.Consumer, p.Paused, p.Pause.Reason) },
		OnStalled: func(s consumer.StallNotice) { n.add("%s stalled %v %q", s.Consumer, s.Stalled, s.Error) },
	}
}

func TestObserverIsToldOfParkedAndDeadMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n notices
		fail := func(int) error { return consumer.RetryAfter(time.Hour, errHandler) }
		runs := 0
		r := newRig(t, setup{
			config:  consumer.Config{Observer: n.observer()},
			handler: consumer.HandlerConfig{Retry: consumer.RetryConfig{MaxAttempts: 3}, Order: consumer.OrderConfig{ByKey: true}},
			fn: func(context.Context, *work, *message.Message) error {
				runs++
				return fail(runs)
			},
		})
		told := func(what string, n int, state inbox.State, attempts int, retryIn, why string) string {
			return fmt.Sprintf("%s %s by stock/reserve: %s after %d, again in %s: %s", what, number(n), state, attempts, retryIn, why)
		}
		r.consume(keyed(0, "a"))
		n.want(t, told("parked", 0, inbox.Retrying, 1, "1h0m0s", errHandler.Error()))
		r.consume(keyed(1, "a"))
		n.want(t, told("parked", 1, inbox.Following, 0, "0s", ""))
		time.Sleep(time.Hour)
		fail = func(run int) error {
			if run > 3 {
				return nil
			}
			return consumer.RetryAfter(0, errHandler)
		}
		if err := r.inbox.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		n.want(t, told("parked", 0, inbox.Retrying, 2, "0s", errHandler.Error()))
		if err := r.inbox.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		n.want(t, told("dead", 0, inbox.Dead, 3, "0s", errHandler.Error()))
		fail = func(int) error { return consumer.Reject(errHandler) }
		r.consume(msg(2))
		n.want(t, told("dead", 2, inbox.Dead, 1, "0s", "rejected: "+errHandler.Error()))
		r.store.forgotten = time.Now()
		old := event(3)
		old.Stamp = time.Now().Add(-time.Hour)
		r.consume(fresh(old))
		n.want(t, told("parked", 3, inbox.TooOldState, 0, "0s", "older than what the consumer remembers"))
	})
}

func TestNoticeNamesTheMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got consumer.MessageNotice
		r := newRig(t, setup{
			config: consumer.Config{Observer: consumer.Observer{OnDead: func(m consumer.MessageNotice) { got = m }}},
			fn:     func(context.Context, *work, *message.Message) error { return consumer.Reject(errHandler) },
		})
		e := event(7)
		e.Key, e.CorrelationID = "a", "order 7"
		r.consume(fresh(e))
		synctest.Wait()
		want := consumer.MessageNotice{
			ID: number(7), Consumer: "stock/reserve", Topic: "orders", Key: "a", CorrelationID: "order 7",
			State: inbox.Dead, Attempts: 1, Error: "rejected: " + errHandler.Error(),
		}
		if got != want {
			t.Errorf("notice: %+v", got)
		}
	})
}

func TestObserverIsToldOfAPauseAndItsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n notices
		r := newRig(t, setup{config: consumer.Config{Observer: n.observer()}})
		r.pause("stock/*", time.Now().Add(10*time.Second))
		var wg sync.WaitGroup
		for k := range 20 {
			wg.Go(func() { r.consume(msg(k)) })
		}
		time.Sleep(5 * time.Second)
		n.want(t, `stock/reserve paused true "maintenance"`)
		wg.Wait()
		n.want(t, `stock/reserve paused false ""`)
	})
}

func TestObserverIsToldOfAChangedPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n notices
		r := newRig(t, setup{config: consumer.Config{Observer: n.observer()}})
		change := func(reason string, until time.Time) {
			t.Helper()
			if err := r.store.SetPause(t.Context(), control.Pause{Kind: control.Consumer, Name: "stock/*", Reason: reason, Until: until}); err != nil {
				t.Fatal(err)
			}
		}
		change("stock is counted", time.Time{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.consume(msg(0))
		}()
		time.Sleep(5 * time.Second)
		n.want(t, `stock/reserve paused true "stock is counted"`)
		change("stock is counted again", time.Time{})
		time.Sleep(5 * time.Second)
		n.want(t, `stock/reserve paused true "stock is counted again"`)
		change("stock is counted again", time.Now().Add(10*time.Second))
		time.Sleep(5 * time.Second)
		n.want(t, `stock/reserve paused true "stock is counted again"`)
		<-done
		n.want(t, `stock/reserve paused false ""`)
	})
}

func TestObserverIsToldOfAStalledDatabaseOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n notices
		r := newRig(t, setup{config: consumer.Config{MaxHold: 10 * time.Second, Observer: n.observer()}})
		r.consume(msg(0))
		n.want(t)
		r.store.setFault(func(string) error { return errOutage })
		begun := time.Now()
		for time.Since(begun) < 3*time.Minute {
			var wg sync.WaitGroup
			for k := 1; k < 5; k++ {
				wg.Go(func() { _ = r.handler.Consume(msg(k)) })
			}
			wg.Wait()
		}
		stalled := n.take()
		if len(stalled) < 3 || len(stalled) > 4 || !strings.HasPrefix(stalled[0], "stock/reserve stalled true") || !strings.Contains(stalled[0], errOutage.Error()) {
			t.Errorf("notices: %v", stalled)
		}
		r.store.setFault(nil)
		r.consume(msg(1))
		r.consume(msg(2))
		n.want(t, `stock/reserve stalled false ""`)
	})
}

func TestEndOfAStallIsToldAfterTheStall(t *testing.T) {
	t.Parallel()
	told := make(chan bool, 2)
	r := newRig(t, setup{config: consumer.Config{Observer: consumer.Observer{OnStalled: func(s consumer.StallNotice) { told <- s.Stalled }}}})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				r.handler.Works()
			}
		}
	})
	for n, begun := 0, time.Now(); time.Since(begun) < 2*time.Second; n++ {
		r.handler.Stalled()
		if first, second := <-told, <-told; !first || second {
			t.Errorf("outage %d: the end was told of before the beginning", n)
			break
		}
	}
	close(stop)
	wg.Wait()
}

func TestObserverThatPanicsOrIsSlowHoldsUpNoMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const many = 3000
		var told atomic.Int64
		r := newRig(t, setup{
			config: consumer.Config{Observer: consumer.Observer{OnDead: func(consumer.MessageNotice) {
				if told.Add(1) == 1 {
					panic("bad observer")
				}
				time.Sleep(time.Minute)
			}}},
			fn: func(context.Context, *work, *message.Message) error { return consumer.Reject(errHandler) },
		})
		begun := time.Now()
		for n := range many {
			r.consume(msg(n))
		}
		if took := time.Since(begun); took != 0 {
			t.Errorf("took %v", took)
		}
		if c := r.handler.Counters(); c.Dead != many {
			t.Errorf("counters: %+v", c)
		}
		time.Sleep(many * time.Minute)
		if n := told.Load(); n < 1024 || n > 1030 {
			t.Errorf("told of %d messages", n)
		}
		r.wantLog("observer panicked")
		r.wantLog("observer is slow")
	})
}
