package storetest

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/boxpair/boxpair/store/inbox"
)

func groupTests[TX any]() []inboxTest[TX] {
	return []inboxTest[TX]{
		{"group is applied as a whole, and its copies are duplicates", groupApplied[TX]},
		{"each member has the verdict that it would have alone", groupVerdicts[TX]},
		{"failed group leaves no claim and no effect, and its error comes back as it is", groupFailed[TX]},
		{"panic and Goexit in a group roll it back", groupAbrupt[TX]},
		{"context that ended before the commit of a group commits nothing", groupContext[TX]},
		{"group of known messages runs nothing", groupKnown[TX]},
		{"members follow parked messages of their keys in the order of the claims", groupFollows[TX]},
		{"failed group parks no follower", groupFailsToFollow[TX]},
		{"claim of a member that is too old is not kept", groupTooOld[TX]},
		{"group waits for a copy, and runs the rest", groupWaits[TX]},
		{"wait of a group ends with a conflict after the lock timeout", groupLockTimeout[TX]},
		{"groups and copies that race have one effect per ID", func(i *inboxRig[TX]) { i.groupRace(inbox.ReadCommitted) }},
		{"groups that race under serializable have one effect per ID", func(i *inboxRig[TX]) { i.groupRace(inbox.Serializable) }},
		{"empty group does nothing", groupEmpty[TX]},
	}
}

// effects returns a handler that adds the IDs of its members to the effects.
func (i *inboxRig[TX]) effects(claims []inbox.Claim) func(ctx context.Context, tx TX, run []int) error {
	return func(ctx context.Context, tx TX, run []int) error {
		for _, n := range run {
			if err := i.Effect(ctx, tx, claims[n].ID.String()); err != nil {
				return err
			}
		}
		return nil
	}
}

// expectGroup applies a group and checks the verdicts.
func (i *inboxRig[TX]) expectGroup(claims []inbox.Claim, want ...inbox.Verdict) {
	i.Helper()
	var got []inbox.Verdict
	i.ok(i.again(func() (err error) {
		got, err = i.Store.ApplyGroup(i.ctx(), claims, i.effects(claims))
		return err
	}))
	if !slices.Equal(got, want) {
		i.Fatalf("verdicts are %v, want %v", got, want)
	}
}

// claims returns the claims of new messages at a level.
func (i *inboxRig[TX]) claims(n int, level inbox.Isolation) []inbox.Claim {
	claims := make([]inbox.Claim, n)
	for k := range claims {
		claims[k] = i.claim(message(""))
		claims[k].Isolation = level
	}
	return claims
}

func verdicts(n int, v inbox.Verdict) []inbox.Verdict {
	return slices.Repeat([]inbox.Verdict{v}, n)
}

func groupApplied[TX any](i *inboxRig[TX]) {
	var want []string
	for _, level := range levels {
		claims := i.claims(20, level)
		for k := range claims {
			want = append(want, claims[k].ID.String())
		}
		i.expectGroup(claims, verdicts(20, inbox.Applied)...)
		i.expectGroup(claims, verdicts(20, inbox.Duplicate)...)
		i.expectVerdict(claims[7], inbox.Duplicate)
	}
	i.expectEffects(want...)
}

func groupVerdicts[TX any](i *inboxRig[TX]) {
	i.forgetTo()
	for _, level := range levels {
		known, head := lasting(""), lasting("blocked "+levelName(level))
		i.expectVerdict(i.claim(known), inbox.Applied)
		i.retrying(head)
		members := []*inbox.Message{lasting(""), known, otherContent(known), old(""), lasting(head.Key), lasting("free " + levelName(level))}
		claims := make([]inbox.Claim, 0, len(members))
		for _, m := range members {
			c := i.claim(m)
			if m.Key != "" {
				c = i.ordered(m)
			}
			c.Isolation = level
			claims = append(claims, c)
		}
		// A group has each ID once.
		i.expectGroup(slices.Delete(slices.Clone(claims), 2, 3),
			inbox.Applied, inbox.Duplicate, inbox.TooOld, inbox.Followed, inbox.Applied)
		i.expectGroup(claims[2:3], inbox.Altered)
	}
}

