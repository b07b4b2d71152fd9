package core

import (
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
)

// witnesses records the witness of this relay with its leases, and ends the leases of relays whose
// witnesses have ended; see [outbox.Witnesser].
//
// The order of keys needs that nothing is sent once another relay may own the shard. So a relay that
// loses its witness stops sending from the shards with which the witness may be recorded, until the
// record is gone and the lease renewed. Others wait for witnessGrace, in which the relay learns of
// the loss.
//
// Relays do not look at witnesses all the time: only commits to shards of others are in a hurry.
type witnesses struct {
	*Machine

	own      int64         // witness of the session of this relay; 0: there is none
	stale    bool          // the witness of some shard is to be recorded
	attestAt time.Duration // no record before this time
	looks    int           // so many looks are wanted
	lookAt   time.Duration // no look before this time
	fails    int
	ended    map[int64]time.Duration // witnesses of others, since when they are known to have ended
	stoodAt  time.Duration           // when the process went on after it had stood still
}

const (
	// witnessGrace is how long after the end of a witness the leases are ended: a relay that goes on
	// has learned of the end by then.
	witnessGrace = 200 * time.Millisecond
	// lookInterval is the least time between two looks at witnesses, of all other relays together: a commit
	// tells all of them at once.
	lookInterval = 100 * time.Millisecond
	// unknownWitness stands for several witnesses, one of which is recorded. It is the witness of no
	// session.
	unknownWitness = -1
)

// shardWitness is the witness of a lease; owner: witnesses.
type shardWitness struct {
	recorded int64 // the witness that may be recorded; 0: none is
	unsure   bool  // whether recorded is recorded is not known
}

// doubts tells whether other relays may take sh for a shard of a relay that has ended.
func (w *witnesses) doubts(sh *shardState) bool { return sh.recorded != 0 && sh.recorded != w.own }

// vouches tells whether a renewal that was asked for at issued shows that sh belongs to this relay: if the
// process has stood still since, others may have taken over sh after the renewal.
func (w *witnesses) vouches(sh *shardState, issued time.Duration) bool {
	return !w.doubts(sh) && (sh.recorded == 0 || issued >= w.stoodAt)
}

// suspended stops sending from the shards with which a witness may be recorded, until a renewal has shown
// that they belong to this relay.
func (w *witnesses) suspended() {
	w.stoodAt = w.now
	for _, sh := range w.shards {
		if sh != nil && sh.recorded != 0 {
			sh.until = min(sh.until, w.now)
			w.leases.renewAt = 0
		}
	}
}

// changed takes the witness of a new session, or 0 after the end of a session. If the server has
// ended all sessions, other relays need time to record their new witnesses.
func (w *witnesses) changed(witness int64) {
	if witness == w.own {
		return
	}
	if w.own != 0 {
		w.ended, w.lookAt = nil, w.now+w.cfg.LeaseTTL/3
	}
	w.own, w.stale = witness, true
	for _, sh := range w.shards {
		if sh != nil && w.doubts(sh) {
			sh.until = min(sh.until, w.now)
		}
	}
}

// woken asks for looks if others own shards with new commits. The owner may be dying: the server
// notices the end of a process in the time between two looks.
func (w *witnesses) woken(shards uint64) {
	for no, sh := range w.shards {
		if sh == nil && shards&(1<<no) != 0 {
			if w.looks == 0 {
				w.lookAt = max(w.lookAt, w.now+w.turn(lookInterval))
			}
			w.looks = 2
			return
		}
	}
}

// others returns the number of visible relays but this one, and 1 without any.
func (w *witnesses) others() int { return max(w.leases.live-1, 1) }

// turn returns when it is the turn of this relay to do what one of all other relays does once in an interval:
// a random time, of which the first of the relays comes after about an interval. Of two relays, the other
// does it at once.
func (w *witnesses) turn(interval time.Duration) time.Duration {
	if n := w.others(); n > 1 {
		return time.Duration(w.rand.Int64N(int64(interval) * int64(n)))
	}
	return 0
}

