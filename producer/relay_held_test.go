package producer

import (
	"testing"
	"time"

	"github.com/boxpair/boxpair/transport"
)

// In a shard with many blocked keys, to load them all is not for one key to ask.
func TestKeyThatEmptiesHasNoOthersLoadedWhereDeadEventsHoldTheirs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(RelayConfig{HoldDeadKeys: true, MaxAttempts: 5})
	r.run(time.Second)
	rel.calls = nil
	refused := 0
	r.broker = func(s rigSend) transport.Result {
		if s.key == "key" && refused < 2 {
			refused++
			return transport.Result{Outcome: transport.Refused}
		}
		return confirmAll(s)
	}
	for range 5 {
		r.store.add("topic", "key")
		r.store.add("topic", "other")
	}
	r.run(time.Minute)
	r.drained()
	if refused != 2 {
		t.Fatalf("%d were refused", refused)
	}
	for _, op := range rel.calls {
		if op == opHeal || op == opBlocked {
			t.Errorf("%s was called", op)
		}
	}
}
