package relay

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/producer/relay/internal/memstore"
	"github.com/boxpair/boxpair/transport"
)

// counting is a transport that counts, and gives no outcome.
type counting struct {
	fakeSender
	sent int
}

func (s *counting) Send(context.Context, string, *message.Message, func(transport.Result)) { s.sent++ }

func TestNothingIsSentBeforeTheCoreKnowsThatTheProcessStoodStill(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, err := Config{}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		f, sender := realStore(), &counting{}
		f.Sessions[1] = true
		f.Add("topic", "key")
		l := newRelayLoop(memstore.Witnessed{Store: f}, sender, cfg, false)
		l.box.witnessed(1)
		l.listening(true)
		step := func() {
			wait, _ := l.step(t.Context())
			select {
			case <-l.box.signal:
			case <-time.After(wait):
			}
		}
		attested := func() bool {
			f.Mu.Lock()
			defer f.Mu.Unlock()
			return f.Calls["Attest"] > 0
		}
		for len(l.sendq) == 0 || !attested() {
			step()
		}
		e := <-l.sendq
		sent := func(want bool, when string) {
			t.Helper()
			before := sender.sent
			l.send(t.Context(), e)
			owned := l.owns(1<<e.Shard) != 0
			if got := sender.sent > before; got != want || owned != want {
				t.Errorf("%s: sent %t, owned %t", when, got, owned)
			}
		}
		l.still.tick(l.now())
		l.still.told.Store(l.still.noticed.Load())
		l.still.watched.Store(true)
		time.Sleep(late)
		sent(true, "in time")
		time.Sleep(time.Millisecond)
		sent(false, "before the tick")
		if !l.still.tick(l.now()) {
			t.Error("the tick was not late")
		}
		sent(false, "behind the tick")
		l.step(t.Context())
		sent(false, "when the core knows, before a renewal")
		for until := l.now() + time.Second; l.until[e.Shard].Load() <= int64(l.now()); step() {
			if l.now() > until {
				t.Fatal("no renewal has shown that the lease is this relay's")
			}
		}
		sent(true, "behind a renewal")
		l.tasks.Wait()
	})
}

// watching watches the clock now until stop is called, and counts the notices.
func watching(t *testing.T, now func() time.Duration) (s *suspension, notices *atomic.Int64, stop func()) {
	s, notices = newSuspension(), new(atomic.Int64)
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(ended)
		s.watch(ctx, now, func() { notices.Add(1) })
	}()
	return s, notices, func() {
		cancel()
		<-ended
	}
}

func TestStandstillIsNoticed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var jump atomic.Int64
		s, notices, stop := watching(t, func() time.Duration { return time.Since(begun) + time.Duration(jump.Load()) })
		time.Sleep(10*ticks + ticks/2)
		synctest.Wait()
		if notices.Load() != 0 || s.doubtful(time.Since(begun)) {
			t.Errorf("%d notices without a standstill", notices.Load())
		}
		jump.Store(int64(time.Second))
		time.Sleep(3 * ticks)
		synctest.Wait()
		if notices.Load() != 1 || !s.doubtful(time.Since(begun)+time.Second) {
			t.Errorf("%d notices of a standstill", notices.Load())
		}
		stop()
		if s.doubtful(time.Since(begun) + time.Hour) {
			t.Error("nobody watches any more")
		}
	})
}

func TestNobodyLooksAtTheClockWhileTheRelayRests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var looks atomic.Int64
		s, notices, stop := watching(t, func() time.Duration {
			looks.Add(1)
			return time.Since(begun)
		})
		for range 2 {
			time.Sleep(10*ticks + ticks/2)
			s.rest()
			time.Sleep(ticks)
			before := looks.Load()
			time.Sleep(time.Hour)
			if n := looks.Load() - before; n != 0 || !s.doubtful(time.Since(begun)) {
				t.Errorf("%d looks at the clock while resting", n)
			}
			s.resume(time.Since(begun))
			s.rest()
			s.resume(time.Since(begun)) // before the first tick
			time.Sleep(10*ticks + ticks/2)
			if n := looks.Load() - before; n != 10 || notices.Load() != 0 || s.doubtful(time.Since(begun)) {
				t.Errorf("%d looks, %d notices behind a rest", n, notices.Load())
			}
		}
		s.rest()
		time.Sleep(ticks)
		stop()
	})
}
