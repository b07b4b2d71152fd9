package core

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/memstore"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/transport"
)

// simulation runs relays through a random schedule: statements that take any
// time, fail before or after they did their work, or never come back; relays
// that are killed at any step or stopped and woken; transactions that commit
// late; a broker that refuses, loses its answers, breaks channels and goes away; operators.
// One seed, one schedule.
type simulation struct {
	t        testing.TB
	seed     uint64
	trace    bool
	counts   simCounts
	rnd      *rand.Rand
	now      time.Duration
	store    *memstore.Store
	cfg      Options
	limits   coreLimits
	relays   []*simRelay
	named    int
	sessions int64
	calm     bool // the faults are over
	wild     simFaults
	crash    int     // one step in so many
	batch    int     // how many events of a key the broker takes as one
	rate     float64 // of the limited route

	locked    map[string]*memstore.Tx // keys that an open transaction writes to
	open      []*memstore.Tx
	standby   *memstore.Copy     // may be promoted
	events    map[int64]simEvent // by number, as what is below
	written   []int64
	arrivals  []int64 // what the broker took, in order
	refusals  map[int64]int
	bad       map[int64]transport.Outcome // events that never pass
	breaking  map[int64]bool              // … since the broker ends the channel for them
	replayed  map[int64]int               // how much had arrived when an event was replayed
	replays   []simReplay
	deferred  map[int64]bool // ever, and so free of the order of its key
	cancelled map[int64]bool
	discarded map[int64]bool // ever
	down      bool
	refusing  map[string]bool          // routes
	paused    map[string]time.Duration // routes that an operator has paused, and since when
	broken    []string
}

// simFaults says what may happen in a schedule.
type simFaults struct {
	kill, stop, storeErrors, unavailable, refusals, channels, operators, late, routes, deferrals, failOvers, ttls, pauses, rates, witnesses, freed bool
}

type simRelay struct {
	sim     *simulation
	core    *Machine
	stopped time.Duration // until then
	witness simWitness
	resting bool         // it does not notice that it stood still
	calls   []*Call      // not executed
	done    []*Call      // executed, not told
	sends   []rigSend    // not at the broker
	sent    []SendResult // not told
}

func newSimulation(t testing.TB, seed uint64) *simulation {
	s := &simulation{
		t: t, seed: seed, rnd: rand.New(rand.NewPCG(seed, 42)), events: make(map[int64]simEvent),
		locked: make(map[string]*memstore.Tx), paused: make(map[string]time.Duration), refusals: make(map[int64]int),
		bad: make(map[int64]transport.Outcome), breaking: make(map[int64]bool), refusing: make(map[string]bool),
		replayed: make(map[int64]int), deferred: make(map[int64]bool), cancelled: make(map[int64]bool), discarded: make(map[int64]bool),
	}
	s.store = memstore.New(func() time.Duration { return s.now })
	s.store.Database = "timeline 0"
	flag := func() bool { return s.rnd.IntN(2) == 0 }
	s.wild = simFaults{flag(), flag(), flag(), flag(), flag(), flag(), flag(), flag(), flag(), flag(), flag(), flag(), flag(), flag(), false, seed%2 == 1}
	pick := func(of ...int) int { return of[s.rnd.IntN(len(of))] }
	s.crash = pick(15, 50, 200)
	s.cfg = Options{
		Window: pick(1, 3, 8, 50), MaxPerKey: pick(1, 2, 5), FetchSize: pick(1, 4, 100),
		MaxAttempts: pick(1, 2, 4), HoldDeadKeys: flag(), LeaseTTL: 2 * time.Second,
		Backoff:            Backoff{Initial: 50 * time.Millisecond, Max: 500 * time.Millisecond},
		RouteProbeInterval: 50 * time.Millisecond, PollIdle: time.Duration(pick(0, 501, 3000)) * time.Millisecond,
	}
	s.limits = coreLimits{
		cold: pick(1, 2, 16), follow: pick(1, 3, 2000), blocked: pick(1, 2, 1000), due: pick(1, 5, 256),
		stall: pick(2, 3, 32), undefer: pick(1, 2, 32), span: int64(pick(1, 5, 1<<14)), page: pick(1, 4, 128),
		sweep:      time.Duration(pick(2, 300)) * time.Second,
		writesLong: time.Duration(pick(0, 30, 1000)) * time.Millisecond, readsLong: pick(1, 5, 1000),
	}
	s.batch, s.rate = pick(0, 2, 3, 10), float64(pick(20, 200))
	s.store.Fail = func(string) error { return nil }
	s.wild.witnesses = flag()
	return s
}

