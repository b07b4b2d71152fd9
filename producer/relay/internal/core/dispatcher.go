package core

import (
	"cmp"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/boxpair/boxpair/transport"
)

const (
	sendTurn    = 32 // events of one route before the turn of the next
	unmarkedMax = 3  // as a multiple of the window: with more, nothing is sent until marks catch up
)

// dispatcher sends events and books the outcomes.
type dispatcher struct {
	*Machine

	ring       []*route // routes with events to send, not stalled
	turn       int
	inflight   int
	unanswered unanswered
	probes     probing
}

// pump sends events that may be sent, as far as the window allows, the routes in turns.
func (dp *dispatcher) pump() {
	if dp.stopping || !dp.pauses.recent() {
		dp.pauses.held()
		return
	}
	dp.probe()
	room := min(dp.cfg.Window-dp.inflight, unmarkedMax*dp.cfg.Window-len(dp.marks.pending)-dp.marks.underway)
	for room > 0 && len(dp.ring) > 0 {
		if dp.turn >= len(dp.ring) {
			dp.turn = 0
		}
		r := dp.ring[dp.turn]
		for n := 0; n < sendTurn && room > 0 && dp.mayTake(r); n++ {
			if e := r.ready.pop(); dp.send(e) {
				batched := dp.fillBatch(e, min(room, r.tokens())-1)
				room -= 1 + batched
				n += batched
				r.spend(1 + batched)
			}
		}
		if r.stalled() || r.ready.n == 0 || r.tokens() <= 0 {
			if !r.stalled() && r.ready.n > 0 {
				r.limit.await(r)
			}
			r.inRing = false
			last := len(dp.ring) - 1
			dp.ring[dp.turn], dp.ring[last] = dp.ring[last], nil
			dp.ring = dp.ring[:last]
			continue
		}
		dp.turn++
		if dp.full() {
			return
		}
	}
}

// routeRoom is the part of the window that one route may take: a silent route leaves room for
// others.
func (dp *dispatcher) routeRoom() int {
	if len(dp.routes.byName) > 1 {
		return max(dp.cfg.Window/2, 1)
	}
	return dp.cfg.Window
}

func (dp *dispatcher) mayTake(r *route) bool {
	return !r.stalled() && r.ready.n > 0 && r.inflight < dp.routeRoom() && r.tokens() > 0
}

// full tells whether every route with events to send has its share in flight.
func (dp *dispatcher) full() bool {
	for _, r := range dp.ring {
		if dp.mayTake(r) {
			return false
		}
	}
	return true
}

// probe sends one event on every stalled route whose probe is due, the one due longest first, as far
// as the budget of probes allows.
func (dp *dispatcher) probe() {
	var due []*route
	for _, r := range dp.routes.stalled {
		switch {
		case r.pause != nil, r.inflight > 0:
		case !r.limit.mayProbe(dp.now):
			dp.at(r.limit.probeAt)
		case r.ready.n+r.refused.n == 0:
			r.needsCandidates = true
		case dp.now < r.probeAt:
			dp.at(r.probeAt)
		default:
			due = append(due, r)
		}
	}
	if len(due) == 0 {
		return
	}
	if !dp.probes.allow(dp.now) {
		dp.at(dp.probes.next())
		return
	}
	if len(due) > 1 {
		slices.SortFunc(due, func(a, b *route) int {
			return cmp.Or(cmp.Compare(a.probeAt, b.probeAt), strings.Compare(a.name, b.name))
		})
	}
	for _, r := range due {
		if dp.inflight >= dp.cfg.Window {
			return // outcomes make room
		}
		if !dp.probes.allow(dp.now) {
			dp.at(dp.probes.next())
			return
		}
		if !r.limit.mayProbe(dp.now) {
			continue
		}
		e := r.nextProbe()
		e.unqueue()
		r.probe++
		e.probe = r.probe
		r.probeAt = dp.now + r.delay
		if dp.send(e) {
			dp.probes.left--
			r.limit.probed(dp.now)
		}
	}
}

// send hands e to the transport, unless its shard's lease has run out by this clock.
func (dp *dispatcher) send(e *Entry) bool {
	sh := e.shard
	if dp.now >= sh.until {
		e.state = entryHeld
		sh.held.push(e)
		return false
	}
	if sh.redeliver > 0 {
		sh.redeliver--
		e.Redelivered = true
	}
	e.state = entrySending
	e.sentAt = dp.now
	e.Gen++
	if e.line != nil {
		e.line.inflight = e
	}
	dp.inflight++
	if e.route.inflight == 0 {
		e.route.answeredAt = dp.now
	}
	e.route.inflight++
	sh.inflight++
	dp.sends = append(dp.sends, e)
	dp.unanswered.add(e, dp.cfg.Window)
	return true
}