func groupFailed[TX any](i *inboxRig[TX]) {
	for _, level := range levels {
		claims := i.claims(3, level)
		got, err := i.Store.ApplyGroup(i.ctx(), claims, func(ctx context.Context, tx TX, run []int) error {
			i.ok(i.effects(claims)(ctx, tx, run))
			return errHandler
		})
		if got != nil || err != errHandler { //nolint:errorlint // as it is
			i.Errorf("ApplyGroup gives %v, %v", got, err)
		}
		i.expectEffects()
	}
	claims := i.claims(3, inbox.ReadCommitted)
	_, err := i.Store.ApplyGroup(i.ctx(), claims, func(ctx context.Context, tx TX, run []int) error {
		i.ok(i.effects(claims)(ctx, tx, run))
		return i.Break(ctx, tx)
	})
	i.expectClass(err, inbox.HandlerError)
	i.expectEffects()
	for k := range claims {
		i.expectVerdict(claims[k], inbox.Applied)
	}
}

func groupAbrupt[TX any](i *inboxRig[TX]) {
	claims := i.claims(3, inbox.ReadCommitted)
	func() {
		defer func() {
			if v := recover(); v != "panic of a handler" {
				i.Errorf("recovered %v", v)
			}
		}()
		_, _ = i.Store.ApplyGroup(i.ctx(), claims, func(ctx context.Context, tx TX, run []int) error {
			i.ok(i.effects(claims)(ctx, tx, run))
			panic("panic of a handler")
		})
	}()
	i.expectEffects()
	i.expectGroup(claims, verdicts(3, inbox.Applied)...)
}

