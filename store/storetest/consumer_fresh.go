package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
)

func freshTests[TX any]() []inboxTest[TX] {
	return []inboxTest[TX]{
		{"fresh message is kept whole, claimed and due", freshIsDue[TX]},
		{"fresh message that is known, too old or altered is not kept", freshIsChecked[TX]},
		{"fresh message does not wait for a handler of its key", freshDoesNotWait[TX]},
		{"fresh messages of a key are due one after another", freshInOrder[TX]},
		{"fresh messages that are stored beside handlers all run in order", freshRace[TX]},
		{"fresh message behind messages that die or are discarded runs", freshBehindDead[TX]},
	}
}

// fresh parks messages that were never handled, in order.
func (i *inboxRig[TX]) fresh(level inbox.Isolation, messages ...*inbox.Message) {
	i.Helper()
	for _, m := range messages {
		i.park(inbox.Parking{Message: m, State: inbox.Retrying, Ordered: true, Fresh: true, Isolation: level}, inbox.Applied)
	}
}

func freshIsDue[TX any](i *inboxRig[TX]) {
	for _, key := range []string{"", "key"} {
		m := message(key)
		i.fresh(inbox.ReadCommitted, m)
		got := i.parked(m)
		i.expectSame(&got.Message, m)
		if got.State != inbox.Retrying || got.Attempts != 0 || got.LastError != "" || got.NextAttemptAt.IsZero() {
			i.Errorf("stored message is %+v", got)
		}
		i.expectVerdict(i.claim(m), inbox.Duplicate)
		i.takeUp(m, true)
	}
}

func freshIsChecked[TX any](i *inboxRig[TX]) {
	m := message("key")
	i.fresh(inbox.ReadCommitted, m)
	p := inbox.Parking{Message: m, State: inbox.Retrying, Ordered: true, Fresh: true}
	i.park(p, inbox.Duplicate)
	p.Message = otherContent(m)
	i.park(p, inbox.Altered)
	i.forgetTo()
	p.Message = old("key")
	i.park(p, inbox.TooOld)
	i.expectParked(inbox.Retrying)
	i.takeUp(m, true)
	p.Message = m
	i.park(p, inbox.Duplicate)
	i.expectParked()
}

func freshDoesNotWait[TX any](i *inboxRig[TX]) {
	if i.OneWriter {
		return
	}
	for _, level := range levels {
		key := fmt.Sprint("key ", level)
		head, second, third := message(key), message(key), message(key)
		i.fresh(level, head)
		c := inbox.Claim{Consumer: i.consumer, Isolation: level, IdleTimeout: patience, LockTimeout: patience}
		seq := i.parked(head).Seq
		first := i.hold(head.ID.String(), func(fn handler[TX]) error {
			_, err := i.Store.ApplyParked(i.ctx(), c, seq, func(ctx context.Context, tx TX, _ *inbox.Parked) error {
				return fn(ctx, tx)
			})
			return err
		})
		i.ok(i.result(i.async(func() error {
			i.fresh(level, second, third)
			return nil
		})))
		i.ok(i.release(first, nil))
		i.takeUp(third, false)
		i.takeUp(second, true)
		i.takeUp(third, true)
	}
}

func freshInOrder[TX any](i *inboxRig[TX]) {
	var want []string
	for _, level := range levels {
		messages := make([]*inbox.Message, 6)
		for n := range messages {
			messages[n] = message(fmt.Sprint("key ", level))
			want = append(want, messages[n].ID.String())
		}
		i.fresh(level, messages...)
		seqs, _, err := i.Store.DueMessages(i.ctx(), i.consumer, 10)
		i.ok(err)
		if !slices.Equal(seqs, []int64{i.parked(messages[0]).Seq}) {
			i.Fatalf("due messages are %v, want the first of the key", seqs)
		}
		i.drain()
	}
	i.expectEffects(want...)
}

// freshRace stores messages of a few keys while two processes handle what is due.
func freshRace[TX any](i *inboxRig[TX]) {
	const keys, each = 3, 25
	for _, level := range levels {
		var stored sync.WaitGroup
		ids := make([][]string, keys)
		for k := range keys {
			stored.Go(func() {
				for range each {
					m := message(fmt.Sprint("key ", level, k))
					ids[k] = append(ids[k], m.ID.String())
					p := inbox.Parking{Consumer: i.consumer, Message: m, State: inbox.Retrying, Ordered: true, Fresh: true, Isolation: level}
					err := i.again(func() error {
						_, err := i.Store.ParkMessage(i.ctx(), p)
						return err
					})
					if err != nil {
						i.Error(err)
					}
				}
			})
		}
		done := make(chan struct{})
		var handled sync.WaitGroup
		for range 2 {
			handled.Go(func() { i.handleUntil(done, level) })
		}
		stored.Wait()
		close(done)
		handled.Wait()
		i.drain()
		i.expectParked()
		effects, err := i.Effects(i.ctx())
		i.ok(err)
		for k := range keys {
			var got []string
			for _, id := range effects {
				if slices.Contains(ids[k], id) {
					got = append(got, id)
				}
			}
			if !slices.Equal(got, ids[k]) {
				i.Errorf("%d effects of %d messages of a key, or out of order", len(got), len(ids[k]))
			}
		}
	}
}

// handleUntil handles due messages until done is closed.
func (i *inboxRig[TX]) handleUntil(done <-chan struct{}, level inbox.Isolation) {
	for {
		select {
		case <-done:
			return
		default:
		}
		seqs, _, err := i.Store.DueMessages(i.ctx(), i.consumer, 10)
		if err != nil && i.Store.Classify(err) != inbox.Conflict {
			i.Error(err)
			return
		}
		for _, seq := range seqs {
			if _, err := i.applyParkedAt(level, seq); err != nil {
				i.Error(err)
			}
		}
	}
}

func freshBehindDead[TX any](i *inboxRig[TX]) {
	m := make([]*inbox.Message, 5)
	for n := range m {
		m[n] = message("key")
	}
	i.fresh(inbox.ReadCommitted, m...)
	i.ok(i.Store.RetryMessage(i.ctx(), i.parked(m[0]).Seq, 1, 0, true, "error"))
	_, err := i.Store.DiscardMessages(i.ctx(), inbox.Filter{IDs: []uuid.UUID{m[1].ID, m[3].ID}}, "no use")
	i.ok(err)
	i.drain()
	i.expectEffects(m[2].ID.String(), m[4].ID.String())
}
