package relay

import (
	"cmp"
	"log/slog"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/boxpair/boxpair/transport"
)

const (
	sendTurn    = 32 // events of one route before the next one's turn
	unmarkedMax = 3  // times the window, beyond which nothing is sent until marks catch up
)

// pump sends what may be sent, as far as the window allows, the routes in turns.
func (c *relayCore) pump() {
	if c.stopping {
		return
	}
	c.probe()
	room := min(c.cfg.Window-c.inflight, unmarkedMax*c.cfg.Window-len(c.marking.pending)-c.marking.underway)
	for room > 0 && len(c.ring) > 0 {
		if c.turn >= len(c.ring) {
			c.turn = 0
		}
		r := c.ring[c.turn]
		for n := 0; n < sendTurn && room > 0 && c.mayTake(r); n++ {
			if e := r.ready.pop(); c.send(e) {
				riders := c.fillBatch(e, room-1)
				room -= 1 + riders
				n += riders
			}
		}
		if r.stalled() || r.ready.n == 0 {
			r.ringed = false
			last := len(c.ring) - 1
			c.ring[c.turn], c.ring[last] = c.ring[last], nil
			c.ring = c.ring[:last]
			continue
		}
		c.turn++
		if c.full() {
			return
		}
	}
}

// routeRoom is how much of the window one route may take, so that one which
// answers nothing leaves room for others.
func (c *relayCore) routeRoom() int {
	if len(c.routes) > 1 {
		return max(c.cfg.Window/2, 1)
	}
	return c.cfg.Window
}

func (c *relayCore) mayTake(r *route) bool {
	return !r.stalled() && r.ready.n > 0 && r.inflight < c.routeRoom()
}

// full tells whether every route with something to send has its share in flight.
func (c *relayCore) full() bool {
	for _, r := range c.ring {
		if c.mayTake(r) {
			return false
		}
	}
	return true
}

// probe sends one event on each stalled route whose time has come, the one that has waited for
// longest first, as far as there is a budget.
func (c *relayCore) probe() {
	var due []*route
	for _, r := range c.stalled {
		switch {
		case r.inflight > 0:
		case r.ready.n+r.refused.n == 0:
			r.hungry = true
		case c.now < r.probeAt:
			c.at(r.probeAt)
		default:
			due = append(due, r)
		}
	}
	if len(due) == 0 {
		return
	}
	if !c.probes.may(c.now) {
		c.at(c.probes.next())
		return
	}
	if len(due) > 1 {
		slices.SortFunc(due, func(a, b *route) int {
			return cmp.Or(cmp.Compare(a.probeAt, b.probeAt), strings.Compare(a.name, b.name))
		})
	}
	for _, r := range due {
		if c.inflight >= c.cfg.Window {
			return // outcomes make room
		}
		if !c.probes.may(c.now) {
			c.at(c.probes.next())
			return
		}
		all := r.candidates()
		e := all[0]
		r.hungry = len(all) == 1 || all[1].probes > 0
		e.unqueue()
		e.probes++
		r.probeAt = c.now + r.delay
		if c.send(e) {
			c.probes.left--
		}
	}
}

// send hands e to the transport, unless its shard's lease has run out on this
// side.
func (c *relayCore) send(e *entry) bool {
	sh := e.shard
	if c.now >= sh.until {
		e.state = entryHeld
		sh.held.push(e)
		return false
	}
	if sh.redeliver > 0 {
		sh.redeliver--
		e.redelivered = true
	}
	e.state = entrySending
	e.sentAt = c.now
	e.gen++
	if e.line != nil {
		e.line.inflight = e
	}
	c.inflight++
	if e.route.inflight == 0 {
		e.route.heard = c.now
	}
	e.route.inflight++
	sh.inflight++
	c.sends = append(c.sends, e)
	c.unanswered.add(e, c.cfg.Window)
	return true
}

// outcome takes the outcome of a send.
func (c *relayCore) outcome(now time.Duration, res sendResult) {
	c.now = now
	e := res.entry
	if e.state != entrySending || e.gen != res.gen {
		c.note(slog.LevelError, "publisher reported the outcome of a message twice")
		return
	}
	sh, riders := e.shard, e.batchTail
	e.batchTail = nil
	n := 1 + len(riders)
	c.inflight -= n
	sh.inflight -= n
	e.route.inflight -= n
	e.route.heard = c.now
	e.state = entryWaiting
	if e.line != nil {
		e.line.inflight = nil
		if e.line.following > 0 {
			c.markLane(sh) // they may have waited for it
		}
	}
	e.outcome, e.problem = res.Outcome, storedError(res.Err)
	if sh.gone {
		if res.Outcome == transport.Confirmed && !res.unsent {
			c.routeWorks(e.route)
		}
		c.uncount(e)
		for _, rider := range riders {
			c.uncount(rider)
		}
		return // they may be in a call still, and are not used again
	}
	if res.Outcome == transport.Confirmed && !res.unsent {
		c.confirmed(e, riders)
		return
	}
	c.unpack(riders)
	switch {
	case res.unsent:
		c.requeue(e)
	case len(riders) > 0 && c.unbatch(e, riders):
	default:
		c.failed(e)
	}
}

