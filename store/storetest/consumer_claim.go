package storetest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

func claimTests[TX any]() []inboxTest[TX] {
	return []inboxTest[TX]{
		{"message is applied once and its copies are duplicates", appliedOnce[TX]},
		{"copy with other content is altered and not run", alteredCopy[TX]},
		{"copy without a digest is a duplicate", copyWithoutDigest[TX]},
		{"two consumers with the same IDs do not disturb each other", twoConsumers[TX]},
		{"failed handler leaves nothing behind, and its error comes back as it is", failedHandler[TX]},
		{"panic and Goexit roll back and go on", abruptHandler[TX]},
		{"swallowed error of a statement is not taken for success", swallowedError[TX]},
		{"context that ended before the commit commits nothing", endedContext[TX]},
		{"deadline of the context bounds the wait for a claim", boundedWait[TX]},
		{"wait for a claim ends with a conflict after the lock timeout", lockTimeout[TX]},
		{"savepoint is released, or rolled back to, within a handler", handlerSavepoint[TX]},
		{"consumer that is not registered cannot claim", unregistered[TX]},
		{"starts and failures are counted, and a failure forgets the starts", startsAndFailures[TX]},
		{"starts of many messages are counted and taken back each on its own", manyStarts[TX]},
		{"start is not counted where one was lately", startsLately[TX]},
		{"starts of messages in common are counted without a deadlock", startsRace[TX]},
		{"group that is rolled back and a duplicate in one that is not keep their starts", startedGroup[TX]},
		{"what is counted of a message goes with its claim", startedAndApplied[TX]},
		{"errors are classified through wrapping", classified[TX]},
	}
}

func appliedOnce[TX any](i *inboxRig[TX]) {
	for _, level := range levels {
		m := message("")
		c := i.claim(m)
		c.Isolation = level
		i.expectVerdict(c, inbox.Applied)
		i.expectVerdict(c, inbox.Duplicate)
		c.Stamp = time.Time{}
		i.expectVerdict(c, inbox.Duplicate)
	}
	names, err := i.Effects(i.ctx())
	i.ok(err)
	if len(names) != len(levels) {
		i.Errorf("%d effects of %d messages", len(names), len(levels))
	}
}

func alteredCopy[TX any](i *inboxRig[TX]) {
	m := message("")
	i.expectVerdict(i.claim(m), inbox.Applied)
	for _, level := range levels {
		c := i.claim(otherContent(m))
		c.Isolation = level
		i.expectVerdict(c, inbox.Altered)
	}
	i.expectVerdict(i.claim(m), inbox.Duplicate)
	i.expectEffects(m.ID.String())
}

func copyWithoutDigest[TX any](i *inboxRig[TX]) {
	m, bare := message(""), message("")
	bare.Digest = transport.Digest{}
	i.expectVerdict(i.claim(m), inbox.Applied)
	i.expectVerdict(i.claim(bare), inbox.Applied)
	c := i.claim(m)
	c.Digest = transport.Digest{}
	i.expectVerdict(c, inbox.Duplicate)
	i.expectVerdict(i.claim(otherContent(bare)), inbox.Duplicate)
	i.expectEffects(m.ID.String(), bare.ID.String())
}

func twoConsumers[TX any](i *inboxRig[TX]) {
	other := i.register("service/other")
	if other == i.consumer {
		i.Fatal("two consumers have one number")
	}
	m := message("key")
	id := m.ID.String()
	i.retrying(message("key")) // live, of this consumer only
	c := i.ordered(m)
	c.Consumer = other
	i.expectVerdict(c, inbox.Applied)
	i.expectVerdict(c, inbox.Duplicate)
	i.expectVerdict(i.claim(m), inbox.Applied)
	i.expectEffects(id, id)
	free := message("") // a store may claim messages without order in another way
	c = i.claim(free)
	c.Consumer = other
	i.expectVerdict(c, inbox.Applied)
	i.expectVerdict(i.claim(free), inbox.Applied)
	starts, err := i.Store.Started(i.ctx(), other, []uuid.UUID{m.ID}, 0)
	i.ok(err)
	again, err := i.Store.Started(i.ctx(), i.consumer, []uuid.UUID{m.ID}, 0)
	i.ok(err)
	if !slices.Equal(starts, []int{1}) || !slices.Equal(again, []int{1}) {
		i.Errorf("starts of two consumers are counted together: %v, %v", starts, again)
	}
	i.ok(i.Store.Unstarted(i.ctx(), other, []uuid.UUID{m.ID}))
	i.expectStarts(0, []uuid.UUID{m.ID}, 2)
	seen, err := i.Store.Newest(i.ctx(), other, 10)
	i.ok(err)
	if len(seen) != 2 {
		i.Errorf("other consumer has applied %d messages, want 2", len(seen))
	}
	seqs, _, err := i.Store.DueMessages(i.ctx(), other, 10)
	i.ok(err)
	if len(seqs) != 0 {
		i.Errorf("%d messages of one consumer are due at the other", len(seqs))
	}
}

