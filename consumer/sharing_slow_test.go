package consumer_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

func TestGroupsComeBackSoonAfterTheMachineStoodStill(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64 // until the machine stands still
		r := newRig(t, setup{store: oneDisk(time.Millisecond), fn: func(context.Context, *work, *message.Message) error {
			if calls.Add(-1) == 0 {
				time.Sleep(400 * time.Millisecond)
			}
			return nil
		}})
		next := 0
		flood := func(n int) (groups int64) {
			before := r.handler.Counters().Groups
			r.flood(64, next, n)
			next += n
			return r.handler.Counters().Groups - before
		}
		if flood(5000) == 0 {
			t.Fatal("no groups")
		}
		calls.Store(100)
		flood(500)
		if n := flood(500); n != 0 {
			t.Errorf("%d groups soon after a slow one", n)
		}
		if flood(4000) == 0 {
			t.Error("no groups a second after a slow one")
		}
		r.wantEachOnce(next)
		if c := r.handler.Counters(); c.GroupsUndone != 0 {
			t.Errorf("%d groups were rolled back", c.GroupsUndone)
		}
	})
}

// TestGroupThatIsLateEndsGroupsForAMinute, although it was slow before it was rolled back.
func TestGroupThatIsLateEndsGroupsForAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64 // until a handler hangs
		r := newRig(t, setup{store: oneDisk(time.Millisecond), fn: func(ctx context.Context, _ *work, _ *message.Message) error {
			if calls.Add(-1) == 0 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}})
		if r.flood(64, 0, 5000); r.handler.Counters().Groups == 0 {
			t.Fatal("no groups")
		}
		calls.Store(100)
		r.flood(64, 5000, 500)
		before := r.handler.Counters()
		if before.GroupsUndone != 1 || before.Failed != 0 {
			t.Errorf("counters: %+v", before)
		}
		time.Sleep(50 * time.Second)
		if r.flood(64, 5500, 2000); r.handler.Counters().Groups != before.Groups {
			t.Error("groups less than a minute after one that was late")
		}
		time.Sleep(10 * time.Second)
		if r.flood(64, 7500, 2000); r.handler.Counters().Groups == before.Groups {
			t.Error("no groups a minute after one that was late")
		}
		r.wantEachOnce(9500)
	})
}