// confirmed books the success of e, and of what was in a batch with it. The mark may wait; the
// key's next event need not.
func (c *relayCore) confirmed(e *entry, riders []*entry) {
	r, l := e.route, e.line
	if e.parked {
		c.uncount(e)
		e.state = entryConfirmed
		c.parkedConfirmed(e)
		c.routeWorks(r)
		return
	}
	c.toMark(e)
	for _, rider := range riders {
		rider.outcome = e.outcome
		c.toMark(rider)
	}
	c.routeWorks(r)
	if l != nil {
		c.refill(l)
		c.promote(l)
	}
}

// toMark has the queue row of e removed.
func (c *relayCore) toMark(e *entry) {
	c.uncount(e)
	e.state = entryConfirmed
	e.shard.marking++
	if e.line != nil {
		e.line.remove(e)
		e.line.marking++
	}
	c.marking.add(c.now, e)
}

// failed books any other outcome.
func (c *relayCore) failed(e *entry) {
	switch e.outcome {
	case transport.Invalid:
		c.noteEvent(slog.LevelError, "event can never be sent", e, slog.String("error", e.problem))
		e.dead = true
		c.fail(e)
	case transport.Returned, transport.Refused:
		if c.superseded(e) {
			c.requeue(e)
			return
		}
		c.refuse(e)
	default: // Unavailable, and whatever a later version adds
		c.noteTrouble("outcome of a send is unknown", e)
		c.routeDown(e)
		c.requeue(e)
	}
}

// superseded tells whether e came from the queue and its key has been blocked
// meanwhile, or its shard is given back: then nothing is to be learned from it here.
func (c *relayCore) superseded(e *entry) bool {
	return e.shard.yielding || e.line != nil && e.line.blocked && !e.parked
}

// requeue puts e back where it came from, to be sent again in its order.
func (c *relayCore) requeue(e *entry) {
	switch l := e.line; {
	case e.shard.yielding:
		c.forget(e)
	case l == nil:
		c.place(e)
	case l.blocked && !e.parked:
		c.follow(e)
		c.promote(l)
	case !c.doubted(e):
		c.promote(l)
	}
}

// doubted reads a parked event again that somebody has changed while it was in flight: it may have
// been discarded, and is not to be sent again then, nor to hold up its key.
func (c *relayCore) doubted(e *entry) bool {
	l := e.line
	if !e.parked || l == nil || !l.verify {
		return false
	}
	c.forgetFIFO(l, nil)
	c.readParked(l)
	return true
}

// fail counts an attempt of e, which was refused or is to be buried, and parks it.
func (c *relayCore) fail(e *entry) {
	e.unqueue()
	c.uncount(e)
	e.Attempts++
	e.dead = e.dead || e.Attempts >= c.cfg.MaxAttempts
	e.retryIn = time.Millisecond + time.Duration(c.rand.Int64N(int64(c.cfg.Backoff.bound(e.Attempts))))
	if e.dead {
		e.retryIn = 0
		delete(e.route.keys, e.failedKey())
	}
	c.report.Failed++
	c.noteEvent(slog.LevelWarn, "attempt failed", e, slog.String("route", e.route.name),
		slog.String("outcome", e.outcome.String()), slog.String("error", e.problem),
		slog.Int("attempts", e.Attempts), slog.Bool("dead", e.dead), slog.Duration("retry_in", e.retryIn))
	if e.parked {
		c.failAgain(e)
		return
	}
	c.park(e)
}

const maxStoredError = 1 << 10

// storedError returns err's text as it may be stored: bounded, valid UTF-8, without NUL.
func storedError(err error) string {
	if err == nil {
		return ""
	}
	return bounded(err.Error(), maxStoredError)
}

// bounded returns text as valid UTF-8 without NUL, in at most limit bytes.
func bounded(text string, limit int) string {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
	if len(text) <= limit {
		return text
	}
	text = text[:limit]
	for !utf8.ValidString(text) {
		text = text[:len(text)-1]
	}
	return text
}
