package core

import (
	"maps"
	"slices"

	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/store/outbox"
)

// loading loads the blocked keys of a shard that was acquired, or whose parked events an operator
// has changed.
type loading struct {
	*Machine

	healed   bool          // the blocked keys of some shard are to be loaded
	underway []*shardState // shards whose blocked keys are being loaded
	after    outbox.BlockedKey
}

// call reads the blocked keys of healed shards.
func (ld *loading) call() *Call {
	if len(ld.underway) == 0 {
		if !ld.healed {
			return nil
		}
		ld.healed = false
		for _, sh := range ld.shards {
			if sh != nil && sh.phase == phaseLoad {
				sh.loaded = make(map[string]struct{})
				ld.underway = append(ld.underway, sh)
			}
		}
		ld.after = outbox.BlockedKey{}
	}
	if len(ld.underway) == 0 {
		return nil
	}
	return ask(&statement.Blocked{Shards: numbersOf(ld.underway), After: ld.after, Limit: ld.limits.blocked}, ld.underway...)
}

// underWay tells whether the parked events of some shard are being healed or loaded.
func (ld *loading) underWay() bool {
	return slices.ContainsFunc(ld.shards[:], func(sh *shardState) bool { return sh != nil && sh.phase != phaseReady })
}

func (ld *loading) page(cl *Call) {
	s := cl.Statement.(*statement.Blocked)
	if cl.Err != nil {
		return
	}
	for _, b := range s.Keys {
		if sh := ld.shards[b.Shard]; b.Key != "" && sh != nil && sh.phase == phaseLoad && slices.Contains(ld.underway, sh) {
			sh.loaded[b.Key] = struct{}{}
		}
	}
	if len(s.Keys) >= s.Limit {
		ld.after = s.Keys[len(s.Keys)-1]
		return
	}
	loaded := ld.underway
	ld.underway = nil
	for _, sh := range loaded {
		switch {
		case sh.gone || sh.yielding || sh.phase != phaseLoad:
		case sh.reloadAgain:
			sh.reloadAgain, sh.loaded, sh.phase = false, nil, phaseHeal
			ld.parking.mark(sh)
		default:
			ld.open(sh)
		}
	}
}

// reload brings sh in step with changes of parked events by an operator. Until the keys are loaded,
// this relay parks, moves and releases no event of the shard: the loaded keys stay true.
func (ld *loading) reload(sh *shardState) {
	if sh.phase != phaseReady {
		sh.reloadAgain = true
		return
	}
	sh.phase = phaseHeal
	ld.parking.mark(sh)
}

// open takes over the loaded keys and the rewind of a shard.
func (ld *loading) open(sh *shardState) {
	sh.phase = phaseReady
	ld.takeBlocked(sh)
	sh.loaded = nil
	if sh.rewindTo > 0 {
		sh.rewind(sh.rewindTo - 1)
		sh.rewindTo, sh.clear = 0, true
		ld.leases.clears = true
	}
	ld.leases.learnReplays(sh, sh.ticket)
	ld.due.next, ld.deferred.next = ld.now, ld.now
	ld.reader.pollAt, ld.reader.delay = ld.now, 0
	ld.late.sampleSoon()
	ld.parking.mark(sh)
}

// takeBlocked brings the keys of sh in step with the loaded keys. For a blocked key without an
// event in memory, only the head is kept, since a line takes more memory.
func (ld *loading) takeBlocked(sh *shardState) {
	head := int64(0) // not known
	if ld.cfg.HoldDeadKeys {
		head = headUnknown // the head may be a dead event; healing has made heads for all other keys
	}
	for _, key := range slices.Sorted(maps.Keys(sh.lines)) {
		l := sh.lines[key]
		if _, ok := sh.loaded[key]; !ok {
			if l.blocked {
				ld.notLoaded(l)
			}
			continue
		}
		delete(sh.loaded, key)
		if l.blocked && l.flowing() {
			ld.parking.invalidate(l)
		}
		ld.keys.block(l)
		l.head = head // an operator may have settled the old head
	}
	heads := make(map[string]int64, len(sh.loaded))
	for key := range sh.loaded {
		heads[key] = head
	}
	sh.blockedHeads = heads
}

// notLoaded unblocks a key that has no live parked event in the database. Events of the key in
// flight and statements under way end first.
func (ld *loading) notLoaded(l *keyLine) {
	switch {
	case l.flowing():
		ld.parking.invalidate(l)
	case l.following > 0 || l.parking > 0:
		l.head = 0 // moved events will find no head
	default:
		ld.keys.unblock(l)
	}
}