// beat asks for a look with each heartbeat, for owners that die when nothing is committed.
func (w *witnesses) beat() { w.looks = max(w.looks, 1) }

// attestCall records the own witness with the leases that lack it.
func (w *witnesses) attestCall() *Call {
	if !w.stale {
		return nil
	}
	if w.now < w.attestAt {
		w.at(w.attestAt)
		return nil
	}
	s := &statement.Attest{Witness: w.own}
	cl := ask(s)
	for _, sh := range w.shards {
		if sh == nil || sh.recorded == w.own && !sh.unsure {
			continue
		}
		switch {
		case sh.recorded == 0:
			sh.recorded = w.own
		case sh.recorded != w.own:
			sh.recorded = unknownWitness
		}
		sh.unsure = true
		cl.shards, s.Leases = append(cl.shards, sh), append(s.Leases, sh.lease())
	}
	if w.stale = len(s.Leases) > 0; !w.stale {
		return nil
	}
	return cl
}

func (w *witnesses) reply(cl *Call) {
	switch s := cl.Statement.(type) {
	case *statement.Attest:
		w.attested(cl, s.Witness)
	case *statement.EndedWitnesses:
		w.looked(cl, s.Ended)
	case *statement.Expire:
		w.expired(s.Witnesses)
	}
}

// attested lets leases be renewed with which no witness of an earlier session is recorded any more.
func (w *witnesses) attested(cl *Call, witness int64) {
	w.fails = 0
	for _, sh := range cl.shards {
		if w.doubts(sh) {
			w.leases.renewAt = 0
		}
		sh.recorded, sh.unsure = witness, false
	}
}

// call looks at witnesses, or ends the leases of relays that have ended.
func (w *witnesses) call() *Call {
	if !w.cfg.Witnesses || w.once || w.stopping || w.leases.held == idgen.Shards {
		return nil
	}
	var over []int64
	for _, witness := range slices.Sorted(maps.Keys(w.ended)) {
		if due := w.ended[witness] + witnessGrace; w.now >= due {
			over = append(over, witness)
		} else {
			w.at(due)
		}
	}
	switch {
	case over != nil:
		return ask(&statement.Expire{Witnesses: over})
	case w.looks == 0:
		return nil
	case w.now < w.lookAt:
		w.at(w.lookAt)
		return nil
	}
	w.looks--
	return ask(new(statement.EndedWitnesses))
}

// looked notes which witnesses have ended. Of those that were known to have ended, some are
// forgotten: others have acquired the shards.
func (w *witnesses) looked(cl *Call, ended []int64) {
	w.lookAt = cl.issued + lookInterval*time.Duration(w.others())
	before := w.ended
	w.ended = make(map[int64]time.Duration)
	for _, witness := range ended {
		since, known := before[witness]
		switch {
		case witness == w.own: // the relay will be told
		case known:
			w.ended[witness] = since
		default:
			w.ended[witness] = w.now
		}
	}
}

// expired asks at once how many relays are left, and acquires shards.
func (w *witnesses) expired(over []int64) {
	for _, witness := range over {
		delete(w.ended, witness)
	}
	w.leases.beatAt, w.leases.acquireAt = 0, 0
	w.note(slog.LevelWarn, "leases ended of relays that have ended without giving them back", slog.Int("relays", len(over)))
}

// failed tells whether cl is about witnesses, and if so lets some time pass before the next such
// statement. Leases do not depend on it.
func (w *witnesses) failed(cl *Call) bool {
	op := cl.Op()
	if op != statement.OpAttest && op != statement.OpEndedWitnesses && op != statement.OpExpire {
		return false
	}
	w.fails++
	pause := w.pause(w.fails)
	w.attestAt, w.lookAt = w.now+pause, w.now+pause
	if op == statement.OpExpire {
		w.ended, w.looks = nil, 1
	}
	return true
}
