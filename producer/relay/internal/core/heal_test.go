package core

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/statement"
)

// The keys of all shards may be too many for one statement that looks at each of them.
func TestShardsAreHealedFewAtATimeWhereAllTakeTooLong(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 200 {
		r.store.Add("topic", fmt.Sprint("key", i))
	}
	rel := r.start(Options{})
	rel.hold = func(cl *Call) bool { return cl.Op() == statement.OpHeal && len(cl.shards) > 5 }
	for range 10_000 {
		r.run(10 * time.Millisecond)
		rel.held = slices.DeleteFunc(rel.held, func(cl *Call) bool {
			ended := r.now-cl.issued >= rel.core.cfg.LeaseTTL
			if ended {
				cl.Err = context.DeadlineExceeded
				rel.core.Reply(r.now, cl)
			}
			return ended
		})
	}
	r.drained()
}
