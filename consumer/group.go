package consumer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"
)

// errBehind returns a message to the transport after an earlier message of its key and group was
// returned. Handled now, the two messages would be out of order.
var errBehind = errors.New("an earlier message of its key could not be handled")

// member is a message that may share a transaction with other messages. The goroutine of its
// Consume receives the instructions. The goroutine that runs the group writes other fields only
// before it sends an instruction.
type member struct {
	ctx          context.Context // the context of the message
	d            *delivery
	arrived      time.Time
	instructions chan instruction // has room for all instructions of a member

	prev      *member // the previous member of the same key in the group
	dismissed bool    // the member has left the group and is handled alone
	started   bool    // a start is recorded, and to be removed unless the message is applied

	done chan struct{} // closed when Consume is about to return
	err  error         // the result of Consume
}

func newMember(ctx context.Context, d *delivery) *member {
	return &member{ctx: ctx, d: d, arrived: time.Now(), instructions: make(chan instruction, 2), done: make(chan struct{})}
}

// instruction is the next step of a member. Exactly one field is set.
type instruction struct {
	lead  []*member // run this group; the member is its first
	made  *attempt  // go on after this attempt
	alone bool      // go on without a group
}

// groups lets messages that are handled at the same time share transactions. It has no goroutine:
// the Consume of a group's first member runs the group.
//
// While no group runs, the next group begins with all pending messages, at once or after Group.Wait.
// Beside a running group the next group begins when it is full, or when its first member has waited
// for half a second. On the defaults sharedBeside members are enough, and messages that have waited for
// sharedPatience are handled alone. So messages that arrive during a transaction form the next group, and
// groups grow with the load.
type groups[TX any] struct {
	h       *Handler[TX]
	most    int           // members of a group
	atOnce  int           // groups
	timeout time.Duration // of a group
	sharing *sharing      // nil if the user has decided for groups

	mu          sync.Mutex
	pending     []*member
	running     int
	limit       int         // the current maximum of members of a group
	pausedUntil time.Time   // until then all messages are handled alone
	apartUntil  time.Time   // until then one group runs at a time
	aparts      int         // times that groups were kept apart
	ended       time.Time   // when a group last ended
	timer       *time.Timer // calls begin later; nil unless it runs
}

// newGroups returns the groups of h, of the configured size. If the size is not configured, groups form
// while they are faster.
func newGroups[TX any](h *Handler[TX], configured bool) *groups[TX] {
	g := &groups[TX]{h: h, most: h.cfg.Group.Size, atOnce: h.cfg.Group.Concurrency, timeout: h.cfg.Timeout}
	g.limit = g.most
	if !configured {
		g.most, g.atOnce, g.limit, g.sharing = sharedSize, sharedAtOnce, firstSharedSize, &sharing{least: companions}
		g.timeout = min(g.timeout, sharedTimeout)
	}
	return g
}

// wants tells whether the message may share a transaction now.
func (g *groups[TX]) wants(d *delivery) bool {
	switch {
	case g == nil:
		return false
	case g.sharing == nil:
		return true
	}
	return !d.suspect && g.h.extension == nil && g.sharing.chosen(g.h.counts.inFlight.Load())
}

// handled takes note of a message that was handled, in a group or alone.
func (g *groups[TX]) handled() {
	if g != nil && g.sharing != nil {
		g.sharing.note(g.h.counts.inFlight.Load(), time.Now())
	}
}

// handle handles m in a group or alone.
func (g *groups[TX]) handle(m *member) error {
	h := g.h
	if err := h.registry.ensure(m.ctx, &m.d.progress); err != nil {
		return err
	}
	if err := h.permits.permit(m.ctx, &m.d.progress); err != nil {
		return err
	}
	g.join(m)
	for {
		t := instruction{}
		select {
		case t = <-m.instructions:
		case <-m.ctx.Done():
			if g.leave(m) {
				return context.Cause(m.ctx)
			}
			t = <-m.instructions // a group that has begun is not cut short
		}
		switch {
		case t.lead != nil:
			g.run(t.lead)
		case t.made != nil:
			return h.handleFrom(m.ctx, m.d, *t.made)
		default:
			return g.alone(m)
		}
	}
}

// alone handles a member that has left its group, after the earlier members of its key.
func (g *groups[TX]) alone(m *member) error {
	if m.prev != nil {
		select {
		case <-m.prev.done:
		case <-m.ctx.Done():
			return context.Cause(m.ctx)
		}
		if m.prev.err != nil {
			return errBehind
		}
	}
	return g.h.handleAlone(m.ctx, m.d)
}