func failedHandler[TX any](i *inboxRig[TX]) {
	for _, level := range levels {
		m := message("")
		c := i.claim(m)
		c.Isolation = level
		v, err := i.Store.Apply(i.ctx(), c, func(ctx context.Context, tx TX) error {
			i.ok(i.Effect(ctx, tx, "lost"))
			return errHandler
		})
		if v != inbox.None || err != errHandler { //nolint:errorlint // as it is
			i.Errorf("Apply gives %v, %v", v, err)
		}
		i.expectClass(err, inbox.HandlerError)
		i.expectVerdict(c, inbox.Applied)
	}
	names, err := i.Effects(i.ctx())
	i.ok(err)
	if len(names) != len(levels) {
		i.Errorf("effects are %q", names)
	}
}

func abruptHandler[TX any](i *inboxRig[TX]) {
	m := message("")
	var value any
	i.ok(i.result(i.async(func() error {
		defer func() { value = recover() }()
		_, err := i.Store.Apply(i.ctx(), i.claim(m), func(ctx context.Context, tx TX) error {
			if err := i.Effect(ctx, tx, "lost"); err != nil {
				return err
			}
			panic("panic of a handler")
		})
		return err
	})))
	if value != "panic of a handler" {
		i.Errorf("recovered %v", value)
	}
	i.exits(func() {
		_, _ = i.Store.Apply(i.ctx(), i.claim(m), func(ctx context.Context, tx TX) error {
			if err := i.Effect(ctx, tx, "lost"); err != nil {
				return err
			}
			runtime.Goexit()
			return nil
		})
	})
	i.expectVerdict(i.claim(m), inbox.Applied)
	i.expectEffects(m.ID.String())
}

// exits checks that fn ends its goroutine.
func (i *inboxRig[TX]) exits(fn func()) {
	i.Helper()
	returned := make(chan bool, 1)
	go func() {
		done := false
		defer func() { returned <- done }()
		fn()
		done = true
	}()
	select {
	case done := <-returned:
		if done {
			i.Error("Goexit did not go on")
		}
	case <-time.After(patience):
		i.Fatalf("goroutine has not ended within %v", patience)
	}
}

func swallowedError[TX any](i *inboxRig[TX]) {
	m := message("")
	id := m.ID.String()
	v, err := i.Store.Apply(i.ctx(), i.claim(m), func(ctx context.Context, tx TX) error {
		i.ok(i.Effect(ctx, tx, id))
		if err := i.Break(ctx, tx); err == nil {
			return errors.New("the statement has not failed")
		}
		return nil
	})
	if !i.ErrorsDoom {
		i.ok(err)
		i.expectEffects(id)
		return
	}
	if v != inbox.None || !errors.Is(err, inbox.ErrRolledBack) {
		i.Errorf("Apply gives %v, %v", v, err)
	}
	i.expectClass(err, inbox.HandlerError)
	i.expectEffects()
	i.expectVerdict(i.claim(m), inbox.Applied)
}

func endedContext[TX any](i *inboxRig[TX]) {
	m := message("")
	ctx, cancel := context.WithCancel(i.ctx())
	defer cancel()
	v, err := i.Store.Apply(ctx, i.claim(m), func(ctx context.Context, tx TX) error {
		err := i.Effect(ctx, tx, "lost")
		cancel()
		return err
	})
	if v != inbox.None || !errors.Is(err, context.Canceled) || errors.Is(err, inbox.ErrCommitUnknown) {
		i.Errorf("Apply gives %v, %v", v, err)
	}
	i.expectEffects()
	i.expectVerdict(i.claim(m), inbox.Applied)
}

func boundedWait[TX any](i *inboxRig[TX]) {
	m := message("")
	first := i.holdApply(i.claim(m))
	ctx, cancel := context.WithTimeout(i.ctx(), 100*time.Millisecond)
	defer cancel()
	v, err := i.Store.Apply(ctx, i.claim(m), i.effect("lost"))
	if v != inbox.None || err == nil {
		i.Errorf("Apply gives %v, %v", v, err)
	}
	// A transaction that was sent together with its COMMIT may still be committed.
	if class := i.Store.Classify(err); class == inbox.HandlerError || class == inbox.CommitUnknown && i.Begin == nil {
		i.Errorf("class of %q is %v", err, class)
	}
	i.ok(i.release(first, nil))
	i.expectVerdict(i.claim(m), inbox.Duplicate)
	i.expectEffects(m.ID.String())
}

