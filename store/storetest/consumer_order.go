package storetest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
)

func keyTests[TX any]() []inboxTest[TX] {
	return []inboxTest[TX]{
		{"message follows a parked one of its key, whole and with its claim", follows[TX]},
		{"message of a claim without a key does not follow", followsNotUnasked[TX]},
		{"message of another key does not follow", followsNotOther[TX]},
		{"message does not follow one that is dead, set aside or without order", followsOnlyLive[TX]},
		{"duplicate and altered copies do not follow", copiesDoNotFollow[TX]},
		{"message that is too old does not follow", oldDoesNotFollow[TX]},
		{"claim waits for the end of another one of its key", keyWaits[TX]},
		{"claim goes on without a conflict after another one of its key", keyGoesOn[TX]},
		{"newcomer that waits while its predecessor is parked follows it", newcomerFollows[TX]},
		{"newcomer that waits while the last parked one is handled does not follow", newcomerGoesOn[TX]},
		{"parking waits for a handler of its key", parkingWaitsForKey[TX]},
	}
}

func follows[TX any](i *inboxRig[TX]) {
	for _, level := range levels {
		head, m := message("key "+string(rune('0'+level))), message("key "+string(rune('0'+level)))
		m.Metadata, m.Payload = map[string]string{"a": "b", "": "\x00\xff"}, []byte{0, 1, 0xff}
		i.park(inbox.Parking{Message: head, State: inbox.Retrying, Ordered: true, RetryIn: time.Hour}, inbox.Applied)
		c := i.ordered(m)
		c.Isolation = level
		i.expectVerdict(c, inbox.Followed)
		i.expectVerdict(c, inbox.Duplicate)
		got := i.parked(m)
		if got.State != inbox.Following || !got.NextAttemptAt.IsZero() || got.Attempts != 0 {
			i.Errorf("follower is %+v", got)
		}
		i.expectSame(&got.Message, m)
		if got.Seq <= i.parked(head).Seq {
			i.Error("follower is before its head")
		}
		i.takeUp(m, false)
	}
	i.expectEffects()
}

func followsNotUnasked[TX any](i *inboxRig[TX]) {
	m := message("key")
	i.retrying(message("key"))
	i.expectVerdict(i.claim(m), inbox.Applied)
	i.expectEffects(m.ID.String())
}

func followsNotOther[TX any](i *inboxRig[TX]) {
	i.retrying(message("key"))
	m := message("KEY")
	i.expectVerdict(i.ordered(m), inbox.Applied)
	i.expectEffects(m.ID.String())
}

func followsOnlyLive[TX any](i *inboxRig[TX]) {
	for _, p := range []inbox.Parking{
		{State: inbox.Dead, Ordered: true}, {State: inbox.TooOldState, Ordered: true},
		{State: inbox.AlteredState, Ordered: true}, {State: inbox.Retrying, Ordered: false},
	} {
		p.Message = message("key")
		i.park(p, inbox.Applied)
	}
	m := message("key")
	i.expectVerdict(i.ordered(m), inbox.Applied)
	i.expectEffects(m.ID.String())
}

func copiesDoNotFollow[TX any](i *inboxRig[TX]) {
	m := message("key")
	i.expectVerdict(i.ordered(m), inbox.Applied)
	i.retrying(message("key"))
	i.expectVerdict(i.ordered(m), inbox.Duplicate)
	i.expectVerdict(i.ordered(otherContent(m)), inbox.Altered)
	i.expectParked(inbox.Retrying)
}

func oldDoesNotFollow[TX any](i *inboxRig[TX]) {
	i.retrying(lasting("key"))
	i.forgetTo()
	i.expectVerdict(i.ordered(old("key")), inbox.TooOld)
	i.expectParked(inbox.Retrying)
}

func keyWaits[TX any](i *inboxRig[TX]) {
	for _, level := range levels {
		a, b, other := message("key"), message("key"), message("other")
		first := i.holdApply(i.ordered(a))
		if !i.OneWriter {
			i.expectVerdict(i.ordered(other), inbox.Applied)
			i.expectVerdict(i.claim(message("key")), inbox.Applied)
		}
		waiting := i.async(func() error {
			c := i.ordered(b)
			c.Isolation = level
			return i.again(func() error {
				_, err := i.Store.Apply(i.ctx(), c, i.effect(b.ID.String()))
				return err
			})
		})
		i.stays("second message of the key", waiting)
		i.ok(i.release(first, nil))
		i.ok(i.result(waiting))
	}
}

