package core

import (
	"log/slog"
	"slices"

	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// failMissing makes a parked event dead whose row in the log is missing. l is nil if the key is
// unknown.
func (pk *parking) failMissing(sh *shardState, row *outbox.Queued, l *keyLine) {
	pk.note(slog.LevelError, "parked event is missing from the log", slog.Int("shard", sh.no), slog.Int64("seq", row.Seq))
	e := pk.keys.newEntry(sh, row)
	e.line, e.parked, e.dead = l, true, true
	e.outcome, e.problem = transport.Invalid, "event is missing from the log"
	e.Attempts++
	sh.parked[e.Seq] = e
	pk.failAgain(e)
}

// confirmed books the delivery of a parked event. The next event of its key is sent without waiting
// for the next poll of due events.
func (pk *parking) confirmed(e *Entry) {
	sh, l := e.shard, e.line
	if len(sh.writer.sent) == 0 {
		sh.writer.since = pk.now
	}
	sh.writer.sent = append(sh.writer.sent, e)
	pk.mark(sh)
	if l == nil {
		return
	}
	l.sent++
	l.remove(e)
	if sh.yielding {
		return
	}
	if len(l.parked) > 0 {
		l.head = l.parked[0].Seq
		pk.keys.promote(l)
		return
	}
	l.due = true
	pk.readParked(l)
}

func (pk *parking) sent(cl *Call, lost []int) {
	for _, sh := range cl.shards {
		if slices.Contains(lost, sh.no) {
			pk.leases.lose(sh, cl.Op().String())
		}
	}
	for _, e := range cl.entries {
		if e.shard.gone {
			continue
		}
		pk.report.Delivered++
		pk.settled(e)
		if l := e.line; l != nil {
			l.sent--
			pk.keys.dropIdle(l)
			pk.keys.compact(l)
		}
		pk.keys.free(e)
	}
}

// settled forgets a parked event whose new state is recorded.
func (pk *parking) settled(e *Entry) {
	delete(e.shard.parked, e.Seq)
	if pk.due.changed != nil {
		pk.due.changed[parkedID{e.shard, e.Seq}] = struct{}{}
	}
}

// failAgain records a further failure of a parked event. The other parked events of its key leave
// memory; the database has them.
func (pk *parking) failAgain(e *Entry) {
	l := e.line
	e.state = entryParking
	if l != nil {
		l.retrying++
		l.remove(e)
		pk.keys.forgetParked(l, nil)
	}
	e.shard.writer.again = append(e.shard.writer.again, e)
	pk.mark(e.shard)
}

func (pk *parking) retried(cl *Call) {
	for _, e := range cl.entries {
		l := e.line
		pk.settled(e)
		pk.reportDead(e)
		if !e.dead {
			pk.due.soon(pk.now + e.retryIn)
		}
		if l != nil {
			l.retrying--
			switch {
			case e.dead && !pk.cfg.HoldDeadKeys:
				l.due = true
				pk.readParked(l)
			case l.verify:
				pk.readParked(l)
			default:
				pk.recheck(l)
			}
			pk.keys.compact(l)
		}
		if e.Missing && l == nil {
			pk.loading.reload(e.shard) // the key that lost its head is unknown here
		}
		pk.keys.free(e)
	}
}

// retryLost reads a parked event again after a Retry of unknown outcome. If the failure was not
// recorded, the event is still due and is sent once more. The Retry is not repeated: an operator
// may have redriven the event in between, and the failure would count against the redriven event,
// which was not sent since.
func (pk *parking) retryLost(e *Entry) {
	sh, l := e.shard, e.line
	pk.settled(e)
	if l == nil {
		pk.due.soon(sh.writer.retry)
	} else {
		l.retrying--
		pk.readParked(l)
		pk.keys.compact(l)
	}
	pk.keys.free(e)
}

// fetched takes over the parked events of a key, or unblocks a key without parked events.
func (pk *parking) fetched(l *keyLine, rows []outbox.Queued) {
	sh := l.shard
	l.fetching = false
	if sh.yielding {
		return
	}
	defer pk.keys.compact(l)
	due := l.due
	l.due, l.verify = false, false
	if len(l.parked) > 0 || l.retrying > 0 || l.sent > 0 {
		return // the answer to the statement or send under way asks again
	}
	if len(rows) == 0 {
		pk.emptied(l)
		return
	}
	pk.keys.block(l)
	first := &rows[0]
	l.head = first.Seq
	toMove := l.toMove()
	if toMove < first.Seq {
		l.due = due
		return // the earlier event asks again once moved
	}
	if first.State == outbox.Dead {
		return // a dead event holds the key until an operator settles it
	}
	if first.Missing {
		pk.failMissing(sh, first, l)
		return
	}
	switch {
	case first.State == outbox.Following: // without a head, unless a dead event holds the key
		sh.writer.heal = true
		pk.mark(sh)
	case due:
		for i := range rows {
			row := &rows[i]
			if row.Missing || row.State == outbox.Dead || row.Seq > toMove {
				break // the next FetchParked begins here
			}
			l.parked = append(l.parked, pk.keys.newParked(sh, row, pk.routes.of(row.Topic), l))
		}
		pk.keys.promote(l)
	default:
		pk.due.soon(pk.now)
	}
}

// emptied unblocks a key without parked events, unless events of the key are being moved or parked.
func (pk *parking) emptied(l *keyLine) {
	l.head = 0
	switch {
	case !l.blocked:
		pk.keys.dropIdle(l)
	case l.following > 0 || l.parking > 0 || l.hole != 0:
		pk.reader.refill(l) // moved events find no head, and ask again
	default:
		pk.keys.unblock(l)
	}
}

// invalidate drops the parked events of a key from memory, since an operator may have changed the
// events. Events in flight and statements under way end first.
func (pk *parking) invalidate(l *keyLine) {
	l.verify = true
	pk.keys.forgetParked(l, nil)
	if l.flowing() {
		return
	}
	pk.readParked(l)
}
