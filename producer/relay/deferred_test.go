package relay

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/transport"
)

// seenAt returns when the broker saw an event for the first time, and -1 if it did not.
func (r *rig) seenAt(seq int64) time.Duration {
	for _, s := range r.sends {
		if s.seq == seq {
			return s.at
		}
	}
	return -1
}

func TestDeferredEventIsSentWhenItIsDue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	later := r.store.addDeferred("topic", "key", 5*time.Minute)
	soon := r.store.addDeferred("topic", "key", 10*time.Second)
	now := r.store.add("topic", "key")
	r.start(coreConfig{})
	r.run(6 * time.Minute)
	r.drained()
	for seq, want := range map[int64]time.Duration{now: 0, soon: 10 * time.Second, later: 5 * time.Minute} {
		if at := r.seenAt(seq); at < want || at > want+time.Millisecond {
			t.Errorf("event %d was sent at %v, want %v", seq, at, want)
		}
	}
	if len(r.sends) != 3 || len(r.store.failures) > 0 {
		t.Errorf("sent %v, with %d failures", r.sent(), len(r.store.failures))
	}
}

func TestNewDeferralIsLateByAtMostTheLongestPoll(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		wake bool
		poll time.Duration
		late time.Duration
	}{
		"polling":               {false, 2 * time.Second, 2 * time.Second},
		"woken":                 {true, time.Hour, toldPause},
		"deferred for the poll": {false, 100 * time.Millisecond, time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			rel := r.start(coreConfig{PollMax: c.poll})
			r.run(10 * time.Second)
			due := r.now + 150*time.Millisecond
			seq := r.store.addDeferred("topic", "key", due)
			if c.wake {
				rel.core.wake(r.now, wakeup.All)
			}
			r.run(time.Minute)
			if at := r.seenAt(seq); at < due || at > due+c.late {
				t.Errorf("due at %v, sent at %v", due, at)
			}
		})
	}
}

func TestIdleRelayLooksForDeferredEventsAtThePaceOfItsPolls(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.store.addDeferred("topic", "key", time.Hour)
	r.start(coreConfig{PollMax: time.Second})
	r.run(100 * time.Second)
	if n := r.store.calls["Undefer"]; n < 95 || n > 105 {
		t.Errorf("%d looks in 100 s", n)
	}
}

func TestTheDatabasesClockDecidesWhatIsDue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	skew := time.Duration(0)
	r.store.clock = func() time.Duration { return r.now + skew }
	ahead := r.store.addDeferred("topic", "a", time.Hour)
	back := r.store.addDeferred("topic", "b", 3*time.Hour)
	r.start(coreConfig{})
	r.run(10 * time.Second)
	skew = time.Hour
	r.run(time.Second)
	if at := r.seenAt(ahead); at < 10*time.Second || at > 11*time.Second {
		t.Errorf("after a jump ahead, sent at %v", at)
	}
	skew = 2 * time.Hour // for a moment, so that the relay knows of it
	r.run(time.Second)
	skew = -time.Hour
	r.run(4*time.Hour - r.now - time.Second)
	if at := r.seenAt(back); at >= 0 {
		t.Errorf("after a jump back, sent at %v", at)
	}
	r.run(2 * time.Second)
	if at := r.seenAt(back); at < 4*time.Hour || at > 4*time.Hour+time.Second {
		t.Errorf("after a jump back, sent at %v", at)
	}
}

// A parked key's events in memory are sent in a row. An earlier one that becomes due meanwhile
// goes before those that are left, and must not wait for ever in front of them.
func TestDueEventOfAKeyThatWaitsGoesInFront(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	head, second := r.store.add("topic", "key"), r.store.add("topic", "key")
	due := r.store.addDeferred("topic", "key", 20*time.Second)
	last := r.store.add("down/topic", "key")
	r.store.add("topic", "other") // shows that the route works
	down := true
	r.broker = func(s rigSend) transport.Result {
		switch {
		case s.seq == head && r.now < time.Second:
			return transport.Result{Outcome: transport.Refused}
		case s.seq == last && down:
			return transport.Result{Outcome: transport.Unavailable}
		}
		return confirmAll(s)
	}
	r.start(coreConfig{Backoff: coreBackoff{Initial: 3 * time.Second}})
	r.run(15 * time.Second)
	if r.seenAt(second) < 0 || r.seenAt(last) < 0 {
		t.Fatalf("the others were not sent: %v", r.sent())
	}
	r.run(15 * time.Second)
	down = false
	r.run(time.Minute)
	r.drained()
	want := []int64{head, second, due, last}
	if got := slices.DeleteFunc(r.sent(transport.Confirmed), func(seq int64) bool { return !slices.Contains(want, seq) }); !slices.Equal(got, want) {
		t.Errorf("sent %v, want %v", got, want)
	}
	if n := len(r.store.attempts(due)); n > 0 {
		t.Errorf("%d attempts of the deferred event were counted", n)
	}
}

func TestMoveWhoseAnswerIsLostIsFoundAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.store.add("topic", "key") // so that there is a low-water mark above
	first := r.store.addDeferred("topic", "key", 10*time.Second)
	r.store.add("topic", "key")
	rel := r.start(coreConfig{})
	r.run(5 * time.Second)
	rel.delay = func(cl *call) bool {
		if cl.op == opUndefer && len(cl.moved) > 0 {
			cl.err, cl.moved = errors.New("connection lost"), nil
		}
		return false
	}
	r.run(10 * time.Second)
	if at := r.seenAt(first); at < 10*time.Second || at > 11*time.Second {
		t.Errorf("sent at %v", at)
	}
}

func TestLostShardIsDroppedWhenDeferredEventsAreMoved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	seq := r.store.addDeferred("topic", "key", 10*time.Second)
	rel := r.start(coreConfig{LeaseTTL: time.Minute})
	r.run(5 * time.Second)
	shard := &r.store.shards[r.store.log[seq].Shard]
	shard.owner, shard.epoch, shard.until, shard.ttl = "other", shard.epoch+1, time.Hour, time.Hour
	r.run(10 * time.Second)
	if rel.noted("lease lost") != 1 || len(r.sends) > 0 || !slices.Contains(r.store.waiting(), seq) {
		t.Errorf("sent %v; deferred are %v", r.sent(), r.store.waiting())
	}
}
