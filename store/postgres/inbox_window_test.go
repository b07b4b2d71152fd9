package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/store/inbox"
)

// shift makes a consumer older by some days, as if the database's clock had gone on.
func (r *inboxRig) shift(days int) {
	r.Helper()
	r.exec("UPDATE "+r.names.Table("inbox_consumers")+` SET registered_at = registered_at - $1 * interval '1 day',
		passed_at = passed_at - $1 * interval '1 day', forgotten_until = forgotten_until - $1 * interval '1 day'`, days)
}

const day = 24 * time.Hour

func (r *inboxRig) expectAdvance(window, maxStep time.Duration, jumped bool, ago time.Duration) {
	r.Helper()
	until, err := r.AdvanceForgotten(r.ctx(), r.consumer, window, maxStep)
	if jumped != errors.Is(err, inbox.ErrClockJump) || !jumped && err != nil {
		r.Fatalf("advance gives %v", err)
	}
	if ago == 0 {
		if !until.IsZero() {
			r.Fatalf("forgotten until %v, want nothing", until)
		}
		return
	}
	if off := time.Since(until) - ago; off < -time.Minute || off > time.Minute {
		r.Fatalf("forgotten until %v ago, want %v", time.Since(until), ago)
	}
}

func TestClockThatJumpsAYearForgetsNothing(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	r.expectAdvance(14*day, 7*day, false, 0)
	r.shift(365)
	r.expectAdvance(14*day, 7*day, true, 0)
	r.expectAdvance(14*day, 7*day, true, 0)
	r.expectAdvance(14*day, 366*day, false, 14*day) // said once by the operator
	r.shift(1)
	r.expectAdvance(14*day, 7*day, false, 14*day)
	r.shift(8)
	r.expectAdvance(14*day, 7*day, true, 22*day)
}

func TestYoungConsumerThatIsPassedOftenIsNoJump(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	for range 14 {
		r.expectAdvance(30*day, 2*day+time.Hour, false, 0)
		r.shift(2)
	}
	r.shift(-2)
	r.shift(3) // three days without a pass
	r.expectAdvance(30*day, 2*day, true, 0)
}

func TestShorterWindowIsNoJump(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	for range 20 {
		r.expectAdvance(30*day, 2*day, false, 0)
		r.shift(1)
	}
	r.expectAdvance(3*day, 2*day, false, 3*day)
	r.expectAdvance(day, 2*day, false, day)
	r.expectAdvance(3*day, 2*day, false, day) // a longer one brings nothing back
	r.expectAdvance(30*day, 2*day, false, day)
}

func TestNewestLooksBackAsFarAsNeeded(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	var want []uuid.UUID
	for _, ago := range []time.Duration{200 * day, 30 * day, 10 * time.Hour, 5 * time.Minute, time.Second} {
		c := r.claim()
		r.expectVerdict(c, inbox.Applied)
		r.exec("UPDATE "+r.names.Table("inbox")+" SET applied_at = applied_at - $2 * interval '1 second' WHERE dispatch_id = $1",
			c.ID.String(), int(ago.Seconds()))
		want = append(want, c.ID)
	}
	for limit := 1; limit <= len(want)+1; limit++ {
		seen, err := r.Newest(r.ctx(), r.consumer, limit)
		r.ok(err)
		if len(seen) != min(limit, len(want)) {
			t.Fatalf("%d of %d IDs", len(seen), limit)
		}
		for n, s := range seen {
			if s.ID != want[len(want)-len(seen)+n] {
				t.Errorf("limit %d: ID %d is another one", limit, n)
			}
		}
	}
}

func TestForgettingRemovesCountsOfMessagesThatNeverCameBack(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	_, err := r.Failed(r.ctx(), r.consumer, uuid.New(), "error")
	r.ok(err)
	r.eventually("removal", func() bool {
		r.advance()
		_, err := r.Forget(r.ctx(), r.consumer, 0, time.Time{}, 10)
		r.ok(err)
		return value[int](r.rig, "SELECT count(*) FROM "+r.names.Table("inbox_attempts")) == 0
	})
	if n := value[int](r.rig, "SELECT count(*) FROM "+r.names.Table("inbox_forgotten")); n != 1 {
		t.Errorf("%d times are kept, want the last one", n)
	}
}

func TestKeyWhoseHeadWasDeletedByHandIsHealed(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	park := func() *inbox.Message {
		m := &inbox.Message{ID: uuid.New(), Topic: "topic", Key: "key"}
		_, err := r.ParkMessage(r.ctx(), inbox.Parking{
			Consumer: r.consumer, Message: m, State: inbox.Retrying, Ordered: true, RetryIn: time.Hour,
		})
		r.ok(err)
		return m
	}
	head := park()
	follower := r.keyed("key")
	r.expectVerdict(follower, inbox.Followed)
	r.expectVerdict(r.keyed("key"), inbox.Followed)
	r.exec("DELETE FROM "+r.names.Table("inbox_parked")+" WHERE dispatch_id = $1", head.ID.String())
	_, err := r.Register(r.ctx(), "service/handler", time.Hour)
	r.ok(err)
	for range 2 {
		seqs, _, err := r.DueMessages(r.ctx(), r.consumer, 10)
		r.ok(err)
		if len(seqs) != 1 {
			t.Fatalf("%d messages are due, want 1", len(seqs))
		}
		done, err := r.ApplyParked(r.ctx(), r.claim(), seqs[0], func(ctx context.Context, tx pgx.Tx, _ *inbox.Parked) error {
			return effect(ctx, tx)
		})
		if err != nil || !done {
			t.Fatalf("handling gives %v, %v", done, err)
		}
	}
	r.expectEffects(2)
}

func TestRegisteringAgainUsesUpNoNumbers(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	for range 20 {
		_, err := r.Register(r.ctx(), "service/handler", time.Hour)
		r.ok(err)
	}
	got, err := r.Register(r.ctx(), "service/other", time.Hour)
	r.ok(err)
	if got.Consumer != r.consumer+1 {
		t.Errorf("second consumer has number %d, the first one %d", got.Consumer, r.consumer)
	}
}
