package relay

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxpair/boxpair/producer/internal/wakeup"
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
			if statements, polls := minute(); statements > 70 || polls > 13 {
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
