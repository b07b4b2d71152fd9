package core

import (
	"fmt"
	"slices"
	"time"

	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/producer/relay/internal/memstore"
	"github.com/boxpair/boxpair/store/outbox"
)

// simReplay is what an operator has replayed of a key at once.
type simReplay struct {
	numbers []int64
	from    int // how much had arrived
}

// settled tells whether nothing is left that a relay should still do.
func (s *simulation) settled() bool {
	queued, live := s.store.Left()
	if queued > 0 || len(s.store.Waiting()) > 0 {
		return false
	}
	if s.cfg.HoldDeadKeys { // what waits behind a dead event waits for an operator
		dead := make(map[outbox.BlockedKey]bool)
		for _, p := range s.store.Parked {
			if p.State == outbox.Dead {
				dead[outbox.BlockedKey{Shard: p.Shard, Key: p.Key}] = true
			}
		}
		for _, p := range s.store.Parked {
			if p.Live() && p.Key != "" && dead[outbox.BlockedKey{Shard: p.Shard, Key: p.Key}] {
				live--
			}
		}
	}
	if queued > 0 || live > 0 {
		return false
	}
	for _, rel := range s.relays {
		if rel.core.dispatch.inflight > 0 || rel.core.keys.buffered > 0 {
			return false
		}
	}
	return true
}

// drain runs everything that is left, with operators redriving nothing.
func (s *simulation) drain() {
	// A small fetch takes many rounds to look everywhere, and a small window as many to try all
	// events of a stalled route. With several stalled routes one schedule in a hundred thousand takes
	// ten times as many.
	const patience = 5
	most := 150_000 * max(1, 16/s.cfg.FetchSize) * max(1, 12/s.cfg.Window)
	longest := time.Hour * time.Duration(max(1, 4/s.cfg.Window))
	lively := s.now
	for round := 0; ; round++ {
		s.counts.Steps++
		busy := false
		next := never
		for _, rel := range slices.Clone(s.relays) {
			busy = rel.step() || busy
			if rel.stopped > s.now {
				next = min(next, rel.stopped)
			} else {
				next = min(next, rel.core.wakeAt)
			}
		}
		s.reap()
		s.lows()
		if len(s.relays) == 0 {
			s.startRelay()
			continue
		}
		if busy && round <= patience*most { // a store that breaks its contract may keep a relay busy for ever
			continue
		}
		if s.settled() {
			return
		}
		if queued, live := s.store.Left(); round > most && queued+live == 0 || round > patience*most || s.now > longest {
			s.fail("does not drain: %s", s.leftovers())
			return
		}
		if next == never {
			s.fail("a relay waits for nothing: %s", s.leftovers())
			return
		}
		s.now = max(next, s.now+time.Microsecond)
		if s.now > lively {
			// Routes of which all events in memory are bad stay paused; others tell them apart.
			lively = s.now + 200*time.Millisecond
			for i := range 3 {
				s.add(fmt.Sprint("r", i, "/0"), fmt.Sprint("calm", s.now))
			}
		}
	}
}

// lows looks whether all is so that relays have kept about where there is nothing to read.
func (s *simulation) lows() {
	s.broken = append(s.broken, s.store.Untrue...)
	s.store.Untrue = nil
}

func (s *simulation) leftovers() string {
	queued, live := s.store.Left()
	text := fmt.Sprintf("%d queued, %d parked, at %v", queued, live, s.now)
	for _, rel := range s.relays {
		text += "; " + rel.core.cfg.Name + " " + rel.core.forgotten()
	}
	return text
}

func (s *simulation) fail(format string, args ...any) {
	s.broken = append(s.broken, fmt.Sprintf(format, args...))
}

// arrive has the broker take a message, and what is in a batch with it.
func (s *simulation) arrive(m rigSend) {
	s.arriveOne(m.seq)
	for _, seq := range m.tail {
		s.arriveOne(seq)
	}
}

func (s *simulation) arriveOne(n int64) {
	if _, ok := s.store.Deferred[s.events[n].seq]; ok && s.counts.FailOvers == 0 {
		s.fail("%d arrived and can still be cancelled", n)
	}
	if s.cancelled[n] && s.counts.FailOvers == 0 {
		s.fail("%d arrived and was cancelled", n)
	}
	s.arrivals = append(s.arrivals, n)
}

// owners looks for a shard that two relays take for theirs at the same time. A fail-over may lose a
// lease.
func (s *simulation) owners() {
	if !s.wild.ttls || s.counts.FailOvers > 0 {
		return
	}
	for i, rel := range s.relays {
		for no, sh := range rel.core.shards {
			if !sh.owned(s.now) || rel.unaware() {
				continue
			}
			for _, other := range s.relays[:i] {
				if other.core.shards[no].owned(s.now) && !other.unaware() {
					s.fail("shard %d is that of %s and of %s", no, rel.core.cfg.Name, other.core.cfg.Name)
					return
				}
			}
		}
	}
}

// owned tells whether a relay takes a shard for its own. One that is to be given back and idle may
// have been: the answer may be lost.
func (sh *shardState) owned(now time.Duration) bool {
	return sh != nil && !sh.gone && sh.until > now && (!sh.yielding || !sh.idle())
}