// outcome takes the outcome of a send. Only here is an event taken as delivered: if it is Confirmed
// and was sent (G2).
func (dp *dispatcher) outcome(res SendResult) {
	e := res.Entry
	if e.state != entrySending || e.Gen != res.Gen {
		dp.note(slog.LevelError, "publisher reported the outcome of a message twice")
		return
	}
	sh, r, tail := e.shard, e.route, e.BatchTail
	e.BatchTail = nil
	n := 1 + len(tail)
	dp.inflight -= n
	sh.inflight -= n
	e.route.inflight -= n
	e.route.answeredAt = dp.now
	e.state = entryWaiting
	if e.line != nil {
		e.line.inflight = nil
		if e.line.following > 0 {
			dp.parking.mark(sh) // its followers may have waited for it
		}
	}
	e.outcome, e.problem = res.Outcome, storedError(res.Err)
	if sh.gone {
		if res.Outcome == transport.Confirmed && !res.Unsent {
			dp.countSent(e, tail)
			dp.routes.works(e.route)
		}
		dp.keys.uncount(e)
		for _, member := range tail {
			dp.keys.uncount(member)
		}
		return // the entries may be in a call still, and are not used again
	}
	if res.Outcome == transport.Confirmed && !res.Unsent {
		dp.confirmed(e, tail)
		return
	}
	dp.unpack(tail)
	switch {
	case res.Unsent:
		dp.requeue(e)
	case len(tail) > 0 && dp.unbatch(e, tail):
	default:
		dp.failed(e)
	}
	if r.stalled() && r.inflight == 0 && r.pause == nil {
		dp.routes.probed(r)
	}
}

// confirmed books the success of e and of its batch tail. The key's next event is sent without
// waiting for the mark.
func (dp *dispatcher) confirmed(e *Entry, tail []*Entry) {
	r, l := e.route, e.line
	dp.countSent(e, tail)
	if e.parked {
		dp.keys.uncount(e)
		e.state = entryConfirmed
		dp.parking.confirmed(e)
		dp.routes.works(r)
		return
	}
	dp.marks.toMark(e)
	for _, member := range tail {
		member.outcome = e.outcome
		dp.marks.toMark(member)
	}
	dp.routes.works(r)
	if l != nil {
		if r.limit != nil && l.hole == 0 {
			dp.rates.refill(r.limit, l)
		} else {
			dp.reader.refill(l)
		}
		dp.keys.promote(l)
	}
}

// countSent counts the events of a confirmed send.
func (dp *dispatcher) countSent(e *Entry, tail []*Entry) {
	dp.reports.count(e.Topic, 1)
	for _, member := range tail {
		dp.reports.count(member.Topic, 1)
	}
}

// failed books any other outcome.
func (dp *dispatcher) failed(e *Entry) {
	switch e.outcome {
	case transport.Invalid:
		dp.noteEvent(slog.LevelError, "event can never be sent", e, slog.String("error", e.problem))
		e.dead = true
		dp.fail(e)
	case transport.Returned, transport.Refused:
		if dp.superseded(e) {
			dp.requeue(e)
			return
		}
		dp.routes.refuse(e)
	default: // Unavailable, and outcomes of later versions
		dp.routeLog.trouble("outcome of a send is unknown", e)
		dp.routes.unavailable(e)
		dp.requeue(e)
	}
}

// superseded tells whether a failure of e means nothing here: e came from the queue and its key was
// blocked meanwhile, or its shard is being given back.
func (dp *dispatcher) superseded(e *Entry) bool {
	return e.shard.yielding || e.line != nil && e.line.blocked && !e.parked
}

// requeue takes e back after a send that decided nothing: e is sent again in its order, or follows
// its parked head, or leaves memory if its shard is given back.
func (dp *dispatcher) requeue(e *Entry) {
	switch l := e.line; {
	case e.shard.yielding:
		dp.keys.forget(e)
	case l == nil:
		dp.keys.place(e)
	case l.blocked && !e.parked:
		dp.keys.follow(e)
		dp.keys.promote(l)
	case !dp.reread(e):
		dp.keys.promote(l)
	}
}

// reread reads a parked event again that an operator may have changed while it was in flight: a
// discarded event must not be sent again, nor hold up its key.
func (dp *dispatcher) reread(e *Entry) bool {
	l := e.line
	if !e.parked || l == nil || !l.verify {
		return false
	}
	dp.keys.forgetParked(l, nil)
	dp.parking.readParked(l)
	return true
}

// fail counts an attempt of e, which was refused or can never be sent, and parks it.
func (dp *dispatcher) fail(e *Entry) {
	e.unqueue()
	dp.keys.uncount(e)
	e.Attempts++
	e.dead = e.dead || e.Attempts >= dp.cfg.MaxAttempts
	e.retryIn = time.Millisecond + time.Duration(dp.rand.Int64N(int64(dp.cfg.Backoff.Bound(e.Attempts))))
	if e.dead {
		e.retryIn = 0
		delete(e.route.keys, e.failedKey())
	}
	dp.report.Failed++
	dp.noteEvent(slog.LevelWarn, "attempt failed", e, slog.String("route", e.route.name),
		slog.String("outcome", e.outcome.String()), slog.String("error", e.problem),
		slog.Int("attempts", e.Attempts), slog.Bool("dead", e.dead), slog.Duration("retry_in", e.retryIn))
	dp.notifyOf(e)
	if e.parked {
		dp.parking.failAgain(e)
		return
	}
	dp.parking.park(e)
}
