package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/version"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

// twoWeeks is the default of Config.Window.
const twoWeeks = 14 * 24 * time.Hour

// behindLook is how much later than a look for due messages a report comes.
const behindLook = 100 * time.Millisecond

// wantReports checks how many reports were written, and returns the last.
func (r *rig) wantReports(want int) fakeReport {
	r.t.Helper()
	all := r.store.reported()
	if len(all) != want {
		r.t.Fatalf("%d reports were written, want %d", len(all), want)
	}
	return all[want-1]
}

func TestProcessReportsItsHandlersWhileItRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{config: consumer.Config{CacheSize: 8}})
		r.handle("count", func(context.Context, *work, *message.Message) error { return nil })
		made := time.Now()
		time.Sleep(time.Second)
		synctest.Wait()
		stop := r.run()
		synctest.Wait()
		first := r.wantReports(1)
		p := first.process
		if p.Name == "" || len(p.Name) > 255 || p.Version != version.Library() || !p.StartedAt.Equal(made) || !p.At.Equal(time.Now()) {
			t.Errorf("the process is %+v", p)
		}
		if first.ttl != 30*time.Second || first.left != 5*time.Second {
			t.Errorf("the report ends after %v, and may take %v", first.ttl, first.left)
		}
		want := []inbox.HandlerReport{
			{Consumer: "stock/count", Topics: []string{}, Window: twoWeeks, CacheSize: 8},
			{Consumer: "stock/reserve", Topics: []string{}, Window: twoWeeks, CacheSize: 8},
		}
		if !reflect.DeepEqual(first.handlers, want) {
			t.Errorf("reported: %+v", first.handlers)
		}
		stop()
		last := r.wantReports(2)
		if len(last.handlers) != 0 || last.process.Name != p.Name || last.left != 2*time.Second {
			t.Errorf("at the end, %d handlers of %s are reported, within %v", len(last.handlers), last.process.Name, last.left)
		}
		r.run()()
		if again := r.wantReports(4).process; again.Name == p.Name {
			t.Errorf("two processes have the name %s", again.Name)
		}
	})
}

func TestReportsCountWhatTheHandlerHasDone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		enter, leave := make(chan struct{}), make(chan struct{})
		fails := fmt.Errorf("out of stock\x00%s", strings.Repeat("ü", 1<<10))
		r := newRig(t, setup{
			config: consumer.Config{CacheSize: 8},
			fn: func(_ context.Context, w *work, _ *message.Message) error {
				switch w.Event().ID {
				case number(3):
					return consumer.Reject(fails)
				case number(4):
					enter <- struct{}{}
					<-leave
				}
				return nil
			},
		})
		defer r.run()()
		time.Sleep(time.Second)
		synctest.Wait()
		r.consume(msg(1))
		applied := time.Now()
		time.Sleep(time.Second)
		synctest.Wait()
		r.consume(msg(1)) // the window knows it
		r.consume(msg(3))
		failed := time.Now()
		done := make(chan struct{})
		go func() { defer close(done); r.consume(msg(4)) }()
		<-enter
		time.Sleep(3*time.Second + behindLook)
		synctest.Wait()
		got := r.wantReports(2).handlers[0]
		if n := len(got.LastError); n > 1<<10 || n < 1000 || !strings.HasPrefix(got.LastError, "rejected: out of stock\uFFFDü") {
			t.Errorf("the last error is %d bytes: %.20q", n, got.LastError)
		}
		got.LastError = ""
		if !got.LastSuccess.Equal(applied) || !got.LastFailure.Equal(failed) {
			t.Errorf("succeeded at %v, failed at %v; want %v, %v", got.LastSuccess, got.LastFailure, applied, failed)
		}
		got.LastSuccess, got.LastFailure = time.Time{}, time.Time{}
		want := inbox.HandlerReport{
			Consumer: "stock/reserve", Topics: []string{"orders"}, InFlight: 1,
			Applied: 1, Duplicates: 1, Failed: 1, Window: twoWeeks, CacheSize: 8, CacheEntries: 2, CacheHits: 1,
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("reported: %+v\nwant:     %+v", got, want)
		}
		close(leave)
		<-done
		r.pause("stock/reserve", time.Time{})
		go func() { _ = r.handler.Consume(msg(5)) }()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		got = r.wantReports(3).handlers[0]
		if got.Applied != 2 || got.InFlight != 1 || !strings.Contains(got.Paused, "by ann: maintenance") {
			t.Errorf("of a paused handler is reported: %+v", got)
		}
		r.resume("stock/reserve")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got = r.wantReports(4).handlers[0]; got.Applied != 3 || got.InFlight != 0 || got.Paused != "" {
			t.Errorf("after the pause is reported: %+v", got)
		}
	})
}

// TestReportsCountGroupsAndStoredMessages however a message is handled.
func TestReportsCountGroupsAndStoredMessages(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]consumer.HandlerConfig{
		"group":        {Group: consumer.GroupConfig{Size: 4}},
		"stored first": {StoreFirst: true},
		"optimistic":   {Optimistic: true},
		"ordered":      {Order: consumer.OrderConfig{ByKey: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				failed := false
				r := newRig(t, setup{handler: cfg, fn: func(_ context.Context, w *work, _ *message.Message) error {
					if w.Event().ID == number(2) && !failed {
						failed = true
						return errors.New("out of stock")
					}
					return nil
				}})
				defer r.run()()
				for n := range 3 {
					go func() { _ = r.handler.Consume(msg(n + 1)) }()
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				reports := r.store.reported()
				got := reports[len(reports)-1].handlers[0]
				wants := int64(1)
				if name == "group" { // the first failure is the group's
					wants = got.Failed
				}
				if got.Applied != 3 || got.Failed != wants || got.Failed > 0 && got.LastError != "out of stock" || got.InFlight != 0 || got.LastSuccess.IsZero() || len(got.Topics) != 1 {
					t.Errorf("reported: %+v", got)
				}
			})
		})
	}
}

