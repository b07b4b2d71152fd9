package relay

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/producer/relay/internal/memstore"
)

// TestOthersAreNotToldOfOwnedShards, since the signal between processes costs each commit a statement.
func TestOthersAreNotToldOfOwnedShards(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, local, others := &listened{realStore(), make(chan func(string), 1), make(chan error)}, &wakeup.Signal{}, &wakeup.Signal{}
		heard, unsubscribe := others.Subscribe(nil)
		defer unsubscribe()
		rest := func(want wakeup.Wakeup, when string) {
			t.Helper()
			if got := local.Send(wakeup.All); got != want && (!got.None() || !want.None()) {
				t.Errorf("%s: others are told of %+v, want %+v", when, got, want)
			}
		}
		rest(wakeup.All, "without a relay")
		r := relayOn(t, f, local, &fakeSender{}, Config{})
		r.wakes.others = others
		stop := running(t, r)
		told := <-f.listens
		time.Sleep(time.Minute)
		rest(wakeup.All, "with a relay that does not know whether signals work")
		told("local")
		rest(wakeup.Wakeup{}, "with a relay that has heard a signal")
		if n := heard.Take(); !n.None() {
			t.Errorf("others were told of %+v when the relay began", n)
		}
		f.Mu.Lock()
		f.Shards[7] = memstore.Shard{Owner: "other", Epoch: f.Shards[7].Epoch + 1, Until: f.Clock() + time.Hour, TTL: time.Hour}
		f.Mu.Unlock()
		time.Sleep(time.Minute)
		if n, want := heard.Take(), (wakeup.Wakeup{Shards: 1 << 7, Deferred: true}); n != want {
			t.Errorf("others were told of %+v after a loss, want %+v", n, want)
		}
		fail := func(how func(string) error) {
			f.Mu.Lock()
			f.Fail = how
			f.Mu.Unlock()
		}
		fail(func(string) error { return errors.New("the database is away") })
		time.Sleep(time.Minute)
		rest(wakeup.All, "when the leases have ended")
		fail(nil)
		stop()
		rest(wakeup.All, "when the relay has ended")
	})
}