func lockTimeout[TX any](i *inboxRig[TX]) {
	for _, level := range levels {
		for _, claim := range []func(*inbox.Message) inbox.Claim{i.claim, i.ordered} {
			m := message("key")
			first := i.holdApply(claim(m))
			c := claim(m)
			c.LockTimeout, c.Isolation = 50*time.Millisecond, level
			v, err := i.Store.Apply(i.ctx(), c, i.effect("lost"))
			if v != inbox.None || err == nil {
				i.Errorf("Apply gives %v, %v", v, err)
			}
			i.expectClass(err, inbox.Conflict)
			i.ok(i.release(first, nil))
			i.expectVerdict(claim(m), inbox.Duplicate)
		}
	}
}

func handlerSavepoint[TX any](i *inboxRig[TX]) {
	v, err := i.Store.Apply(i.ctx(), i.claim(message("")), func(ctx context.Context, tx TX) error {
		i.ok(i.Effect(ctx, tx, "before"))
		i.ok(i.Store.Savepoint(ctx, tx, i.effect("kept")))
		err := i.Store.Savepoint(ctx, tx, func(ctx context.Context, tx TX) error {
			i.ok(i.Effect(ctx, tx, "lost"))
			if err := i.Break(ctx, tx); err == nil {
				return errors.New("the statement has not failed")
			}
			return errHandler
		})
		if !errors.Is(err, errHandler) {
			i.Errorf("savepoint gives %v", err)
		}
		return i.Effect(ctx, tx, "after")
	})
	i.ok(err)
	if v != inbox.Applied {
		i.Errorf("verdict is %v", v)
	}
	got, err := i.Effects(i.ctx())
	i.ok(err)
	if slices.Sort(got); !slices.Equal(got, []string{"after", "before", "kept"}) {
		i.Errorf("effects are %q", got)
	}
}

func unregistered[TX any](i *inboxRig[TX]) {
	c := i.claim(message(""))
	c.Consumer = i.consumer + 1000
	v, err := i.Store.Apply(i.ctx(), c, i.effect("lost"))
	if v != inbox.None || err == nil {
		i.Errorf("Apply gives %v, %v", v, err)
	}
	i.expectEffects()
}

func startsAndFailures[TX any](i *inboxRig[TX]) {
	m := message("")
	start := func(want int) {
		i.Helper()
		i.expectStarts(0, []uuid.UUID{m.ID}, want)
	}
	back := func() {
		i.Helper()
		i.ok(i.Store.Unstarted(i.ctx(), i.consumer, []uuid.UUID{m.ID}))
	}
	fail := func(want int) {
		i.Helper()
		if got, err := i.Store.Failed(i.ctx(), i.consumer, m.ID, "error “text”"); err != nil || got != want {
			i.Fatalf("attempts are %d, %v, want %d", got, err, want)
		}
	}
	start(1)
	start(2)
	back()
	start(2)
	fail(1)
	back() // without a recorded start
	start(1)
	fail(2)
	fail(3)
	start(1)
	i.expectVerdict(i.claim(m), inbox.Applied) // regardless of the counts
}

// expectStarts records starts and checks the returned counts.
func (i *inboxRig[TX]) expectStarts(within time.Duration, ids []uuid.UUID, want ...int) {
	i.Helper()
	if got, err := i.Store.Started(i.ctx(), i.consumer, ids, within); err != nil || !slices.Equal(got, want) {
		i.Fatalf("starts are %v, %v, want %v", got, err, want)
	}
}

// newIDs returns dispatch IDs that do not ascend.
func newIDs(n int) []uuid.UUID {
	ids := make([]uuid.UUID, n)
	for k := range ids {
		ids[k] = uuid.New()
	}
	slices.SortFunc(ids, func(a, b uuid.UUID) int { return bytes.Compare(b[:], a[:]) })
	return ids
}

func manyStarts[TX any](i *inboxRig[TX]) {
	ids := newIDs(40)
	i.expectStarts(0, ids, slices.Repeat([]int{1}, 40)...)
	i.expectStarts(0, ids[:3], 2, 2, 2)
	// Mixed: messages with two starts, with one start, and without any.
	fresh := newIDs(1)[0]
	i.expectStarts(0, []uuid.UUID{ids[5], fresh, ids[0]}, 2, 1, 3)
	i.ok(i.Store.Unstarted(i.ctx(), i.consumer, append([]uuid.UUID{uuid.New()}, ids...)))
	i.expectStarts(0, []uuid.UUID{ids[0], ids[1], ids[5], ids[7], fresh}, 3, 2, 2, 1, 2)
	i.expectStarts(0, nil)
	i.ok(i.Store.Unstarted(i.ctx(), i.consumer, nil))
}

