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
			if n := calls.Add(-1); n >= 0 && n < 3 { // in each of three groups
				time.Sleep(400 * time.Millisecond)
			}
			return nil
		}})
		next, flood := r.floods()
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
		r.wantEachOnce(*next)
		if c := r.handler.Counters(); c.GroupsUndone != 0 {
			t.Errorf("%d groups were rolled back", c.GroupsUndone)
		}
	})
}

// TestGroupsThatAreLateEndGroupsForAMinute, although they were slow before they were rolled back, and no longer
// if three of them are late together.
func TestGroupsThatAreLateEndGroupsForAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64 // until handlers hang
		r := newRig(t, setup{store: oneDisk(time.Millisecond), fn: func(ctx context.Context, _ *work, _ *message.Message) error {
			if n := calls.Add(-1); n >= 0 && n < 3 { // in each of three groups
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}})
		next, flood := r.floods()
		if flood(5000) == 0 {
			t.Fatal("no groups")
		}
		calls.Store(100)
		flood(500)
		if c := r.handler.Counters(); c.GroupsUndone != 3 || c.Failed != 0 {
			t.Errorf("counters: %+v", c)
		}
		time.Sleep(50 * time.Second)
		if n := flood(2000); n != 0 {
			t.Errorf("%d groups less than a minute after some that were late", n)
		}
		time.Sleep(10 * time.Second)
		if flood(2000) == 0 {
			t.Error("no groups a minute after some that were late")
		}
		r.wantEachOnce(*next)
	})
}