func (s *simulation) chance(n int) bool { return s.rnd.IntN(n) == 0 }

func (s *simulation) startRelay() {
	s.named++
	cfg := s.cfg
	cfg.Name, cfg.Witnesses = fmt.Sprint("relay", s.named), s.wild.witnesses
	if s.wild.ttls { // as while another one is rolled out
		cfg.LeaseTTL = []time.Duration{500 * time.Millisecond, 2 * time.Second, 8 * time.Second}[s.rnd.IntN(3)]
	}
	cfg = filled(cfg)
	route := func(topic string) string { name, _, _ := strings.Cut(topic, "/"); return name }
	rel := &simRelay{sim: s}
	rel.core = New(cfg, Topics{Route: route, Downstream: s.downstream, Matches: s.matches}, rand.New(rand.NewPCG(s.rnd.Uint64(), 7)), false)
	if !s.chance(4) { // it knows that events are small, as one that has read many
		rel.core.reader.budget.average = leastSize
	}
	rel.core.limits = s.limits
	rel.core.topics.Batch = func(string) (int, int) { return s.batch, 1 << 20 }
	s.relays = append(s.relays, rel)
	if s.wild.witnesses && s.chance(2) {
		rel.listen()
	}
	s.counts.Relays++
}

// simKeys are keys of two shards, so that they get into each other's way.
var simKeys = []string{"k0", "k126", "k179", "k15", "k46", "k193"}

// produce writes, commits or rolls back. Writers of one key take turns.
func (s *simulation) produce() {
	if len(s.open) > 0 && (s.chance(2) || len(s.open) > 3) {
		i := s.rnd.IntN(len(s.open))
		tx := s.open[i]
		s.open = slices.Delete(s.open, i, i+1)
		if s.chance(8) {
			tx.Rollback()
		} else {
			s.written = append(s.written, s.store.Numbers(tx.Seqs)...)
			if tx.Seqs != nil && tx.Seqs[0] < s.store.Last {
				s.counts.LateCommits++
			}
			s.wake(tx.Commit())
		}
		for key, holder := range s.locked {
			if holder == tx {
				delete(s.locked, key)
			}
		}
		return
	}
	tx := s.store.Begin()
	for range 1 + s.rnd.IntN(4) {
		key := simKeys[s.rnd.IntN(len(simKeys))]
		if s.chance(6) {
			key = ""
		} else if holder := s.locked[key]; holder != nil && holder != tx {
			continue
		} else {
			s.locked[key] = tx
		}
		n := s.write(tx, key)
		s.breaking[n] = s.wild.channels && s.chance(15)
		if s.breaking[n] || s.wild.refusals && s.chance(12) {
			s.bad[n] = []transport.Outcome{transport.Refused, transport.Returned, transport.Invalid}[s.rnd.IntN(3)]
		}
	}
	s.open = append(s.open, tx)
	if !s.wild.late { // commits before anybody else begins
		for len(s.open) > 0 {
			tx := s.open[0]
			s.open = s.open[1:]
			s.written = append(s.written, s.store.Numbers(tx.Seqs)...)
			tx.Commit()
		}
		clear(s.locked)
	}
}

// deliver lets the broker see a message. What it took may still be reported as
// lost. If it ends the channel for one, the publisher finds out for which.
func (s *simulation) deliver(rel *simRelay, m rigSend) {
	res := SendResult{Entry: m.entry, Gen: m.gen}
	route, _, _ := strings.Cut(m.topic, "/")
	bad, isBad := s.bad[m.seq]
	for _, seq := range m.tail { // of two bad ones, the first is met first
		if !isBad {
			bad, isBad = s.bad[seq]
		}
	}
	switch {
	case s.down && !s.calm:
		res.Outcome = transport.Unavailable
		if s.chance(4) {
			s.arrive(m)
		}
	case isBad:
		res.Outcome = bad
		if s.breaking[m.seq] || slices.ContainsFunc(m.tail, func(seq int64) bool { return s.breaking[seq] }) {
			s.counts.Channels++
			rel.publishAgain()
		}
	case !s.calm && s.refusing[route]:
		res.Outcome = transport.Refused
	default:
		s.arrive(m)
		res.Outcome = transport.Confirmed
		if s.wild.unavailable && !s.calm && s.chance(20) {
			res.Outcome = transport.Unavailable
		}
	}
	switch res.Outcome {
	case transport.Confirmed:
	case transport.Unavailable:
		s.counts.Outages++
		res.Err = errors.New("gone")
	default:
		s.counts.Refusals++
		if len(m.tail) > 0 { // nobody knows whose fault it is
			s.counts.Batches++
		} else {
			s.refusals[m.seq]++
		}
		res.Err = errors.New("no")
	}
	rel.sent = append(rel.sent, res)
}

