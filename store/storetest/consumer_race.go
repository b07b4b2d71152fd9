package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
)

func raceTests[TX any]() []inboxTest[TX] {
	return []inboxTest[TX]{
		{"32 racers over 200 IDs have 200 effects", func(i *inboxRig[TX]) { i.race(32, 200, inbox.ReadCommitted) }},
		{"racers under repeatable read have one effect per ID", func(i *inboxRig[TX]) { i.race(8, 60, inbox.RepeatableRead) }},
		{"racers under serializable have one effect per ID", func(i *inboxRig[TX]) { i.race(8, 60, inbox.Serializable) }},
		{"waiting copy is a duplicate when the first commits", waitingCopyIsDuplicate[TX]},
		{"waiting copy runs when the first is rolled back", waitingCopyRuns[TX]},
		{"parking waits for a copy and is a duplicate when that was applied", parkingWaits[TX]},
		{"parking waits for a copy and claims when that was rolled back", parkingClaims[TX]},
		{"copies parked and applied at once have one outcome", parkRacesApply[TX]},
		{"copy never claims an ID that is being forgotten", forgetRacesApply[TX]},
		{"later messages of a key never pass a parked one", orderRaces[TX]},
	}
}

// race makes racers apply all messages in different orders. Every third handler fails.
func (i *inboxRig[TX]) race(racers, messages int, level inbox.Isolation) {
	claims := make([]inbox.Claim, messages)
	for n := range claims {
		claims[n] = i.claim(message(""))
		claims[n].Isolation = level
	}
	var applied, duplicates atomic.Int64
	i.crowd(racers, func(int) error {
		for _, n := range rand.Perm(messages) {
			v, err := i.insist(claims[n])
			if err != nil {
				return err
			}
			switch v {
			case inbox.Applied:
				applied.Add(1)
			case inbox.Duplicate:
				duplicates.Add(1)
			default:
				return fmt.Errorf("verdict is %v", v)
			}
		}
		return nil
	})
	i.expectEach(claims)
	if applied.Load() != int64(messages) || duplicates.Load() != int64((racers-1)*messages) {
		i.Errorf("%d applied and %d duplicates, want %d and %d",
			applied.Load(), duplicates.Load(), messages, (racers-1)*messages)
	}
}

// crowd runs fn on n goroutines and waits for them.
func (i *inboxRig[TX]) crowd(n int, fn func(n int) error) {
	i.Helper()
	var wg sync.WaitGroup
	errs := make([]error, n)
	for k := range n {
		wg.Go(func() { errs[k] = fn(k) })
	}
	wg.Wait()
	for _, err := range errs {
		i.ok(err)
	}
}

// insist applies a message until it succeeds, through conflicts and random failures of handlers.
func (i *inboxRig[TX]) insist(c inbox.Claim) (inbox.Verdict, error) {
	for {
		v, err := i.Store.Apply(i.ctx(), c, func(ctx context.Context, tx TX) error {
			if err := i.Effect(ctx, tx, c.ID.String()); err != nil {
				return err
			}
			if rand.N(3) == 0 {
				return errHandler
			}
			return nil
		})
		if err == nil || err != errHandler && i.Store.Classify(err) != inbox.Conflict { //nolint:errorlint // as it is
			return v, err
		}
	}
}

// expectEach checks that each claim has exactly one effect.
func (i *inboxRig[TX]) expectEach(claims []inbox.Claim) {
	i.Helper()
	names, err := i.Effects(i.ctx())
	i.ok(err)
	want := make([]string, len(claims))
	for n := range claims {
		want[n] = claims[n].ID.String()
	}
	slices.Sort(names)
	slices.Sort(want)
	if !slices.Equal(names, want) {
		i.Errorf("%d effects of %d messages, %d of them different", len(names), len(want), len(slices.Compact(names)))
	}
}

func waitingCopyIsDuplicate[TX any](i *inboxRig[TX]) {
	for _, level := range levels {
		c := i.claim(message(""))
		c.Isolation = level
		first := i.holdApply(c)
		var v inbox.Verdict
		copied := i.async(func() error {
			return i.again(func() (err error) {
				v, err = i.Store.Apply(i.ctx(), c, i.effect("twice"))
				return err
			})
		})
		i.stays("copy", copied)
		i.ok(i.release(first, nil))
		i.ok(i.result(copied))
		if v != inbox.Duplicate {
			i.Errorf("verdict on the copy is %v", v)
		}
	}
	names, err := i.Effects(i.ctx())
	i.ok(err)
	if slices.Contains(names, "twice") {
		i.Errorf("effects are %q", names)
	}
}

func waitingCopyRuns[TX any](i *inboxRig[TX]) {
	for _, level := range levels {
		m := message("")
		c := i.claim(m)
		c.Isolation = level
		first := i.holdApply(c)
		var v inbox.Verdict
		copied := i.async(func() error {
			return i.again(func() (err error) {
				v, err = i.Store.Apply(i.ctx(), c, i.effect("copy"))
				return err
			})
		})
		i.stays("copy", copied)
		if err := i.release(first, errHandler); err != errHandler { //nolint:errorlint // as it is
			i.Errorf("first handler gives %v", err)
		}
		i.ok(i.result(copied))
		if v != inbox.Applied {
			i.Errorf("verdict on the copy is %v", v)
		}
	}
	i.expectEffects("copy", "copy", "copy")
}

func parkingWaits[TX any](i *inboxRig[TX]) {
	for _, state := range []inbox.State{inbox.Retrying, inbox.Dead} {
		m := message("")
		first := i.holdApply(i.claim(m))
		var v inbox.Verdict
		parking := i.async(func() (err error) {
			v, err = i.Store.ParkMessage(i.ctx(), inbox.Parking{Consumer: i.consumer, Message: m, State: state})
			return err
		})
		i.stays("parking", parking)
		i.ok(i.release(first, nil))
		i.ok(i.result(parking))
		if v != inbox.Duplicate {
			i.Errorf("verdict on parking is %v", v)
		}
	}
	i.expectParked()
}

