package relay

import (
	"context"
	"slices"
	"testing"
	"time"
)

// A read in one key steps over the rows of all others in between: where these are millions, no such
// read ends in time.
func TestKeyWithMillionsOfOthersInBetweenIsReadByALap(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var hot []int64
	for range 40 {
		hot = append(hot, r.store.add("topic", "key"))
		r.store.add("topic", sameShard("key"))
	}
	rel := r.start(coreConfig{MaxPerKey: 5})
	rel.hold = func(cl *call) bool { return cl.op == opFetchKey }
	for range 3000 {
		r.run(10 * time.Millisecond)
		rel.held = slices.DeleteFunc(rel.held, func(cl *call) bool {
			ended := r.now-cl.issued >= rel.core.cfg.LeaseTTL/keyShare
			if ended {
				cl.err = context.DeadlineExceeded
				rel.core.reply(r.now, cl)
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