// publishAgain is what a publisher does with messages whose answers were lost with their channel,
// if their time is not over.
func (rel *simRelay) publishAgain() {
	s := rel.sim
	for i := range rel.sent {
		res := &rel.sent[i]
		switch {
		case res.Outcome != transport.Confirmed || res.Unsent:
		case s.chance(4):
			res.Outcome, res.Err = transport.Unavailable, errors.New("not confirmed yet")
		case s.chance(2):
			s.arrive(rigSendOf(res.Entry))
		}
	}
}

func take[T any](s *simulation, from *[]T, ordered bool) T {
	i := 0
	if !ordered {
		i = s.rnd.IntN(len(*from))
	}
	x := (*from)[i]
	*from = slices.Delete(*from, i, i+1)
	return x
}

// step lets one thing happen to a relay, and the core decide what follows.
func (rel *simRelay) step() bool {
	s := rel.sim
	if s.now < rel.stopped {
		return false
	}
	rel.goOn()
	rel.tell()
	n := len(rel.calls) + len(rel.done) + len(rel.sends) + len(rel.sent)
	if turns := 1; n > 0 {
		if s.calm {
			turns = n
		}
		for range turns {
			rel.one()
		}
	}
	if rel.resting && !rel.core.Idle() {
		rel.core.Suspended(s.now)
		rel.resting = false
	}
	rel.core.Advance(s.now)
	rel.resting = rel.core.Idle()
	calls, sends, notes := rel.core.Flush()
	if s.trace {
		for _, cl := range calls {
			fmt.Println(s.now, rel.core.cfg.Name, "call", cl.Op(), fmt.Sprintf("%+v", cl.Statement), len(cl.entries))
		}
		for _, e := range sends {
			fmt.Println(s.now, rel.core.cfg.Name, "send", e.Seq, e.Key, e.Topic, e.parked, len(e.BatchTail))
		}
		for _, n := range notes {
			fmt.Println(s.now, rel.core.cfg.Name, "note", n.Msg, n.Attrs)
		}
	}
	rel.calls = append(rel.calls, calls...)
	for _, e := range sends {
		s.checkPauses(rel, e)
		rel.sends = append(rel.sends, rigSendOf(e))
	}
	return n+len(calls)+len(sends) > 0
}

// rigSendOf returns what is sent with e, by the numbers of the events.
func rigSendOf(e *Entry) rigSend {
	m := rigSend{entry: e, gen: e.Gen, seq: e.Version, topic: e.Topic, key: e.Key}
	for _, member := range e.BatchTail {
		m.tail = append(m.tail, member.Version)
	}
	return m
}

// one lets one of the things that are under way happen.
func (rel *simRelay) one() {
	s := rel.sim
	first := s.rnd.IntN(4)
	for i := range 4 {
		switch kind := (first + i) % 4; {
		case kind == 0 && len(rel.calls) > 0:
			s.execute(rel, take(s, &rel.calls, false))
		case kind == 1 && len(rel.done) > 0:
			rel.core.Reply(s.now, take(s, &rel.done, false))
		case kind == 2 && len(rel.sends) > 0:
			m := take(s, &rel.sends, true)
			if sh := m.entry.shard; s.now >= sh.until && !s.chance(3) {
				rel.sent = append(rel.sent, SendResult{Entry: m.entry, Gen: m.gen, Unsent: true})
			} else {
				s.deliver(rel, m) // now and then, the look at the lease came just before it ended
			}
		case kind == 3 && len(rel.sent) > 0:
			rel.core.Outcome(s.now, take(s, &rel.sent, false))
		default:
			continue
		}
		return
	}
}