func groupContext[TX any](i *inboxRig[TX]) {
	claims := i.claims(2, inbox.ReadCommitted)
	ctx, cancel := context.WithCancel(i.ctx())
	defer cancel()
	_, err := i.Store.ApplyGroup(ctx, claims, func(ctx context.Context, tx TX, run []int) error {
		err := i.effects(claims)(ctx, tx, run)
		cancel()
		return err
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, inbox.ErrCommitUnknown) {
		i.Errorf("ApplyGroup gives %v", err)
	}
	i.expectEffects()
	i.expectGroup(claims, verdicts(2, inbox.Applied)...)
}

func groupKnown[TX any](i *inboxRig[TX]) {
	claims := i.claims(2, inbox.ReadCommitted)
	i.expectGroup(claims, verdicts(2, inbox.Applied)...)
	got, err := i.Store.ApplyGroup(i.ctx(), claims, func(context.Context, TX, []int) error {
		return errors.New("the handler was run")
	})
	i.ok(err)
	if !slices.Equal(got, verdicts(2, inbox.Duplicate)) {
		i.Errorf("verdicts are %v", got)
	}
}

func groupFollows[TX any](i *inboxRig[TX]) {
	for _, level := range levels {
		key := "key " + levelName(level)
		head := message(key)
		i.retrying(head)
		second, third, free := message(key), message(key), message("other "+key)
		claims := []inbox.Claim{i.ordered(second), i.ordered(free), i.ordered(third)}
		for k := range claims {
			claims[k].Isolation = level
		}
		i.expectGroup(claims, inbox.Followed, inbox.Applied, inbox.Followed)
		i.expectGroup(claims, verdicts(3, inbox.Duplicate)...)
		if i.parked(second).Seq > i.parked(third).Seq || i.parked(head).Seq > i.parked(second).Seq {
			i.Errorf("level %v: followers are not in the order of the claims", level)
		}
		before, err := i.Effects(i.ctx())
		i.ok(err)
		i.drain()
		i.expectEffects(append(before, head.ID.String(), second.ID.String(), third.ID.String())...)
	}
}

func groupFailsToFollow[TX any](i *inboxRig[TX]) {
	i.retrying(message("key"))
	follower, other := message("key"), message("")
	claims := []inbox.Claim{i.ordered(follower), i.claim(other)}
	_, err := i.Store.ApplyGroup(i.ctx(), claims, func(context.Context, TX, []int) error { return errHandler })
	if !errors.Is(err, errHandler) {
		i.Fatalf("ApplyGroup gives %v", err)
	}
	i.expectParked(inbox.Retrying)
	i.expectGroup(claims, inbox.Followed, inbox.Applied)
	i.expectParked(inbox.Retrying, inbox.Following)
}

func groupTooOld[TX any](i *inboxRig[TX]) {
	i.forgetTo()
	m := old("")
	claims := []inbox.Claim{i.claim(m), i.claim(lasting(""))}
	i.expectGroup(claims, inbox.TooOld, inbox.Applied)
	i.expectGroup(claims, inbox.TooOld, inbox.Duplicate) // too old again, not a duplicate: the message was not applied
	i.expectGroup(claims[:1], inbox.TooOld)
	i.park(inbox.Parking{Message: m, State: inbox.TooOldState}, inbox.Applied)
}

func groupWaits[TX any](i *inboxRig[TX]) {
	for _, fail := range []error{nil, errHandler} {
		claims := i.claims(3, inbox.ReadCommitted)
		first := i.holdApply(claims[1])
		waiting := i.async(func() error {
			want := verdicts(3, inbox.Applied)
			if fail == nil {
				want[1] = inbox.Duplicate
			}
			got, err := i.Store.ApplyGroup(i.ctx(), claims, i.effects(claims))
			if err == nil && !slices.Equal(got, want) {
				err = errors.New("verdicts are wrong")
			}
			return err
		})
		i.stays("group", waiting)
		if err := i.release(first, fail); !errors.Is(err, fail) {
			i.Fatal(err)
		}
		i.ok(i.result(waiting))
	}
	names, err := i.Effects(i.ctx())
	i.ok(err)
	if len(names) != 6 {
		i.Errorf("%d effects of 6 messages", len(names))
	}
}

func groupLockTimeout[TX any](i *inboxRig[TX]) {
	claims := i.claims(3, inbox.ReadCommitted)
	first := i.holdApply(claims[1])
	for k := range claims {
		claims[k].LockTimeout = 50 * time.Millisecond
	}
	_, err := i.Store.ApplyGroup(i.ctx(), claims, i.effects(claims))
	i.expectClass(err, inbox.Conflict)
	i.ok(i.release(first, nil))
	i.expectGroup(claims, inbox.Applied, inbox.Duplicate, inbox.Applied)
}

// groupRace lets racers apply all messages in groups of their own choice, and some alone.
// Every third handler fails.
func (i *inboxRig[TX]) groupRace(level inbox.Isolation) {
	claims := i.claims(60, level)
	i.crowd(8, func(int) error {
		order := rand.Perm(len(claims))
		for len(order) > 0 {
			n := min(1+rand.N(12), len(order))
			if n == 1 {
				if _, err := i.insist(claims[order[0]]); err != nil {
					return err
				}
			} else if err := i.insistGroup(claims, order[:n]); err != nil {
				return err
			}
			order = order[n:]
		}
		return nil
	})
	i.expectEach(claims)
}

func (i *inboxRig[TX]) insistGroup(claims []inbox.Claim, members []int) error {
	group := make([]inbox.Claim, len(members))
	for k, n := range members {
		group[k] = claims[n]
	}
	for {
		_, err := i.Store.ApplyGroup(i.ctx(), group, func(ctx context.Context, tx TX, run []int) error {
			if err := i.effects(group)(ctx, tx, run); err != nil {
				return err
			}
			if rand.N(3) == 0 {
				return errHandler
			}
			return nil
		})
		if err == nil || err != errHandler && i.Store.Classify(err) != inbox.Conflict { //nolint:errorlint // as it is
			return err
		}
	}
}

func groupEmpty[TX any](i *inboxRig[TX]) {
	got, err := i.Store.ApplyGroup(i.ctx(), nil, func(context.Context, TX, []int) error { return errHandler })
	if len(got) != 0 || err != nil {
		i.Errorf("ApplyGroup gives %v, %v", got, err)
	}
}

func levelName(level inbox.Isolation) string {
	return [...]string{"read committed", "repeatable read", "serializable"}[level]
}
