package relay

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/transport"
)

func TestIdleRelayCostsFewStatementsWhileItsSignalsArrive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &listened{realStore(), make(chan func(string), 1), make(chan error)}
		sender := &fakeSender{}
		stop := running(t, relayOn(t, l, &wakeup.Signal{}, sender, Config{}))
		defer stop()
		minute := func() (statements, polls int) {
			l.Mu.Lock()
			clear(l.Calls)
			l.Mu.Unlock()
			time.Sleep(time.Minute)
			l.Mu.Lock()
			defer l.Mu.Unlock()
			for _, n := range l.Calls {
				statements += n
			}
			return statements, l.Calls["Fetch"]
		}
		woken := <-l.listens
		time.Sleep(time.Minute)
		if _, polls := minute(); polls < 115 {
			t.Errorf("%d polls in a minute before the first signal", polls)
		}
		for n := range 3 {
			l.Add("topic", "key")
			woken("other")
			synctest.Wait()
			if sent := len(sender.messages()); sent != n+1 {
				t.Fatalf("%d sent at once, want %d", sent, n+1)
			}
			time.Sleep(time.Minute)
			if statements, polls := minute(); statements > 60 || polls > 13 {
				t.Errorf("%d statements in an idle minute, %d of them polls", statements, polls)
			}
		}
		l.broken <- errors.New("connection lost")
		<-l.listens
		if _, polls := minute(); polls < 115 {
			t.Errorf("%d polls in a minute after the signals broke", polls)
		}
	})
}

// TestIdleRelayRenewsAtEvenTimes: a moment before an idle inbox of the same process looks, whose statement
// then comes on the same connection.
func TestIdleRelayRenewsAtEvenTimes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &listened{realStore(), make(chan func(string), 1), make(chan error)}
		begun := time.Now()
		defer running(t, relayOn(t, l, &wakeup.Signal{}, &fakeSender{}, Config{}))()
		woken := <-l.listens
		at := func(d time.Duration) (renewals int) {
			time.Sleep(time.Until(begun.Add(d)))
			synctest.Wait()
			l.Mu.Lock()
			defer l.Mu.Unlock()
			return l.Calls["Renew"]
		}
		for n := range 3 {
			minutes := time.Duration(2*n) * time.Minute
			at(minutes + 3300*time.Millisecond)
			l.Add("topic", "key")
			woken("other")
			for even := minutes + time.Minute; even < minutes+90*time.Second; even += 5 * time.Second {
				before := at(even - 100*time.Millisecond - 1)
				if during := at(even); during != before+1 {
					t.Errorf("%d renewals in the 100 ms before %v, want 1", during-before, even)
				}
			}
		}
	})
}

// sessions is a store in whose sessions a relay has a witness, the session 1.
type sessions struct{ *listened }

func (s sessions) ListenWitnessed(ctx context.Context, witnessed func(int64), woken func(string)) error {
	witnessed(1)
	return s.Listen(ctx, woken)
}

func TestRelayWithEventsInMemoryDoesNotRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := sessions{&listened{realStore(), make(chan func(string), 1), make(chan error)}}
		s.Sessions[1] = true
		begun := time.Now()
		sender := &fakeSender{answer: func(string, *message.Message) transport.Result {
			if time.Since(begun) < time.Minute {
				return transport.Result{Outcome: transport.Unavailable, Err: errCut}
			}
			return transport.Result{Outcome: transport.Confirmed}
		}}
		defer running(t, relayOn(t, s, &wakeup.Signal{}, sender, Config{}))()
		woken := <-s.listens
		s.Add("topic", "key")
		woken("other")
		time.Sleep(2 * time.Minute)
		s.Mu.Lock()
		defer s.Mu.Unlock()
		for _, queue := range s.Queue {
			if len(queue) > 0 {
				t.Error("an event that waited for the broker is never sent")
			}
		}
	})
}

// TestIdleRelaySendsNothingThatMayBeOfAnotherRelay: an idle relay does not notice that it stands still, and
// others may take over its shards meanwhile. It sends again once a renewal has shown whose they are.
func TestIdleRelaySendsNothingThatMayBeOfAnotherRelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := sessions{&listened{realStore(), make(chan func(string), 1), make(chan error)}}
		s.Sessions[1] = true
		sender := &fakeSender{}
		r := relayOn(t, s, &wakeup.Signal{}, sender, Config{})
		defer running(t, r)()
		woken := <-s.listens
		event := func(key string) {
			s.Add("topic", key)
			woken("other")
			synctest.Wait()
		}
		event("first") // which shows that signals work
		time.Sleep(time.Minute)
		if !r.loop.still.resting.Load() {
			t.Fatal("an idle relay does not rest")
		}
		event("second")
		if n := len(sender.messages()); n != 2 || r.loop.still.resting.Load() {
			t.Errorf("%d events sent at once, want 2; resting: %t", n, r.loop.still.resting.Load())
		}
		time.Sleep(time.Minute)
		delete(s.Sessions, 1)
		if err := s.Expire(t.Context(), []int64{1}); err != nil {
			t.Fatal(err)
		}
		if taken, err := s.Acquire(t.Context(), "other", time.Minute, idgen.Shards); err != nil || len(taken) != idgen.Shards {
			t.Fatalf("%d shards were taken over, %v", len(taken), err)
		}
		event("third")
		if n := len(sender.messages()); n != 2 {
			t.Errorf("%d events were sent of another relay's shards", n-2)
		}
	})
}