func startsLately[TX any](i *inboxRig[TX]) {
	ids := newIDs(4)
	i.expectStarts(time.Hour, ids[:2], 1, 1)
	i.expectStarts(time.Hour, ids, 0, 0, 1, 1)
	i.expectStarts(0, ids, 2, 2, 2, 2) // the starts that gave 0 were not counted
	i.ok(i.Store.Unstarted(i.ctx(), i.consumer, ids))
	i.ok(i.Store.Unstarted(i.ctx(), i.consumer, ids[1:3]))
	i.expectStarts(time.Hour, ids, 0, 1, 1, 0) // a start that was taken back does not count
	i.expectStarts(time.Hour, ids, 0, 0, 0, 0)
}

// unlessConflict repeats a call that conflicts with another transaction, as serializable
// transactions may.
func (i *inboxRig[TX]) unlessConflict(do func() error) error {
	for {
		if err := do(); err == nil || i.Store.Classify(err) != inbox.Conflict {
			return err
		}
	}
}

// startsRace makes processes record starts of common messages, in different orders, and take the
// starts back.
func startsRace[TX any](i *inboxRig[TX]) {
	ids := newIDs(30)
	i.crowd(8, func(int) error {
		for range 5 {
			part := make([]uuid.UUID, 0, 20)
			for _, n := range rand.Perm(len(ids))[:20] {
				part = append(part, ids[n])
			}
			var starts []int
			if err := i.unlessConflict(func() (err error) {
				starts, err = i.Store.Started(i.ctx(), i.consumer, part, 0)
				return err
			}); err != nil {
				return err
			}
			if slices.Contains(starts, 0) {
				return errors.New("a start was not recorded")
			}
			rand.Shuffle(len(part), func(a, b int) { part[a], part[b] = part[b], part[a] })
			if err := i.unlessConflict(func() error { return i.Store.Unstarted(i.ctx(), i.consumer, part) }); err != nil {
				return err
			}
		}
		return nil
	})
	i.expectStarts(0, ids, slices.Repeat([]int{1}, len(ids))...)
}

func startedGroup[TX any](i *inboxRig[TX]) {
	for _, level := range levels {
		claims := i.claims(4, level)
		i.expectVerdict(claims[1], inbox.Applied)
		ids := make([]uuid.UUID, len(claims))
		for k := range claims {
			ids[k], claims[k].Started = claims[k].ID, true
		}
		i.expectStarts(0, ids, 1, 1, 1, 1)
		_, err := i.Store.ApplyGroup(i.ctx(), claims, func(context.Context, TX, []int) error { return errHandler })
		if !errors.Is(err, errHandler) {
			i.Fatalf("ApplyGroup gives %v", err)
		}
		i.expectStarts(0, ids, 2, 2, 2, 2) // a group that was rolled back removes no starts
		i.expectGroup(claims, inbox.Applied, inbox.Duplicate, inbox.Applied, inbox.Applied)
		i.expectStarts(0, ids, 1, 3, 1, 1) // neither does a duplicate
	}
}

func startedAndApplied[TX any](i *inboxRig[TX]) {
	for _, level := range levels {
		c := i.claims(1, level)[0]
		c.Started = true
		i.expectStarts(0, []uuid.UUID{c.ID}, 1)
		_, err := i.Store.Apply(i.ctx(), c, func(context.Context, TX) error { return errHandler })
		if !errors.Is(err, errHandler) {
			i.Fatalf("Apply gives %v", err)
		}
		i.expectStarts(0, []uuid.UUID{c.ID}, 2)
		i.expectVerdict(c, inbox.Applied)
		i.expectStarts(0, []uuid.UUID{c.ID}, 1)
		i.expectVerdict(c, inbox.Duplicate)
		i.expectStarts(0, []uuid.UUID{c.ID}, 2)
	}
}

func classified[TX any](i *inboxRig[TX]) {
	i.expectClass(errHandler, inbox.HandlerError)
	i.expectClass(context.DeadlineExceeded, inbox.HandlerError) // of the handler's own
	i.expectClass(inbox.ErrRolledBack, inbox.HandlerError)
	i.expectClass(inbox.ErrCommitUnknown, inbox.CommitUnknown)
	_, err := i.Store.Apply(i.ctx(), i.claim(message("")), i.Break)
	if err == nil {
		i.Fatal("the statement has not failed")
	}
	i.expectClass(err, inbox.HandlerError)
}
