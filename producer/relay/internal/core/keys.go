package core

import (
	"log/slog"

	"github.com/boxpair/boxpair/producer/relay/internal/keyset"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// keys keeps the events in memory and the order of each key.
type keys struct {
	*Machine

	buffered    int // events in memory that are not confirmed
	parked      int // parked events among buffered
	freeEntries *Entry
	freeLines   []*keyLine
}

// take takes over a row of the queue of sh, read by a fetch or a lap. A row is ignored if its event
// is in memory, or if a mark or a park has removed the row since the read began.
func (ks *keys) take(sh *shardState, row *outbox.Queued, lap bool) {
	known := sh.index[row.Seq]
	if ks.leases.contradicts(known, row) || ks.leases.contradicts(sh.parked[row.Seq], row) {
		return
	}
	if known != nil {
		if known.Round != row.Round {
			known.rewritten = true // the row is read again when the known row has gone
		}
		return
	}
	if round, ok := sh.recent[row.Seq]; ok && round == row.Round {
		return
	}
	if row.Missing {
		ks.takeMissing(sh, row)
		return
	}
	r := ks.routes.of(row.Topic)
	switch {
	case row.Key != "":
		ks.takeKeyed(sh, row, r, lap)
	case !ks.routes.admit(r, sh, row.Seq, lap):
		ks.leave(sh, row, r, nil)
	default:
		e := ks.newEntry(sh, row)
		e.route, e.turn = r, lap && ks.routes.keepsFew(r)
		sh.index[e.Seq] = e
		ks.count(e)
		ks.place(e)
	}
}

// takeKeyed is take for an event with a key. Events from the key's hole (keyLine.hole) on are left
// to refillCall.
func (ks *keys) takeKeyed(sh *shardState, row *outbox.Queued, r *route, lap bool) {
	l := sh.lines[row.Key]
	switch {
	case l != nil && l.hole != 0 && row.Seq >= l.hole:
		sh.skip(row.Seq)
		return
	case (l == nil || l.hole == 0) && sh.back.has(keyset.Hash(row.Key), lap):
		ks.laps.skip(sh, r, row.Key, row.Seq)
		return
	}
	l = ks.line(sh, row.Key)
	if l != nil && l.blocked {
		e := ks.newEntry(sh, row)
		e.route, e.line = r, l
		sh.index[e.Seq] = e
		ks.follow(e)
		return
	}
	if l != nil && l.n >= ks.cfg.MaxPerKey {
		l.hole = row.Seq
		sh.skip(row.Seq)
		return
	}
	if !ks.admits(l, sh, row, r, lap) {
		ks.leave(sh, row, r, l)
		return
	}
	if l == nil {
		l = ks.newLine(sh, row.Key)
	}
	e := ks.newEntry(sh, row)
	e.route, e.line, e.turn = r, l, lap && ks.routes.keepsFew(r)
	sh.index[e.Seq] = e
	ks.count(e)
	ks.enqueue(l, e)
}

// leastOfKey is how many events of a key, at least, are kept behind one of a limited downstream.
const leastOfKey = 4

// admits tells whether an event of the key of l, which may be nil, is kept in memory.
func (ks *keys) admits(l *keyLine, sh *shardState, row *outbox.Queued, r *route, lap bool) bool {
	if l != nil && l.n > 0 {
		first := l.first.route
		return !ks.routes.holdsBack(first) && (first.limit == nil || l.n < max(leastOfKey, ks.rates.share()/8)) // one key does not take all places
	}
	return ks.routes.admit(r, sh, row.Seq, lap)
}

// leave skips an event that finds no place in memory: for its route, or for the route of the first
// event of its key.
func (ks *keys) leave(sh *shardState, row *outbox.Queued, r *route, l *keyLine) {
	by := r
	if l != nil {
		l.hole = 0 // events behind the hole are skipped with this event
		if l.n > 0 {
			by = l.first.route
		}
	}
	if by.limit != nil && !by.stalled() {
		ks.rates.skipped(by.limit, sh, row.Seq)
	}
	ks.laps.skip(sh, r, row.Key, row.Seq)
}

// enqueue puts an event at its place in its line.
func (ks *keys) enqueue(l *keyLine, e *Entry) {
	l.insert(e)
	if l.first == e && e.next != nil && e.next.state != entryWaiting {
		e.next.unqueue() // a late commit goes first
		e.next.state = entryWaiting
	}
	ks.promote(l)
}

// takeMissing parks a queue row without an event as dead.
func (ks *keys) takeMissing(sh *shardState, row *outbox.Queued) {
	ks.note(slog.LevelError, "queue row has no event in the log",
		slog.Int("shard", sh.no), slog.Int64("seq", row.Seq), slog.Int64("round", row.Round))
	e := ks.newEntry(sh, row)
	e.outcome, e.problem, e.dead = transport.Invalid, "event is missing from the log", true
	e.Attempts = 1
	ks.notifyOf(e)
	sh.index[e.Seq] = e
	ks.parking.park(e)
}

// newLine returns a line for a key of sh without one.
func (ks *keys) newLine(sh *shardState, key string) *keyLine {
	var l *keyLine
	if n := len(ks.freeLines); n > 0 {
		l, ks.freeLines = ks.freeLines[n-1], ks.freeLines[:n-1]
	} else {
		l = new(keyLine)
	}
	*l = keyLine{key: key, shard: sh}
	sh.lines[key] = l
	return l
}

// dropIdle forgets the line of a key without state.
func (ks *keys) dropIdle(l *keyLine) {
	if !l.blocked && l.idle() {
		ks.freeLine(l)
	}
}

// compact replaces the line of a blocked key without events in memory by its head in blockedHeads:
// a million keys may be blocked.
func (ks *keys) compact(l *keyLine) {
	if l.blocked && l.idle() && !l.due && !l.verify && ks.freeLine(l) {
		if l.shard.blockedHeads == nil {
			l.shard.blockedHeads = make(map[string]int64)
		}
		l.shard.blockedHeads[l.key] = l.head
	}
}

// freeLine takes l out of its shard, and tells whether l was there.
func (ks *keys) freeLine(l *keyLine) bool {
	if l.shard.lines[l.key] != l {
		return false
	}
	delete(l.shard.lines, l.key)
	if len(ks.freeLines) < 1024 {
		ks.freeLines = append(ks.freeLines, l)
	}
	return true
}

// promote makes the first event of l ready, if the event may be sent. Here the order of a key is
// kept (G4): no event is promoted while an event of the key is in flight. A first event that was
// refused or is being parked stays first and holds up the key.
func (ks *keys) promote(l *keyLine) {
	if l.inflight != nil || !l.shard.open() && l.shard.phase == phaseReady {
		return
	}
	e := l.first
	if l.blocked {
		e = nil
		if len(l.parked) > 0 {
			e = l.parked[0]
		}
	}
	if e != nil && e.state == entryWaiting {
		ks.place(e)
	}
}

// place puts an event into the queue of its route, to be sent.
func (ks *keys) place(e *Entry) {
	e.state = entryReady
	e.route.ready.push(e)
	ks.routes.enqueue(e.route)
}

// forget takes an event that is not in flight out of memory. The database still has the event.
func (ks *keys) forget(e *Entry) {
	sh, l := e.shard, e.line
	e.unqueue()
	ks.uncount(e)
	if e.parked {
		delete(sh.parked, e.Seq)
	} else {
		delete(sh.index, e.Seq)
	}
	if l != nil {
		l.remove(e)
		ks.dropIdle(l)
	}
	ks.free(e)
}

// leftQueue records that a row has left the queue. A read under way may still bring the row.
func (ks *keys) leftQueue(e *Entry) {
	sh := e.shard
	delete(sh.index, e.Seq)
	if e.rewritten {
		sh.want(e.Seq)
	}
	if e.early {
		sh.early--
		sh.more = true
	}
	if ks.reader.readsQueue() {
		if sh.recent == nil {
			sh.recent = make(map[int64]int64)
		}
		sh.recent[e.Seq] = e.Round
	}
}

// newEntry returns an entry for a row of sh.
func (ks *keys) newEntry(sh *shardState, row *outbox.Queued) *Entry {
	e := ks.freeEntries
	if e == nil {
		e = new(Entry)
	} else {
		ks.freeEntries = e.next
		*e = Entry{Gen: e.Gen}
	}
	e.Queued, e.shard = *row, sh
	e.Shard = sh.no
	return e
}

// free ends the life of an entry without references.
func (ks *keys) free(e *Entry) {
	*e = Entry{Gen: e.Gen, entryLinks: entryLinks{next: ks.freeEntries}}
	ks.freeEntries = e
}

// count adds e to the events in memory without an outcome.
func (ks *keys) count(e *Entry) {
	if !e.counted {
		e.counted = true
		ks.buffered++
		e.route.events++
		e.route.countLimited(1)
		if e.parked {
			ks.parked++
		}
	}
}

func (ks *keys) uncount(e *Entry) {
	if e.counted {
		e.counted = false
		ks.buffered--
		if e.parked {
			ks.parked--
		}
		e.route.countLimited(-1)
		ks.routes.release(e.route)
	}
}

func (ks *keys) newParked(sh *shardState, row *outbox.Queued, r *route, l *keyLine) *Entry {
	e := ks.newEntry(sh, row)
	e.parked, e.route, e.line = true, r, l
	sh.parked[e.Seq] = e
	ks.count(e)
	return e
}

// forgetParked takes the parked events of a key out of memory, except for keep and the event in
// flight.
func (ks *keys) forgetParked(l *keyLine, keep *Entry) {
	for i := len(l.parked) - 1; i >= 0; i-- {
		if e := l.parked[i]; e != l.inflight && e != keep {
			ks.forget(e)
		}
	}
}

// forgetLast forgets the last event of l, which waits, and keeps l.
func (ks *keys) forgetLast(l *keyLine) {
	e := l.last
	e.unqueue()
	ks.uncount(e)
	delete(l.shard.index, e.Seq)
	l.remove(e)
	ks.free(e)
}

// line returns the line of a key, or nil. It makes a line for a blocked key of which only the head
// was kept.
func (ks *keys) line(sh *shardState, key string) *keyLine {
	l := sh.lines[key]
	if l != nil {
		return l
	}
	head, ok := sh.blockedHeads[key]
	if !ok {
		return nil
	}
	delete(sh.blockedHeads, key)
	l = ks.newLine(sh, key)
	l.blocked, l.head = true, head
	return l
}

// block stops the sending of a key from the queue once its head is parked. The other events follow
// the head, an event under way after its outcome.
func (ks *keys) block(l *keyLine) {
	if l.blocked {
		return
	}
	l.blocked = true
	for e := l.first; e != nil; {
		next := e.next
		if !e.state.underway() {
			ks.follow(e)
		}
		e = next
	}
	ks.reader.refill(l)
}

// unblock lets a key be sent from the queue again.
func (ks *keys) unblock(l *keyLine) {
	l.blocked, l.verify, l.due, l.head = false, false, false, 0
	ks.reader.refill(l)
	ks.promote(l)
	ks.dropIdle(l)
}

// follow queues the move of an event from the queue to behind its key's parked head.
func (ks *keys) follow(e *Entry) {
	l, sh := e.line, e.shard
	e.unqueue()
	ks.uncount(e)
	l.remove(e)
	if sh.yielding {
		delete(sh.index, e.Seq)
		ks.free(e)
		return
	}
	e.state = entryFollowing
	e.Payload, e.Headers = nil, nil
	if len(l.parked) > 0 && l.parked[0].Seq > e.Seq {
		ks.forgetParked(l, nil) // e will go before the parked events
	}
	sh.writer.queueFollower(e)
	l.following++
	ks.parking.mark(sh)
}
