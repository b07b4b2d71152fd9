package consumer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"
)

// errBehind is for a message whose predecessor within its group was returned to be delivered
// again: the order of their key would not survive if it were handled.
var errBehind = errors.New("an earlier message of its key could not be handled")

// member is a message that may share its transaction with others. What it is told belongs to
// the goroutine of its Consume; everything else is written before.
type member struct {
	ctx          context.Context // of the message
	d            *delivery
	arrived      time.Time
	instructions chan instruction // has room for all that comes

	// Of its group:
	prev      *member // the one before it of its key
	dismissed bool    // it goes on alone
	started   bool    // its start is recorded, to be taken back unless it is applied

	done chan struct{} // closed when its Consume is about to end
	err  error         // with this error
}

func newMember(ctx context.Context, d *delivery) *member {
	return &member{ctx: ctx, d: d, arrived: time.Now(), instructions: make(chan instruction, 2), done: make(chan struct{})}
}

// instruction is what a member is to do next. Exactly one of the fields is set.
type instruction struct {
	lead  []*member // run this group, whose first it is
	made  *attempt  // go on from this attempt
	alone bool      // begin alone
}

// groups lets messages that are handled at the same time share transactions. It has
// no goroutine of its own: a group is run by the Consume of its first member.
//
// A group begins at once while no other one runs, with what is there, and otherwise when it is
// full, or its first member has waited for half a second; so what arrives during a transaction is
// the next group, and the more there is to do, the larger the groups are.
type groups[TX any] struct {
	h *Handler[TX]

	mu          sync.Mutex
	pending     []*member
	running     int
	limit       int         // how many may share a transaction now
	pausedUntil time.Time   // until when nobody does
	timer       *time.Timer // for HandlerConfig.GroupWait; nil unless it runs
}

// handle has m handled in a group, or alone.
func (g *groups[TX]) handle(m *member) error {
	h := g.h
	if err := h.ensureRegistered(m.ctx, &m.d.progress); err != nil {
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
			t = <-m.instructions // it is not cut short
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

// alone handles a member that was dismissed from its group, after those before it of its key.
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

// leave takes m out, unless it is in a group already.
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

// begin begins the groups that may. The caller holds mu.
func (g *groups[TX]) begin() {
	for len(g.pending) > 0 {
		full := len(g.pending) >= g.limit
		wait := g.h.cfg.GroupWait - time.Since(g.pending[0].arrived)
		switch {
		case full && g.running < g.h.cfg.GroupConcurrency:
		case g.running > 0: // whose end begins the next one, unless it hangs
			patience := groupPatience - time.Since(g.pending[0].arrived)
			if g.running >= g.h.cfg.GroupConcurrency {
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

// wakeIn has begin called in a while. The caller holds mu.
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

// take takes a group out of those that wait. A copy of a member waits for the next one.
// The caller holds mu.
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

// run runs a group, and lets the next one begin.
func (g *groups[TX]) run(group []*member) {
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.running--
		g.begin()
	}()
	g.attempt(group, false)
}

// pause has messages handled alone for a while.
func (g *groups[TX]) pause() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pausedUntil = time.Now().Add(groupPause)
}

// resize takes note of how long a group took. One that overran its deadline was all in vain, so the
// next ones are smaller, until there is time to spare again.
func (g *groups[TX]) resize(members int, took time.Duration, late bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case late && members <= 2:
		g.pausedUntil = time.Now().Add(groupPause)
	case late:
		g.limit = max(2, min(g.limit, members/2))
	case members >= g.limit && took < g.h.cfg.Timeout/groupHeadroom:
		g.limit = min(g.limit*2, g.h.cfg.GroupSize)
	}
}