// check looks at what the broker saw.
func (s *simulation) check() {
	arrived := make(map[int64]bool)
	everDead := make(map[int64]bool)
	counted := make(map[int64]int)
	last := make(map[int64]int)
	for _, x := range s.store.Failures {
		if x.Attempts > 0 && last[x.Event] != x.Attempts { // else a statement was repeated whose answer was lost
			counted[x.Event]++
		}
		last[x.Event] = x.Attempts
		everDead[x.Event] = everDead[x.Event] || x.Dead
	}
	firsts := make(map[string][]int64)
	for _, n := range s.arrivals {
		if !arrived[n] {
			arrived[n] = true
			if key := s.events[n].key; key != "" && !s.deferred[n] && s.counts.FailOvers == 0 { // which may cost the order
				firsts[key] = append(firsts[key], n)
			}
		}
	}
	for key, numbers := range firsts {
		highest := int64(0)
		for _, n := range numbers {
			// What was discarded has left its place. It may arrive from a relay that is stopped since
			// it sent it, or after an operator has undone the discard.
			if n < highest && !everDead[n] && !s.discarded[n] {
				s.fail("key %s: %d arrived behind %d", key, n, highest)
			}
			highest = max(highest, n)
		}
	}
	for n, from := range s.replayed {
		if s.store.Parked[s.events[n].seq] == nil && !slices.Contains(s.arrivals[from:], n) {
			s.fail("the replay of %d was lost", n)
		}
	}
	for _, r := range s.replays {
		kept := slices.DeleteFunc(slices.Clone(r.numbers), func(n int64) bool { return everDead[n] || s.discarded[n] || s.store.Parked[s.events[n].seq] != nil })
		if !s.inOrder(kept, r.from) {
			s.fail("%v were replayed at once, and %v arrived since", kept, s.arrivals[r.from:])
		}
	}
	for _, n := range s.written {
		p := s.store.Parked[s.events[n].seq]
		switch {
		case arrived[n], p != nil && (p.State == outbox.Dead || p.State == outbox.Discarded || p.State == outbox.Cancelled):
		case p != nil && s.cfg.HoldDeadKeys && s.store.HasDead(p.Shard, p.Key):
		default:
			s.fail("%d was lost", n)
		}
		if counted[n] > s.refusals[n] {
			s.fail("%d: %d attempts counted, %d refusals", n, counted[n], s.refusals[n])
		}
	}
}

// write writes an event, now and then a deferred one, and returns its number.
func (s *simulation) write(tx *memstore.Tx, key string) int64 {
	topic := fmt.Sprint("r", s.rnd.IntN(3), "/", s.rnd.IntN(2))
	if !s.wild.deferrals || !s.chance(4) {
		return s.number(tx.Write(topic, key))
	}
	s.counts.Deferrals++
	n := s.number(tx.WriteDeferred(topic, key, s.now+time.Duration(s.rnd.IntN(2000))*time.Millisecond))
	s.deferred[n] = true
	return n
}

// replay replays an event, or all that was delivered of its key.
func (s *simulation) replay(n int64) bool {
	key := s.events[n].key
	whole := key != "" && s.chance(2)
	return s.replayAll(func(m int64) bool { return m == n || whole && s.events[m].key == key })
}

// replayAll replays what was delivered of the events of a key of which that is true, at once.
func (s *simulation) replayAll(wanted func(int64) bool) bool {
	r := simReplay{from: len(s.arrivals)}
	for _, n := range s.written {
		if seq := s.events[n].seq; wanted(n) && s.store.Parked[seq] == nil && s.store.Receipts[seq] > 0 && s.store.Replay(seq) {
			r.numbers = append(r.numbers, n)
			s.replayed[n] = r.from
		}
	}
	if len(r.numbers) > 1 {
		slices.Sort(r.numbers)
		s.replays = append(s.replays, r)
	}
	return len(r.numbers) > 0
}

// inOrder tells whether numbers arrived one after the other since from, whatever came between them.
func (s *simulation) inOrder(numbers []int64, from int) bool {
	for _, n := range s.arrivals[from:] {
		if len(numbers) > 0 && n == numbers[0] {
			numbers = numbers[1:]
		}
	}
	return len(numbers) == 0
}

// operate does something that operators do, to an event that it makes a difference to.
func (s *simulation) operate() {
	from := s.rnd.IntN(len(s.written))
	for i := range s.written {
		n := s.written[(from+i)%len(s.written)]
		seq := s.events[n].seq
		p := s.store.Parked[seq]
		switch {
		case s.deferred[n] && s.chance(3) && s.store.Cancel(seq):
			s.cancelled[n] = true
		case s.deferred[n] && s.store.Reschedule(seq, s.now+time.Duration(s.rnd.IntN(2000)-500)*time.Millisecond):
		case s.replay(n):
		case p != nil && p.State == outbox.Dead && !s.chance(4):
			s.store.Redrive(seq)
		case p != nil && p.State == outbox.Discarded && s.chance(3), p != nil && p.State == outbox.Retrying && s.chance(16):
			s.store.Redrive(seq)
		case p != nil && p.State != outbox.Discarded && p.State != outbox.Cancelled && s.chance(8):
			s.discarded[n] = s.store.Discard(seq)
		default:
			continue
		}
		s.counts.Operations++
		s.wake(wakeup.Changed)
		return
	}
}