func parkingClaims[TX any](i *inboxRig[TX]) {
	m := message("")
	first := i.holdApply(i.claim(m))
	var v inbox.Verdict
	parking := i.async(func() (err error) {
		v, err = i.Store.ParkMessage(i.ctx(), inbox.Parking{Consumer: i.consumer, Message: m, State: inbox.Dead})
		return err
	})
	i.stays("parking", parking)
	_ = i.release(first, errHandler)
	i.ok(i.result(parking))
	if v != inbox.Applied {
		i.Errorf("verdict on parking is %v", v)
	}
	i.expectParked(inbox.Dead)
	i.expectVerdict(i.claim(m), inbox.Duplicate)
	i.expectEffects()
}

// parkRacesApply parks a copy after its last failure while another copy is handled: the message is
// applied or dead, never both.
func parkRacesApply[TX any](i *inboxRig[TX]) {
	for range 25 {
		m := message("")
		var verdict, parked inbox.Verdict
		i.crowd(2, func(n int) (err error) {
			if n == 0 {
				verdict, err = i.Store.Apply(i.ctx(), i.claim(m), i.effect(m.ID.String()))
				return err
			}
			parked, err = i.Store.ParkMessage(i.ctx(), inbox.Parking{Consumer: i.consumer, Message: m, State: inbox.Dead})
			return err
		})
		rows := len(i.list(inbox.Filter{IDs: []uuid.UUID{m.ID}}))
		switch {
		case verdict == inbox.Applied && parked == inbox.Duplicate && rows == 0:
		case verdict == inbox.Duplicate && parked == inbox.Applied && rows == 1:
		default:
			i.Fatalf("verdicts are %v and %v on parking, with %d parked", verdict, parked, rows)
		}
	}
}

// forgetRacesApply forgets a message while a copy of it arrives, again and again.
func forgetRacesApply[TX any](i *inboxRig[TX]) {
	for _, level := range levels {
		for range 10 {
			m := message("")
			c := i.claim(m)
			c.Isolation = level
			i.expectVerdict(c, inbox.Applied)
			i.forgetTo()
			var v inbox.Verdict
			i.crowd(2, func(n int) (err error) {
				if n == 0 {
					_, err = i.forget(i.consumer, 0, 1000)
					return err
				}
				return i.again(func() (err error) {
					v, err = i.Store.Apply(i.ctx(), c, i.effect("twice"))
					return err
				})
			})
			if v != inbox.Duplicate && v != inbox.TooOld {
				i.Fatalf("verdict on the copy is %v", v)
			}
		}
	}
	names, err := i.Effects(i.ctx())
	i.ok(err)
	if slices.Contains(names, "twice") {
		i.Errorf("effects are %q", names)
	}
}

// orderRaces makes one process deliver the messages of a key in order while handlers fail at
// random, and two other processes handle parked messages.
func orderRaces[TX any](i *inboxRig[TX]) {
	for _, level := range levels {
		const messages = 30
		list := make([]*inbox.Message, messages)
		for n := range list {
			list[n] = message("key " + string(rune('0'+level)))
		}
		var applied atomic.Int64
		i.crowd(3, func(n int) error {
			if n == 0 {
				return i.deliver(list, level, &applied)
			}
			return i.retry(level, messages, &applied)
		})
		want := make([]string, messages)
		for n, m := range list {
			want[n] = m.ID.String()
		}
		names, err := i.Effects(i.ctx())
		i.ok(err)
		if got := names[len(names)-messages:]; !slices.Equal(got, want) {
			i.Fatalf("at level %d, effects are in the order %v, want %v", level, indexes(got, want), indexes(want, want))
		}
		i.expectParked()
	}
}

func indexes(names, order []string) []int {
	list := make([]int, len(names))
	for n, name := range names {
		list[n] = slices.Index(order, name)
	}
	return list
}

// deliver applies messages in order. If a handler fails, it parks the message.
func (i *inboxRig[TX]) deliver(list []*inbox.Message, level inbox.Isolation, applied *atomic.Int64) error {
	for n, m := range list {
		c := i.ordered(m)
		c.Isolation = level
		err := i.again(func() error {
			v, err := i.Store.Apply(i.ctx(), c, func(ctx context.Context, tx TX) error {
				if n%5 == 0 {
					return errHandler
				}
				return i.Effect(ctx, tx, m.ID.String())
			})
			if v == inbox.Applied {
				applied.Add(1)
			}
			return err
		})
		if err == errHandler { //nolint:errorlint // as it is
			_, err = i.Store.ParkMessage(i.ctx(), inbox.Parking{
				Consumer: i.consumer, Message: m, State: inbox.Retrying, Ordered: true, Attempts: 1,
			})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// retry handles due messages until all messages are applied.
func (i *inboxRig[TX]) retry(level inbox.Isolation, messages int64, applied *atomic.Int64) error {
	begun := time.Now()
	for applied.Load() < messages && i.ctx().Err() == nil {
		if time.Since(begun) > 2*patience {
			return fmt.Errorf("only %d of %d messages were applied: the rest is stuck", applied.Load(), messages)
		}
		seqs, _, err := i.Store.DueMessages(i.ctx(), i.consumer, 3)
		if err != nil {
			return err
		}
		for _, seq := range seqs {
			done, err := i.applyParkedAt(level, seq)
			if err != nil {
				return err
			}
			if done {
				applied.Add(1)
			}
		}
	}
	return i.ctx().Err()
}
