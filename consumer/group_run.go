package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
)

// groupResult is the result of a group's transaction. Slices have an element for each member.
type groupResult struct {
	verdicts []inbox.Verdict
	wrote    []bool
	claimed  []bool // the transaction has claimed the message
	err      error
	ran      []bool // the handler was begun
	culprit  int    // the member whose handler failed, or -1
	overran  bool
	began    time.Time // the handlers; without any, the transaction
}

// attempt handles members in one transaction, and gives each member an instruction before it
// returns. again tells that a handler failed in an earlier group of the members.
func (g *groups[TX]) attempt(members []*member, again bool) {
	h := g.h
	switch len(members) {
	case 0:
		return
	case 1:
		g.single(members[0])
		return
	}
	began := time.Now()
	term := h.registry.term()
	members, o := g.applyTogether(members)
	if len(members) == 0 {
		return
	}
	if o.err == nil {
		if len(members) > 1 {
			h.counts.groups.Add(1)
		}
		g.resize(len(members), time.Since(o.began), false)
		for i, m := range members {
			m.d.term = term
			m.instructions <- instruction{made: &attempt{verdict: o.verdicts[i], ran: true, wrote: o.wrote[i]}}
		}
		return
	}
	h.counts.undone.Add(1)
	if o.overran {
		g.resize(len(members), time.Since(o.began), true)
	}
	g.rolledBack(members, &o, began, again)
}

// applyTogether applies and returns the members that may share a transaction. The starts of
// suspects are recorded before the transaction begins. The starts of suspects that were not applied
// are removed before the gate is released, and so before an exclusive run.
func (g *groups[TX]) applyTogether(members []*member) ([]*member, groupResult) {
	h := g.h
	inside, _ := h.gate.acquire(context.Background(), shared, h.cfg.Timeout)
	defer h.gate.release(inside)
	if inside == shared { // without the lock, an exclusive suspect may run beside the group and kill the process
		members = g.start(members)
	}
	if len(members) == 0 {
		return nil, groupResult{}
	}
	o := h.applyGroup(members)
	var back []uuid.UUID
	for i, m := range members {
		if m.started && (o.err != nil || o.verdicts[i] != inbox.Applied) {
			back = append(back, m.d.in.event.ID)
		}
		m.started = false
		m.d.suspect = m.d.suspect && o.err != nil && !o.ran[i] // unless its handler has returned
	}
	h.suspects.unstart(context.Background(), back...)
	return members, o
}

// start records the starts of all suspects in one statement, and returns the members that stay in
// the group. A suspect leaves the group if an earlier start is recorded or the start could not be
// recorded. Later members of the same keys leave with the suspects.
func (g *groups[TX]) start(members []*member) (rest []*member) {
	h := g.h
	var suspects []uuid.UUID
	for _, m := range members {
		if m.d.suspect {
			suspects = append(suspects, m.d.in.event.ID)
		}
	}
	if len(suspects) == 0 {
		return members
	}
	starts, err := h.suspects.start(context.Background(), atAnyTime, suspects...)
	if err != nil {
		h.invalidateAfter(err)
		h.log.WarnContext(members[0].ctx, "starts of a group could not be recorded: its redelivered messages are handled on their own",
			"messages", len(suspects), "error", err)
		starts = make([]int, len(suspects))
	}
	var leaving []*member
	var back []uuid.UUID
	for _, m := range members {
		recorded := false
		if m.d.suspect {
			recorded, starts = starts[0] > 0, starts[1:]
		}
		m.dismissed = m.d.suspect && !recorded || m.prev != nil && m.prev.dismissed
		if !m.dismissed {
			m.started = recorded
			rest = append(rest, m)
			continue
		}
		leaving = append(leaving, m)
		if recorded {
			back = append(back, m.d.in.event.ID)
		}
	}
	h.suspects.unstart(context.Background(), back...) // before the leaving members record new starts
	dismiss(leaving)
	return rest
}

// single makes the first attempt of the only member of a group. A failure counts as an attempt.
func (g *groups[TX]) single(m *member) {
	h := g.h
	m.d.term = h.registry.term()
	began := time.Now()
	a := h.begin(m.ctx, m.d)
	if a.err != nil && h.inbox.store.Classify(a.err) == inbox.Conflict {
		g.keepApart(m.ctx, began)
	}
	m.dismissed = a.err != nil // further attempts are made alone
	m.instructions <- instruction{made: &a}
}

