package relay

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/transport"
)

func TestObserverIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := realStore()
		bad := "bad"
		sender := &fakeSender{answer: func(topic string, msg *message.Message) transport.Result {
			switch {
			case topic == "down":
				return transport.Result{Outcome: transport.Unavailable, Err: errors.New("gone")}
			case msg.Metadata.Get(transport.MetaKey) == bad:
				return transport.Result{Outcome: transport.Refused, Err: errors.New("full")}
			default:
				return transport.Result{Outcome: transport.Confirmed}
			}
		}}
		var mu sync.Mutex
		var told []string
		tell := func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprintf(format, args...))
		}
		r := relayOn(t, f, &f.Local, sender, Config{
			MaxAttempts: 2, Backoff: Backoff{Initial: time.Second, Max: time.Second},
			Observer: Observer{
				OnParked:  func(n EventNotice) { tell("parked %s %d %s", n.Key, n.Attempts, n.Error) },
				OnDead:    func(n EventNotice) { tell("dead %s %d", n.Key, n.Attempts) },
				OnStalled: func(n RouteNotice) { tell("stalled %s %v %s", n.Route, n.Stalled, n.Error) },
				OnPaused:  func(n PauseNotice) { tell("paused %s %v", n.Pause.Name, n.Paused) },
			},
		})
		stop := running(t, r)
		for i := range 20 {
			f.Add("t", []string{"good", bad}[i%2])
			time.Sleep(500 * time.Millisecond)
		}
		f.Add("down", "d")
		time.Sleep(time.Second)
		if err := f.SetPause(t.Context(), control.Pause{Kind: control.Topic, Name: "down.#", Reason: "broker is moved", By: "ana"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if h := r.Health(); len(h.Routes) != 1 || h.Routes[0].LastError != "topic down.# is paused by ana: broker is moved" {
			t.Errorf("health: %+v", h.Routes)
		}
		if ended, err := f.EndPause(t.Context(), control.Topic, "down.#"); err != nil || !ended {
			t.Fatal(ended, err)
		}
		time.Sleep(time.Second)
		sender.mu.Lock()
		sender.answer = nil
		sender.mu.Unlock()
		time.Sleep(10 * time.Second)
		stop()
		sender.pending.Wait()
		mu.Lock()
		defer mu.Unlock()
		for _, want := range []string{
			"parked bad 1 full", "dead bad 2", "stalled down true gone", "paused down.# true", "paused down.# false", "stalled down false gone",
		} {
			if !slices.Contains(told, want) {
				t.Errorf("was not told %q: %q", want, told)
			}
		}
	})
}

func TestObserverThatPanicsOrIsSlowHoldsUpNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := realStore()
		const events = 1500
		for i := range events {
			f.Add("t", fmt.Sprint(i))
		}
		sender := &fakeSender{answer: func(string, *message.Message) transport.Result {
			return transport.Result{Outcome: transport.Invalid, Err: errors.New("too large")}
		}}
		var calls atomic.Int64
		var log bytes.Buffer
		var locked sync.Mutex
		logger := slog.New(slog.NewTextHandler(&lockedWriter{mu: &locked, to: &log}, &slog.HandlerOptions{Level: slog.LevelWarn}))
		r := relayOn(t, f, &f.Local, sender, Config{Logger: logger, Observer: Observer{OnDead: func(EventNotice) {
			time.Sleep(10 * time.Millisecond)
			if calls.Add(1) < 4 {
				panic("no")
			}
		}}})
		stop := running(t, r)
		time.Sleep(5 * time.Second)
		if n := r.Health().NoticesDropped; n < 1 || n > events-1024 {
			t.Errorf("%d notices were dropped", n)
		}
		stop()
		sender.pending.Wait()
		if n := len(f.Failures); n != events {
			t.Errorf("%d events are dead after 5 s", n)
		}
		time.Sleep(time.Minute)
		if n := calls.Load(); n < 1024 || n > 1490 {
			t.Errorf("%d calls", n)
		}
		locked.Lock()
		defer locked.Unlock()
		for _, says := range []string{"observer panicked", "observer is slow"} {
			if !strings.Contains(log.String(), says) {
				t.Errorf("the log does not say %q", says)
			}
		}
	})
}

type lockedWriter struct {
	mu *sync.Mutex
	to *bytes.Buffer
}

func (w *lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(p)
}

func TestRelaysShareTheRateOfADownstream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := realStore()
		for i := range 2000 {
			f.Add("slow.a", fmt.Sprint(i%50))
			f.Add("quick", fmt.Sprint(i))
		}
		var slow, quick fakeSender
		var stops []func()
		var relays []*Relay
		for range 2 {
			cfg := Config{Downstreams: []Downstream{{Name: "slow", Publisher: &slow, Topics: []string{"slow.#"}, MaxPerSecond: 20}}}
			r := relayOn(t, f, &f.Local, &quick, cfg)
			stops = append(stops, running(t, r))
			relays = append(relays, r)
		}
		time.Sleep(10 * time.Second)
		limited := 0 // a relay may have none in memory between two laps
		for _, r := range relays {
			h := r.Health()
			if h.Limited > h.Waiting {
				t.Errorf("%d of %d waiting events wait for a limit", h.Limited, h.Waiting)
			}
			limited += h.Limited
		}
		if limited == 0 {
			t.Error("no event waits for the limit")
		}
		for _, stop := range stops {
			stop()
		}
		slow.pending.Wait()
		quick.pending.Wait()
		if n := len(slow.messages()); n < 190 || n > 200+20+2*4 {
			t.Errorf("%d events in 10 s at 20/s", n)
		}
		if n := len(quick.messages()); n != 2000 {
			t.Errorf("%d events of the other downstream", n)
		}
	})
}

func TestRateMustBeANumber(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{-1, math.NaN(), math.Inf(1)} {
		if err := validateRate(rate); err == nil || !strings.Contains(err.Error(), "MaxPerSecond: ") {
			t.Errorf("%v: %v", rate, err)
		}
	}
}
