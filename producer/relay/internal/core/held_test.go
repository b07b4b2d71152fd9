package core

import (
	"slices"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// In a shard with many blocked keys, to load them all is not for one key to ask.
func TestKeyThatEmptiesHasNoOthersLoadedWhereDeadEventsHoldTheirs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{HoldDeadKeys: true, MaxAttempts: 5})
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
		r.store.Add("topic", "key")
		r.store.Add("topic", "other")
	}
	r.run(time.Minute)
	r.drained()
	if refused != 2 {
		t.Fatalf("%d were refused", refused)
	}
	for _, op := range rel.calls {
		if op == statement.OpHeal || op == statement.OpBlocked {
			t.Errorf("%s was called", op)
		}
	}
}

// What comes behind a live one is read with it, and may be dead since the key was not held yet.
func TestDeadEventInTheMiddleOfAKeyIsNotSent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first, second := r.store.Add("topic", "key"), r.store.Add("topic", "key")
	dead := r.store.Add("topic", "key")
	r.outcomes(map[int64]transport.Outcome{first: transport.Refused})
	r.start(Options{HoldDeadKeys: true, MaxAttempts: 5})
	r.run(50 * time.Millisecond)
	if r.store.State(first) != outbox.Retrying || r.store.State(dead) != outbox.Following {
		t.Fatalf("the first is %q, the last %q", r.store.State(first), r.store.State(dead))
	}
	r.store.Parked[dead].State = outbox.Dead
	r.broker = confirmAll
	r.run(time.Minute)
	if got, want := r.sent(transport.Confirmed), []int64{first, second}; !slices.Equal(got, want) {
		t.Errorf("sent %v, want %v", got, want)
	}
}

func TestDeadEventThatIsMissingFromTheLogHoldsItsKeyWithoutAWord(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first, dead := r.store.Add("topic", "key"), r.store.Add("topic", "key")
	r.outcomes(map[int64]transport.Outcome{first: transport.Refused})
	rel := r.start(Options{HoldDeadKeys: true, MaxAttempts: 5})
	r.run(50 * time.Millisecond)
	r.store.Parked[dead].State = outbox.Dead
	delete(r.store.Log, dead)
	r.broker = confirmAll
	r.run(time.Minute)
	last := r.store.Add("topic", "key")
	rel.core.Wake(r.now, wakeup.All)
	r.run(time.Minute)
	if got, want := r.sent(transport.Confirmed), []int64{first}; !slices.Equal(got, want) {
		t.Errorf("sent %v, want %v: %d is behind a dead one", got, want, last)
	}
	if n := rel.noted("parked event is missing from the log"); n != 0 {
		t.Errorf("said %d times to be missing", n)
	}
}

func TestDeadEventHoldsItsKeyWhenAnEarlierOneIsRedriven(t *testing.T) {
	t.Parallel()
	for _, takeover := range []bool{false, true} {
		for _, left := range []outbox.State{outbox.Following, outbox.Retrying} { // a relay that does not hold keys leaves it retrying
			heldBehindRedriven(t, takeover, left)
		}
	}
}

func heldBehindRedriven(t *testing.T, takeover bool, left outbox.State) {
	t.Helper()
	r := newRig(t)
	first, second, last := r.store.Add("topic", "key"), r.store.Add("topic", "key"), r.store.Add("topic", "key")
	r.outcomes(map[int64]transport.Outcome{first: transport.Refused})
	rel := r.start(Options{HoldDeadKeys: true, MaxAttempts: 5})
	r.run(50 * time.Millisecond)
	r.store.Parked[first].State, r.store.Parked[second].State, r.store.Parked[last].State = outbox.Dead, outbox.Dead, left
	r.broker = confirmAll
	r.run(time.Minute)
	r.store.Redrive(first)
	r.run(time.Minute)
	if takeover {
		r.kill(rel)
		r.start(Options{HoldDeadKeys: true, MaxAttempts: 5})
		r.run(time.Minute)
	}
	if got, want := r.sent(transport.Confirmed), []int64{first}; !slices.Equal(got, want) {
		t.Errorf("sent %v, want %v", got, want)
	}
	if got := r.store.State(last); got != left {
		t.Errorf("the last is %q, want %q: it waits for an operator", got, left)
	}
	r.store.Discard(second)
	r.run(time.Minute)
	if got, want := r.sent(transport.Confirmed), []int64{first, last}; !slices.Equal(got, want) {
		t.Errorf("sent %v, want %v", got, want)
	}
}
