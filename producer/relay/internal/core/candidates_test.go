package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/transport"
)

// oneShard returns n keys of one shard.
func oneShard(n int) (keys []string) {
	for i := 0; len(keys) < n; i++ {
		if key := fmt.Sprint("key", i); idgen.Shard(key, [16]byte{}) == 0 {
			keys = append(keys, key)
		}
	}
	return keys
}

// stallTwoRoutes starts a relay that keeps so many events of each of two stalled routes to be probed,
// with twice as many bad events on each.
func stallTwoRoutes(t *testing.T, kept int, cfg Options, keys []string) (r *rig, rel *rigRelay) {
	r = newRig(t)
	bad := make(map[int64]transport.Outcome)
	for i := range 2 * kept {
		bad[r.store.Add("sick", keys[2*i])] = transport.Refused
		bad[r.store.Add("other", keys[2*i+1])] = transport.Refused
	}
	r.outcomes(bad)
	rel = r.start(cfg)
	rel.core.limits.stall = kept
	rel.core.limits.sweep = time.Second
	return r, rel
}

func TestEachEventOfAStalledRouteHasItsTurn(t *testing.T) {
	t.Parallel()
	for _, kept := range []int{2, 5} {
		for name, keys := range map[string][]string{"one shard": oneShard(26), "any shard": make([]string, 26)} {
			t.Run(fmt.Sprint(kept, " of ", name), func(t *testing.T) {
				t.Parallel()
				r, rel := stallTwoRoutes(t, kept, Options{Window: 4 * kept, FetchSize: 1}, keys)
				for _, key := range keys[4*kept:] {
					r.run(10 * time.Second)
					at := r.now
					seq := r.store.Add("sick", key)
					rel.core.Wake(r.now, wakeup.All)
					r.run(2 * time.Minute)
					if seen := r.seenAt(seq); seen < at {
						t.Fatalf("event %d, which can be sent, was not sent in two minutes", seq)
					}
				}
			})
		}
	}
}

func TestEventThatWasProbedInVainHasAnotherTurn(t *testing.T) {
	t.Parallel()
	for name, keys := range map[string][]string{"one shard": oneShard(8), "any shard": make([]string, 8)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := stallTwoRoutes(t, 2, Options{Window: 4, FetchSize: 1}, keys)
			r.run(5 * time.Minute)
			for _, seq := range []int64{5, 3, 7} {
				broker := r.broker
				r.broker = func(s rigSend) transport.Result {
					if s.seq == seq {
						return confirmAll(s)
					}
					return broker(s)
				}
				r.run(time.Minute)
				if got := r.sent(transport.Confirmed); !slices.Contains(got, seq) {
					t.Errorf("event %d can be sent since a minute, and sent were %v", seq, got)
				}
			}
		})
	}
}

func TestBadEventDiesBesideBurstsOfGoodEvents(t *testing.T) {
	t.Parallel()
	keys := oneShard(128)
	r, rel := stallTwoRoutes(t, 2, Options{Window: 4, FetchSize: 100, MaxAttempts: 1}, keys)
	rel.core.limits.sweep = time.Hour
	r.run(5 * time.Minute) // until so few of the sends succeed that a refusal counts by chance
	for keys = keys[8:]; len(keys) > 0; keys = keys[2:] {
		for _, key := range keys[:2] { // as many as are kept to be probed
			r.store.Add("sick", key)
		}
		rel.core.Wake(r.now, wakeup.All)
		r.run(2 * time.Minute)
	}
	if queued, live := r.store.Left(); queued+live > 4 {
		t.Errorf("%d events are queued and %d parked after %v, four of them on the other route", queued, live, r.now)
	}
}

func TestEachParkedEventOfAStalledRouteHasItsTurn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	parked := make(map[int64]transport.Outcome)
	for range 12 {
		parked[r.store.Add("sick", "")] = transport.Refused
	}
	r.outcomes(parked)
	rel := r.start(Options{Window: 4, FetchSize: 100, MaxAttempts: 1000, Backoff: Backoff{Max: 2 * time.Second}})
	rel.core.limits.stall, rel.core.limits.due = 2, 3
	for range 1000 {
		if len(r.store.Parked) == len(parked) {
			break
		}
		r.store.Add("sick", "")
		rel.core.Wake(r.now, wakeup.All)
		r.run(time.Second)
	}
	if n := len(r.store.Parked); n != len(parked) {
		t.Fatalf("%d events are parked", n)
	}
	for seq := range parked {
		r.run(time.Minute)
		good := seq
		r.broker = func(s rigSend) transport.Result {
			if s.seq == good {
				return confirmAll(s)
			}
			return transport.Result{Outcome: transport.Returned}
		}
		before := len(r.sends)
		r.run(10 * time.Minute)
		if !slices.ContainsFunc(r.sends[before:], func(s rigSend) bool { return s.seq == good }) {
			t.Errorf("event %d can be sent, and was not in ten minutes", good)
		}
	}
}
