package relay

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
)

// The keys of all shards may be too many for one statement that looks at each of them.
func TestShardsAreHealedFewAtATimeWhereAllTakeTooLong(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 200 {
		r.store.add("topic", fmt.Sprint("key", i))
	}
	rel := r.start(coreConfig{})
	rel.hold = func(cl *call) bool { return cl.op == opHeal && len(cl.shards) > 5 }
	for range 10_000 {
		r.run(10 * time.Millisecond)
		rel.held = slices.DeleteFunc(rel.held, func(cl *call) bool {
			ended := r.now-cl.issued >= rel.core.cfg.LeaseTTL
			if ended {
				cl.err = context.DeadlineExceeded
				rel.core.reply(r.now, cl)
			}
			return ended
		})
	}
	r.drained()
}