// disturb lets something go wrong, or right again.
func (s *simulation) disturb() {
	switch s.rnd.IntN(10) {
	case 0, 1:
		if len(s.relays) < 3 {
			s.startRelay()
		}
	case 2:
		if s.wild.stop && len(s.relays) > 0 && s.chance(2) {
			s.pauseRelay()
		}
	case 3:
		s.down = s.wild.unavailable && s.chance(3)
	case 4:
		if s.wild.routes {
			s.refusing[fmt.Sprint("r", s.rnd.IntN(3))] = s.chance(2)
		}
	case 5:
		if len(s.relays) > 0 && s.chance(6) {
			s.counts.Shutdowns++
			s.relays[s.rnd.IntN(len(s.relays))].core.Stop(s.now)
		}
	case 6, 7:
		if s.wild.operators && len(s.written) > 0 {
			s.operate()
		}
	case 8:
		if s.wild.failOvers {
			s.replicate()
		}
	case 9:
		if s.wild.pauses {
			s.pauseRoute(fmt.Sprint("r", s.rnd.IntN(3)))
		}
	}
}

// pauseRelay stops a relay for a while, as SIGSTOP does, best with a statement on its way, and
// often lets its leases end meanwhile.
func (s *simulation) pauseRelay() {
	rel := s.relays[s.rnd.IntN(len(s.relays))]
	for _, other := range s.relays {
		if slices.ContainsFunc(other.calls, func(cl *Call) bool { return cl.Op() >= statement.OpMark && cl.Op() < statement.OpPauses }) {
			rel = other
		}
	}
	if i := slices.IndexFunc(s.relays, func(other *simRelay) bool { return other.resting }); i >= 0 && s.chance(2) {
		rel = s.relays[i]
	}
	rel.stopped = s.now + time.Duration(s.rnd.IntN(6000))*time.Millisecond
	if s.wild.witnesses && s.chance(2) {
		s.counts.Witnesses++
		s.hangUp(rel) // and it learns of it when it goes on
	}
	if s.chance(2) {
		s.now += time.Duration(s.rnd.IntN(3000)) * time.Millisecond
	}
	s.counts.Stops++
}

// play plays the whole schedule and looks at what came of it. Most are short: what goes wrong, goes
// wrong within few steps, and many short ones differ more than a few long ones.
func (s *simulation) play() {
	s.run(100 + s.rnd.IntN(100<<s.rnd.IntN(3)))
	s.check()
	s.counts.Events, s.counts.Deliveries = len(s.written), len(s.arrivals)
}

// run plays the schedule, then lets everything calm down and drain.
func (s *simulation) run(steps int) {
	s.startRelay()
	for range steps {
		switch s.rnd.IntN(10) {
		case 0:
			s.produce()
		case 1:
			s.disturb()
		case 2:
			s.pass()
		default:
			if len(s.relays) > 0 {
				s.relays[s.rnd.IntN(len(s.relays))].step()
			}
		}
		s.witnesses()
		s.reap()
		s.owners()
		s.lows()
		s.counts.Steps++
		if s.wild.kill && len(s.relays) > 0 && s.chance(s.crash) {
			i := s.rnd.IntN(len(s.relays))
			s.hangUp(s.relays[i])
			s.relays = slices.Delete(s.relays, i, i+1)
			s.counts.Crashes++
		}
	}
	s.calm, s.down = true, false
	clear(s.refusing)
	for _, name := range slices.Sorted(maps.Keys(s.paused)) {
		s.pauseRoute(name)
	}
	for len(s.open) > 0 {
		s.written = append(s.written, s.store.Numbers(s.open[0].Seqs)...)
		s.open[0].Commit()
		s.open = s.open[1:]
	}
	if len(s.relays) == 0 {
		s.startRelay()
	}
	s.drain()
	if s.wild.operators && len(s.broken) == 0 {
		s.check() // what was lost would come with its replay
		for _, key := range simKeys {
			s.replayAll(func(n int64) bool { return s.events[n].key == key })
		}
		s.drain()
	}
}

// pass lets time go by: often to the next moment at which somebody wants to do something.
func (s *simulation) pass() {
	switch s.rnd.IntN(4) {
	case 0:
		s.now += time.Duration(s.rnd.IntN(1000)) * time.Millisecond
	case 1:
		s.now += time.Duration(s.rnd.IntN(5000)) * time.Microsecond
	default:
		next := never
		for _, rel := range s.relays {
			next = min(next, rel.core.wakeAt)
		}
		if next != never {
			s.now = max(s.now, next)
		}
	}
}

// reap replaces relays that have stopped.
func (s *simulation) reap() {
	s.relays = slices.DeleteFunc(s.relays, func(rel *simRelay) bool {
		if rel.core.stopped {
			s.hangUp(rel)
		}
		return rel.core.stopped
	})
}
