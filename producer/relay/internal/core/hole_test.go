package core

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/statement"
)

// A read in one key steps over the rows of all others in between: where these are millions, no such
// read ends in time.
func TestKeyWithMillionsOfOthersInBetweenIsReadByALap(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var hot []int64
	for range 40 {
		hot = append(hot, r.store.Add("topic", "key"))
		r.store.Add("topic", sameShard("key"))
	}
	rel := r.start(Options{MaxPerKey: 5})
	rel.hold = func(cl *Call) bool { return cl.Op() == statement.OpFetchKey }
	for range 3000 {
		r.run(10 * time.Millisecond)
		rel.held = slices.DeleteFunc(rel.held, func(cl *Call) bool {
			ended := r.now-cl.issued >= rel.core.cfg.LeaseTTL/KeyShare
			if ended {
				cl.Err = context.DeadlineExceeded
				rel.core.Reply(r.now, cl)
			}
			return ended
		})
	}
	r.run(time.Second)
	r.drained()
	got := slices.DeleteFunc(r.sent(), func(seq int64) bool { return !slices.Contains(hot, seq) })
	if !slices.Equal(got, hot) {
		t.Errorf("sent %v, want %v", got, hot)
	}
}
