package relay

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestNothingMoreIsSentFromAShardThatWasLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, err := Config{}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		f := realStore()
		f.Add("topic", "key")
		l := newRelayLoop(f, &fakeSender{}, cfg, false)
		step := func() {
			wait, _ := l.step(t.Context())
			select {
			case <-l.box.signal:
			case <-time.After(wait):
			}
		}
		for len(l.sendq) == 0 {
			step()
		}
		e := <-l.sendq
		if until := l.until[e.Shard].Load(); until <= int64(l.now()) {
			t.Fatalf("the shard may be sent from until %v", time.Duration(until))
		}
		f.Mu.Lock()
		for i := range f.Shards {
			f.Shards[i].Owner, f.Shards[i].Epoch = "another", f.Shards[i].Epoch+1
		}
		f.Mu.Unlock()
		for began := l.now(); l.until[e.Shard].Load() != 0; {
			if step(); l.now()-began > cfg.LeaseTTL {
				t.Fatal("no renewal has found that the lease is lost")
			}
		}
		l.send(t.Context(), e) // as it waited for the transport meanwhile
		if _, outcomes, _, _ := l.box.take(); len(outcomes) != 1 || !outcomes[0].Unsent {
			t.Errorf("outcomes are %+v, want one that was not sent", outcomes)
		}
		l.tasks.Wait()
	})
}
