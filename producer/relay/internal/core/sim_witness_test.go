package core

import "time"

// simWitness is the session in which a relay listens.
type simWitness struct {
	number  int64         // 0: there is none
	ended   bool          // and the relay has not been told
	endedAt time.Duration // if so
}

// listen begins a session, of which the relay learns at once.
func (rel *simRelay) listen() {
	s := rel.sim
	s.sessions++
	rel.witness = simWitness{number: s.sessions}
	s.store.Sessions[s.sessions] = true
	rel.core.Witness(s.now, s.sessions)
}

// hangUp ends the session of a relay.
func (s *simulation) hangUp(rel *simRelay) {
	w := &rel.witness
	if w.number != 0 && !w.ended {
		delete(s.store.Sessions, w.number)
		w.ended, w.endedAt = true, s.now
	}
}

// unaware tells whether others may have taken the relay for one that has ended before it was told.
// It does not take another step so.
func (rel *simRelay) unaware() bool {
	return rel.witness.ended && rel.sim.now >= rel.witness.endedAt+witnessGrace
}

// goOn tells a relay that was stopped that it stood still, unless it rests. Whether its session has ended it
// learns later, as any relay does.
func (rel *simRelay) goOn() {
	if rel.stopped == 0 {
		return
	}
	rel.stopped = 0
	if rel.resting {
		rel.sim.counts.Rested++
	} else {
		rel.core.Suspended(rel.sim.now)
	}
	if rel.witness.ended {
		rel.witness.endedAt = rel.sim.now
	}
}

// tell tells a relay that its session has ended: at some time, and before others end its leases.
func (rel *simRelay) tell() {
	s := rel.sim
	if rel.witness.ended && (s.calm || s.now >= rel.witness.endedAt+witnessGrace || s.chance(4)) {
		rel.witness = simWitness{}
		rel.core.Witness(s.now, 0)
	}
}

// witnesses ends the session of a relay that goes on, or lets one listen.
func (s *simulation) witnesses() {
	if !s.wild.witnesses || len(s.relays) == 0 || !s.chance(30) {
		return
	}
	rel := s.relays[s.rnd.IntN(len(s.relays))]
	switch {
	case rel.core.stopped, s.now < rel.stopped && rel.witness.number == 0:
	case rel.witness.number == 0 || rel.witness.ended && s.chance(2): // it may learn of both at once
		rel.listen()
	case !rel.witness.ended:
		s.counts.Witnesses++
		s.hangUp(rel)
	}
}