func keyGoesOn[TX any](i *inboxRig[TX]) {
	for _, level := range levels {
		a, b := message("key"), message("key")
		first := i.holdApply(i.ordered(a))
		ran := 0
		waiting := i.async(func() error {
			c := i.ordered(b)
			c.Isolation = level
			_, err := i.Store.Apply(i.ctx(), c, func(ctx context.Context, tx TX) error {
				ran++
				return i.Effect(ctx, tx, b.ID.String())
			})
			return err
		})
		i.stays("second message of the key", waiting)
		i.ok(i.release(first, nil))
		i.ok(i.result(waiting)) // its transaction began after the wait
		names, err := i.Effects(i.ctx())
		i.ok(err)
		if want := []string{a.ID.String(), b.ID.String()}; !slices.Equal(names[len(names)-2:], want) || ran != 1 {
			i.Errorf("effects are %q, of %d runs", names, ran)
		}
	}
}

func newcomerFollows[TX any](i *inboxRig[TX]) {
	for _, level := range levels {
		for attempt := 0; !i.newcomerFollows(level, attempt); attempt++ {
			if attempt == 20 {
				i.Fatal("no parking was before its newcomer")
			}
		}
	}
}

// newcomerFollows parks the head of a key, and has a newcomer of the key handled, while both wait for an earlier
// message. It returns false if the newcomer came before the head, which nothing forbids.
func (i *inboxRig[TX]) newcomerFollows(level inbox.Isolation, attempt int) bool {
	i.Helper()
	key := fmt.Sprint("key ", level, attempt)
	holder, head, m := message(key), message(key), message(key)
	first := i.holdApply(i.ordered(holder))
	parking := i.async(func() error {
		_, err := i.Store.ParkMessage(i.ctx(), inbox.Parking{
			Consumer: i.consumer, Message: head, State: inbox.Retrying, Ordered: true, RetryIn: time.Hour,
		})
		return err
	})
	i.stays("parking", parking)
	var v inbox.Verdict
	overtaken := false // the head was parked when the handler of the newcomer ran
	newcomer := i.async(func() error {
		c := i.ordered(m)
		c.Isolation = level
		return i.again(func() (err error) {
			v, err = i.Store.Apply(i.ctx(), c, func(ctx context.Context, tx TX) error {
				if !i.OneWriter {
					parked, err := i.Store.ListParkedMessages(ctx, inbox.Filter{IDs: []uuid.UUID{head.ID}})
					if overtaken = len(parked) > 0; err != nil {
						return err
					}
				}
				return i.Effect(ctx, tx, "passed")
			})
			return err
		})
	})
	i.stays("newcomer", newcomer)
	i.ok(i.release(first, nil))
	i.ok(i.result(parking))
	i.ok(i.result(newcomer))
	if overtaken && v != inbox.Followed {
		i.Errorf("verdict on a newcomer is %v, though the head of its key was parked", v)
	}
	return overtaken || v == inbox.Followed || i.OneWriter
}

func newcomerGoesOn[TX any](i *inboxRig[TX]) {
	for _, level := range levels {
		head, m := message("key"), message("key")
		i.retrying(head)
		c := inbox.Claim{Consumer: i.consumer, Isolation: level, IdleTimeout: patience, LockTimeout: patience}
		seq := i.parked(head).Seq
		first := i.hold(head.ID.String(), func(fn handler[TX]) error {
			_, err := i.Store.ApplyParked(i.ctx(), c, seq, func(ctx context.Context, tx TX, _ *inbox.Parked) error {
				return fn(ctx, tx)
			})
			return err
		})
		var v inbox.Verdict
		newcomer := i.async(func() error {
			c := i.ordered(m)
			c.Isolation = level
			return i.again(func() (err error) {
				v, err = i.Store.Apply(i.ctx(), c, i.effect(m.ID.String()))
				return err
			})
		})
		i.stays("newcomer", newcomer)
		i.ok(i.release(first, nil))
		i.ok(i.result(newcomer))
		if v != inbox.Applied {
			i.Errorf("verdict on the newcomer is %v", v)
		}
		i.expectParked()
	}
}

func parkingWaitsForKey[TX any](i *inboxRig[TX]) {
	first := i.holdApply(i.ordered(message("key")))
	parking := i.async(func() error {
		_, err := i.Store.ParkMessage(i.ctx(), inbox.Parking{
			Consumer: i.consumer, Message: message("key"), State: inbox.Retrying, Ordered: true,
		})
		return err
	})
	i.stays("parking", parking)
	i.ok(i.release(first, nil))
	i.ok(i.result(parking))
	i.expectParked(inbox.Retrying)
}