// rolledBack splits a group after a rollback, or after a commit with an unknown outcome. No member
// counts an attempt: a handler may have failed because of another member. The message that causes
// the failure fails again alone, and then counts an attempt.
func (g *groups[TX]) rolledBack(members []*member, o *groupResult, began time.Time, again bool) {
	h := g.h
	class := h.inbox.store.Classify(o.err)
	level := slog.LevelWarn
	if g.sharing != nil { // nobody has asked for groups
		level = slog.LevelInfo
		g.sharing.refuse(time.Now())
	}
	h.log.Log(members[0].ctx, level, "group of messages was not committed: its members are handled on their own or in smaller groups",
		"messages", len(members), "error", o.err)
	if class == inbox.Conflict || o.overran {
		g.keepApart(members[0].ctx, began)
	}
	switch {
	case errors.Is(o.err, inbox.ErrNotShared): // the handler is the same for all messages
		g.pause()
		dismiss(members)
	case errors.Is(o.err, inbox.ErrEnded): // members with a committed claim must not be applied again
		for i, m := range members {
			m.d.txEnded = m.d.txEnded || o.claimed[i]
		}
		dismiss(members)
	case class == inbox.CommitUnknown: // the verdict of a new claim tells
		h.counts.unknown.Add(1)
		h.invalidateAfter(o.err)
		for _, m := range members {
			m.d.commitUnknown = true
		}
		dismiss(members)
	case class != inbox.HandlerError:
		h.invalidateAfter(o.err)
		dismiss(members)
	case o.overran, g.sharing != nil:
		dismiss(members)
	case o.culprit >= 0 && again: // one failing member per group would make the runs quadratic
		dismiss(members)
	case o.culprit >= 0:
		members[o.culprit].dismiss()
		g.attempt(undismissed(members), true)
	default:
		half := len(members) / 2
		g.attempt(members[:half], false)
		g.attempt(undismissed(members[half:]), false)
	}
}

// dismiss makes a member leave its group, to be handled alone after earlier members of its key.
func (m *member) dismiss() {
	m.dismissed = true
	m.instructions <- instruction{alone: true}
}

func dismiss(members []*member) {
	for _, m := range members {
		m.dismiss()
	}
}

// undismissed dismisses members behind a dismissed member of their key, and returns the members
// that stay in the group.
func undismissed(members []*member) []*member {
	rest := make([]*member, 0, len(members))
	for _, m := range members {
		switch {
		case m.dismissed:
		case m.prev != nil && m.prev.dismissed:
			m.dismiss()
		default:
			rest = append(rest, m)
		}
	}
	return rest
}

// applyGroup claims and handles members in one transaction with one deadline.
func (h *Handler[TX]) applyGroup(members []*member) groupResult {
	ctx, cancel := context.WithTimeout(context.Background(), h.groups.timeout)
	defer cancel()
	if h.batch == nil {
		ctx = inbox.WithSharedTransaction(ctx)
	}
	claims := make([]inbox.Claim, len(members))
	for i, m := range members {
		claims[i] = h.claim(m.d.in)
		claims[i].Started = m.started
	}
	o := groupResult{wrote: make([]bool, len(members)), claimed: make([]bool, len(members)), ran: make([]bool, len(members)), culprit: -1, began: time.Now()}
	ran := false
	o.err = runIsolated(func() (err error) {
		o.verdicts, err = h.inbox.store.ApplyGroup(ctx, claims, func(ctx context.Context, tx TX, run []int) error {
			ran, o.began = true, time.Now() // a store with one writer may have waited for other groups
			for _, i := range run {
				o.claimed[i] = true
			}
			if err := fault.Hit(ctx, fault.Claimed); err != nil {
				return err
			}
			return h.callGroup(ctx, tx, members, run, &o)
		})
		if err == nil && ran && fault.Hit(ctx, fault.ClaimCommitted) != nil {
			err = fmt.Errorf("commit: %w", inbox.ErrCommitUnknown)
		}
		return err
	})
	if o.err == nil && len(o.verdicts) != len(members) {
		o.err = errors.New("store gave neither verdicts nor an error")
	}
	o.overran = ran && o.err != nil && ctx.Err() != nil
	return o
}

// callGroup runs the handlers of the claimed members, and writes the queued events.
func (h *Handler[TX]) callGroup(ctx context.Context, tx TX, members []*member, run []int, o *groupResult) error {
	chosen := make([]*member, len(run))
	for k, i := range run {
		chosen[k] = members[i]
	}
	works := h.newWorks(ctx, tx, chosen)
	defer func() {
		for _, w := range works {
			w.end()
		}
	}()
	if h.batch != nil {
		for _, i := range run {
			o.ran[i] = true
		}
		if err := h.callBatch(ctx, tx, works); err != nil {
			return err
		}
	} else {
		for k, i := range run {
			o.culprit, o.ran[i] = i, true
			if err := h.call(works[k]); err != nil { //nolint:contextcheck // the context is the message's, within ctx
				return err
			}
		}
		o.culprit = -1
	}
	for k, i := range run {
		o.wrote[i] = works[k].wrote()
	}
	return flushTogether(ctx, works)
}

func flushTogether[TX any](ctx context.Context, works []*Work[TX]) error {
	writers := make([]*producer.Writer[TX], 0, len(works))
	for _, w := range works {
		if w.writer != nil {
			writers = append(writers, w.writer)
		}
	}
	return producer.FlushTogether(ctx, writers)
}

// withValues returns the context of a transaction, with the values of a message's context added.
func withValues(tx, msg context.Context) context.Context { return &valuesOf{Context: tx, msg: msg} }

type valuesOf struct {
	context.Context
	msg context.Context
}

// Value prefers the value of the transaction's context.
func (c *valuesOf) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.msg.Value(key)
}