func TestReportNamesTheFirstTenTopics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{handler: consumer.HandlerConfig{Parked: consumer.ParkedConfig{Concurrency: 1}}})
		r.consume(msg(20))
		var want []string
		for n := range 12 {
			want = append(want, fmt.Sprintf("topic-%02d", n))
			m := &inbox.Message{ID: number(n), Topic: want[n]}
			if _, err := r.store.ParkMessage(t.Context(), inbox.Parking{Consumer: 1, Message: m, State: inbox.Retrying}); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.inbox.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer r.run()()
		synctest.Wait()
		want = append([]string{"orders"}, want[:9]...)
		if got := r.wantReports(1).handlers[0]; !slices.Equal(got.Topics, want) || got.Applied != 13 {
			t.Errorf("reported: %+v, want the topics %q", got, want)
		}
	})
}

func TestIdleProcessReportsEveryTenSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{})
		defer r.run()()
		begun := time.Now()
		time.Sleep(100*time.Second + behindLook)
		synctest.Wait()
		if r.wantReports(11); r.store.reported()[10].at != begun.Add(100*time.Second+behindLook) {
			t.Error("reports are not written every ten seconds")
		}
		r.consume(msg(1))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := r.wantReports(12).handlers[0]; got.Applied != 1 {
			t.Errorf("after a change is reported: %+v", got)
		}
	})
}

func TestHandlersGoOnIfTheyCannotBeReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{})
		r.store.fail("report", errors.New("permission denied for table inbox_handlers"))
		stop := r.run()
		time.Sleep(time.Second)
		synctest.Wait()
		r.consume(msg(1))
		r.wantDone(number(1), 1)
		time.Sleep(14*time.Second - 1)
		synctest.Wait()
		r.wantReports(2) // at 0 and 5 s, and again 10 s later
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		r.wantReports(3)
		time.Sleep(time.Hour)
		synctest.Wait()
		const line = "handlers cannot be reported to operators"
		if n := strings.Count(r.log.String(), line); n != 1 {
			t.Errorf("the failure is logged %d times", n)
		}
		r.wantLog("level=WARN", line, "permission denied", "migrations")
		if n := len(r.store.reported()); n < 120 || n > 130 {
			t.Errorf("in an hour, %d reports were tried", n)
		}
		r.store.fail("report", errOutage)
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := strings.Count(r.log.String(), line); n != 2 {
			t.Errorf("failures of two kinds are logged %d times", n)
		}
		r.store.setFault(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		r.store.fail("report", errOutage)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := strings.Count(r.log.String(), line); n != 3 {
			t.Errorf("after a success, a failure makes %d lines", n)
		}
		n := len(r.store.reported())
		stop()
		r.wantReports(n + 1) // they may be listed
	})
}

func TestProcessThatHasReportedNothingRemovesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{})
		r.store.fail("report", errOutage)
		stop := r.run()
		synctest.Wait()
		stop()
		r.wantReports(1)
	})
}

func TestStoreWithoutReportsIsAskedForNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		in, err := consumer.New[*fakeTx](plainStore{newFake()}, consumer.Config{Service: "stock"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := in.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
		if _, err := in.ListHandlers(t.Context()); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("ListHandlers: %v", err)
		}
	})
}

// queue is a broker's queue that tells how many messages wait.
type queue struct {
	waiting atomic.Int64
	err     atomic.Pointer[error]
	asked   atomic.Int64
}

func (q *queue) Waiting(context.Context) (int, error) {
	q.asked.Add(1)
	if err := q.err.Load(); err != nil {
		return 0, *err
	}
	return int(q.waiting.Load()), nil
}

// from returns a message that q has delivered.
func (q *queue) from(n int) *message.Message {
	m := msg(n)
	m.SetContext(transport.WithBacklog(m.Context(), q))
	return m
}

func TestReportsTellWhatWaitsAtTheBroker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{})
		defer r.run()()
		wantWaiting := func(want int) {
			t.Helper()
			time.Sleep(20 * time.Second)
			synctest.Wait()
			all := r.store.reported()
			if got := all[len(all)-1].handlers[0].Waiting; got == nil && want >= 0 || got != nil && *got != want {
				t.Errorf("%v messages wait, want %d", got, want)
			}
		}
		wantWaiting(-1)
		var a, b queue
		a.waiting.Store(3)
		b.waiting.Store(4)
		for n, q := range []*queue{&a, &b, &a} {
			r.consume(q.from(n))
		}
		wantWaiting(7)
		b.err.Store(&errOutage)
		wantWaiting(3)
		asked := b.asked.Load()
		wantWaiting(3)
		if b.asked.Load() != asked {
			t.Error("a queue that tells nothing is asked again before it delivers a message")
		}
		b.err.Store(nil)
		a.err.Store(&errOutage)
		r.consume(b.from(9))
		wantWaiting(4)
	})
}