func (g *groups[TX]) join(m *member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Now().Before(g.pausedUntil) {
		m.instructions <- instruction{alone: true}
		return
	}
	g.pending = append(g.pending, m)
	g.begin()
}

// leave removes m from the pending messages. It returns false if a group has taken m.
func (g *groups[TX]) leave(m *member) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.pending {
		if g.pending[i] == m {
			g.pending = append(g.pending[:i], g.pending[i+1:]...)
			return true
		}
	}
	return false
}

// begin begins all groups that may begin now. The caller holds mu.
func (g *groups[TX]) begin() {
	for len(g.pending) > 0 {
		full, atOnce := len(g.pending) >= g.limit, g.atOnce
		if g.sharing != nil && g.running > 0 {
			full = full || len(g.pending) >= sharedBeside
			if time.Now().Before(g.apartUntil) {
				atOnce = 1
			}
		}
		wait := g.h.cfg.Group.Wait - time.Since(g.pending[0].arrived)
		switch {
		case full && g.running < atOnce:
		case g.running > 0 && g.sharing != nil:
			if patience := sharedPatience - time.Since(g.pending[0].arrived); patience > 0 {
				g.wakeIn(patience)
				return
			}
			g.sharing.slow(time.Now())
			dismiss(g.pending)
			g.pending = nil
			return
		case g.running > 0: // the end of a running group begins the next group, unless the running group hangs
			patience := groupPatience - time.Since(g.pending[0].arrived)
			if g.running >= g.atOnce {
				return
			}
			if patience > 0 {
				g.wakeIn(patience)
				return
			}
		case wait > 0 && !full:
			g.wakeIn(wait)
			return
		}
		g.running++
		group := g.take()
		group[0].instructions <- instruction{lead: group}
	}
}

// wakeIn calls begin after wait. The caller holds mu.
func (g *groups[TX]) wakeIn(wait time.Duration) {
	if g.timer != nil {
		return
	}
	g.timer = time.AfterFunc(wait, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.timer = nil
		g.begin()
	})
}

// take removes a group from the pending messages. A copy of a member waits for the next group. The
// caller holds mu.
func (g *groups[TX]) take() []*member {
	group := make([]*member, 0, min(g.limit, len(g.pending)))
	ids := make(map[uuid.UUID]struct{}, cap(group))
	tails := make(map[string]*member)
	rest := g.pending[:0]
	for _, m := range g.pending {
		_, known := ids[m.d.in.event.ID]
		if known || len(group) == g.limit {
			rest = append(rest, m)
			continue
		}
		ids[m.d.in.event.ID] = struct{}{}
		if key := m.d.in.order; key != "" {
			m.prev = tails[key]
			tails[key] = m
		}
		group = append(group, m)
	}
	clear(g.pending[len(rest):])
	g.pending = rest
	return group
}

// run runs a group, and then begins the next groups.
func (g *groups[TX]) run(group []*member) {
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.ended = time.Now()
		g.running--
		g.begin()
	}()
	if g.h.permits.isPaused(group[0].ctx) { // the members have waited for the end of other groups
		dismiss(group)
		return
	}
	g.attempt(group, false)
}

// pause stops groups for a while: all messages are handled alone.
func (g *groups[TX]) pause() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pausedUntil = time.Now().Add(groupPause)
}

// keepApart lets one group run at a time for a while, if the group of ctx, which began then, ran beside
// another.
func (g *groups[TX]) keepApart(ctx context.Context, began time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.sharing == nil || now.Before(g.apartUntil) || g.running <= 1 && !began.Before(g.ended) {
		return
	}
	while := min(apartTime<<g.aparts, apartMost)
	g.apartUntil = now.Add(while)
	g.aparts = min(g.aparts+1, 10)
	g.h.log.InfoContext(ctx, "groups may have waited for each other's locks: one runs at a time for a while", "for", while)
}

// resize adapts the size of groups to the duration of a group. A group that overran its deadline
// was in vain: the size is halved, and a group of two pauses all groups. A full group that took
// little time doubles the size.
func (g *groups[TX]) resize(members int, took time.Duration, late bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.sharing != nil && took > sharedPatience:
		g.sharing.slow(time.Now())
		g.limit = firstSharedSize
	case g.sharing != nil && took > sharedTime:
		g.limit = max(2, min(g.limit, members/2))
	case g.sharing != nil && (members < g.limit || took > sharedTime/2):
	case late && members <= 2:
		g.pausedUntil = time.Now().Add(groupPause)
	case late:
		g.limit = max(2, min(g.limit, members/2))
	case members >= g.limit && took < g.h.cfg.Timeout/groupHeadroom:
		g.limit = min(g.limit*2, g.most)
	}
}
