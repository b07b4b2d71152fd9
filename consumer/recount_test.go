package consumer_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/transport"
)

// TestProcessThatComesBackMeanwhileConvictsNobody: a copy runs in another process, and its start
// counts until its handler returns, which lets the next copy in.
func TestProcessThatComesBackMeanwhileConvictsNobody(t *testing.T) {
	t.Parallel()
	store := newFake()
	store.attempts[claimKey{1, number(1)}] = attemptRow{starts: 4}
	r := newRig(t, setup{store: store})
	var came atomic.Bool
	store.setFault(func(step string) error {
		if step == "begin" && !came.Swap(true) {
			_, err := store.countAll("unstarted", 1, []uuid.UUID{number(1)}, func(r *attemptRow) int { r.starts--; return r.starts })
			return err
		}
		return nil
	})
	r.consume(again(msg(1)))
	r.wantCalls(1)
	r.wantDone(number(1), 1)
	if !came.Load() {
		t.Error("no claim was made")
	}
}

// TestServiceThatStopsBeforeTheLastCountConvictsNobody: the message comes again.
func TestServiceThatStopsBeforeTheLastCountConvictsNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		store.attempts[claimKey{1, number(1)}] = attemptRow{starts: 4}
		r := newRig(t, setup{store: store})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		m := again(msg(1))
		m.SetContext(transport.WithRedelivered(ctx))
		if err := r.handler.Consume(m); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it ends with %v", err)
		}
		r.wantCalls(0)
		r.wantStates()
		r.wantStarts(0, 4)
	})
}
