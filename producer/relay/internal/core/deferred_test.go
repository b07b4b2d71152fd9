package core

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
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
	later := r.store.AddDeferred("topic", "key", 5*time.Minute)
	soon := r.store.AddDeferred("topic", "key", 10*time.Second)
	now := r.store.Add("topic", "key")
	r.start(Options{})
	r.run(6 * time.Minute)
	r.drained()
	for seq, want := range map[int64]time.Duration{now: 0, soon: 10 * time.Second, later: 5 * time.Minute} {
		if at := r.seenAt(seq); at < want || at > want+time.Millisecond {
			t.Errorf("event %d was sent at %v, want %v", seq, at, want)
		}
	}
	if len(r.sends) != 3 || len(r.store.Failures) > 0 {
		t.Errorf("sent %v, with %d failures", r.sent(), len(r.store.Failures))
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
		"woken":                 {true, time.Hour, wokenPause},
		"deferred for the poll": {false, 100 * time.Millisecond, time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			rel := r.start(Options{PollMax: c.poll})
			r.run(10 * time.Second)
			due := r.now + 150*time.Millisecond
			seq := r.store.AddDeferred("topic", "key", due)
			if c.wake {
				rel.core.Wake(r.now, wakeup.All)
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
	r.store.AddDeferred("topic", "key", time.Hour)
	r.start(Options{PollMax: time.Second})
	r.run(100 * time.Second)
	if n := r.store.Calls["Undefer"] + r.store.Calls["Look"]; n < 95 || n > 105 {
		t.Errorf("%d looks in 100 s", n)
	}
}

func TestTheDatabasesClockDecidesWhatIsDue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	skew := time.Duration(0)
	r.store.Clock = func() time.Duration { return r.now + skew }
	ahead := r.store.AddDeferred("topic", "a", time.Hour)
	back := r.store.AddDeferred("topic", "b", 3*time.Hour)
	r.start(Options{})
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
	head, second := r.store.Add("topic", "key"), r.store.Add("topic", "key")
	due := r.store.AddDeferred("topic", "key", 20*time.Second)
	last := r.store.Add("down/topic", "key")
	r.store.Add("topic", "other") // shows that the route works
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
	r.start(Options{Backoff: Backoff{Initial: 3 * time.Second}})
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
	if n := len(r.store.Attempts(due)); n > 0 {
		t.Errorf("%d attempts of the deferred event were counted", n)
	}
}

func TestMoveWhoseAnswerIsLostIsFoundAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.store.Add("topic", "key") // so that the read position is above
	first := r.store.AddDeferred("topic", "key", 10*time.Second)
	r.store.Add("topic", "key")
	rel := r.start(Options{})
	r.run(5 * time.Second)
	rel.delay = func(cl *Call) bool {
		if s, ok := cl.Statement.(*statement.Undefer); ok && len(s.Moved) > 0 {
			cl.Err, s.Moved = errors.New("connection lost"), nil
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
	seq := r.store.AddDeferred("topic", "key", 10*time.Second)
	rel := r.start(Options{LeaseTTL: time.Minute})
	r.run(5 * time.Second)
	shard := &r.store.Shards[r.store.Log[seq].Shard]
	shard.Owner, shard.Epoch, shard.Until, shard.TTL = "other", shard.Epoch+1, time.Hour, time.Hour
	r.run(10 * time.Second)
	if rel.noted("lease lost") != 1 || len(r.sends) > 0 || !slices.Contains(r.store.Waiting(), seq) {
		t.Errorf("sent %v; deferred are %v", r.sent(), r.store.Waiting())
	}
}
