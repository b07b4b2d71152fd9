package core

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/memstore"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/transport"
)

// load is a schedule of much work: a relay beside backlogs of routes that take nothing, in which
// statements take as long as what they step over and bring. A trickle of events of a route that
// works has to get through within a bound, whatever is behind the others: while they stall, when
// they work again, and after a restart. One seed, one schedule.
type load struct {
	seed   uint64
	rnd    *rand.Rand
	now    time.Duration
	store  *memstore.Store
	cfg    Options
	limits coreLimits
	rel    *loadRelay
	relays int
	events []loadEvent // what happens, the next one last

	backlog  int
	big      int               // events of one transaction that commits late
	stalled  transport.Outcome // of the routes that do not work
	dead     int               // how many these are
	works    bool              // so do they, from now on
	answer   func(m rigSend) transport.Result
	row      time.Duration           // what a statement takes for each row that it brings
	history  int                     // events that are delivered before somebody holds a snapshot
	gone     time.Duration           // what a statement takes for each row that it steps over since it has gone
	waiting  map[int64]time.Duration // the trickle: since when
	excused  time.Duration           // before, a relay had to read all that there is
	bound    time.Duration
	limit    map[int64]time.Duration // in place of bound
	last     map[string]int64        // arrival of each key
	arrived  map[int64]bool
	broken   []string
	mostRead int
	mostKept int
}

type loadEvent struct {
	at time.Duration
	do func()
}

type loadRelay struct {
	*load
	core *Machine
	gone bool
}

const (
	loadTrickle = 100 * time.Millisecond // between two events that have to get through
	loadCall    = 300 * time.Microsecond
	loadSend    = time.Millisecond
	loadLasts   = 6 * time.Minute
	loadHeld    = 45 * time.Second
	loadGone    = 2 * time.Millisecond // so that all of them take longer than a lease
)

func newLoad(seed uint64) *load {
	s := &load{
		seed: seed, rnd: rand.New(rand.NewPCG(seed, 17)),
		waiting: make(map[int64]time.Duration), last: make(map[string]int64), arrived: make(map[int64]bool),
	}
	pick := func(of ...int) int { return of[s.rnd.IntN(len(of))] }
	s.store = memstore.New(func() time.Duration { return s.now })
	s.cfg = Options{Window: pick(8, 50, 1000), FetchSize: pick(20, 100, 1000), MaxPerKey: pick(2, 100)}
	if pick(0, 0, 0, 0, 0, 1) == 1 {
		s.cfg.Window, s.cfg.FetchSize = 1, 1
	}
	s.limits = defaultLimits
	s.limits.stall, s.limits.sweep = pick(2, 32), time.Duration(pick(20, 300))*time.Second
	s.backlog, s.dead = pick(0, 2000, 20_000), pick(1, 1, 3)
	if s.cfg.FetchSize == 1 { // each event is a statement
		s.backlog /= 10
	}
	s.big = pick(0, 0, 5000)
	if s.cfg.Window > 1 && pick(0, 1, 1) == 1 {
		s.history, s.limits.span, s.store.Held = 20_000, 64, true
		s.backlog = 0 // what waits pins the bottom, and all that was delivered since is stepped over once more
	}
	s.stalled = []transport.Outcome{transport.Returned, transport.Refused, transport.Unavailable}[s.rnd.IntN(3)]
	s.row = 5 * time.Microsecond
	s.bound = 2 * time.Second
	return s
}

func (s *load) after(d time.Duration, do func()) {
	e := loadEvent{s.now + d, do}
	at, _ := slices.BinarySearchFunc(s.events, e, func(a, b loadEvent) int {
		if a.at > b.at {
			return -1
		}
		return 1
	})
	s.events = slices.Insert(s.events, at, e)
}

func (s *load) fail(format string, args ...any) {
	s.broken = append(s.broken, fmt.Sprintf(format, args...))
}

// begin starts a relay in the place of the one there is, and excuses it for as long as it takes to
// read all that there is once.
func (s *load) begin() {
	if s.rel != nil {
		s.rel.gone = true
	}
	s.relays++
	cfg := s.cfg
	cfg.Name = fmt.Sprint("relay", s.relays)
	cfg = filled(cfg)
	route := func(topic string) string { name, _, _ := strings.Cut(topic, "/"); return name }
	s.rel = &loadRelay{load: s, core: New(cfg, Topics{Route: route}, rand.New(rand.NewPCG(s.rnd.Uint64(), 3)), false)}
	s.rel.core.limits = s.limits
	queued, _ := s.store.Left()
	once := time.Duration(queued)*(s.row+loadCall/time.Duration(min(cfg.FetchSize, 100))) + cfg.LeaseTTL
	s.excused = max(s.excused, s.now+4*once)
	s.rel.step()
}

// step has the core decide, and begins what it asks for.
func (rel *loadRelay) step() {
	if rel.gone {
		return
	}
	for {
		rel.core.Advance(rel.now)
		calls, sends, _ := rel.core.Flush()
		for _, cl := range calls {
			rel.execute(cl)
		}
		for _, e := range sends {
			rel.send(rigSend{entry: e, gen: e.Gen, seq: e.Seq, topic: e.Topic, key: e.Key})
		}
		rel.mostKept = max(rel.mostKept, rel.core.keys.buffered)
		if len(calls)+len(sends) == 0 {
			break
		}
	}
	if at := rel.core.wakeAt; at != never {
		core := rel.core
		rel.after(max(at-rel.now, time.Microsecond), func() {
			if core.wakeAt <= rel.now {
				rel.step()
			}
		})
	}
}

// execute runs a statement at once, and answers when it would be over.
func (rel *loadRelay) execute(cl *Call) {
	s := rel.load
	cl.Err = cl.Execute(context.Background(), s.store, rel.core.cfg.Asker())
	took := loadCall + time.Duration(len(rowsOf(cl)))*s.row + time.Duration(s.store.Passed)*s.gone
	s.store.Passed = 0
	if cl.Op() == statement.OpFetch {
		s.mostRead = max(s.mostRead, len(rowsOf(cl)))
	}
	if limit := rel.core.cfg.LeaseTTL; took > limit {
		took, cl.Err = limit, context.DeadlineExceeded
	}
	rel.after(took, func() {
		if !rel.gone {
			rel.core.Reply(rel.now, cl)
			rel.step()
		}
	})
}

// send lets the broker see a message, and answers it.
func (rel *loadRelay) send(m rigSend) {
	s := rel.load
	res := SendResult{Entry: m.entry, Gen: m.gen, Result: transport.Result{Outcome: transport.Confirmed}}
	if s.answer != nil {
		res.Result = s.answer(m)
	} else if strings.HasPrefix(m.topic, "dead") && !s.works {
		res.Result = transport.Result{Outcome: s.stalled, Err: errors.New("no")}
	}
	if res.Outcome == transport.Confirmed {
		if m.key != "" && !s.arrived[m.seq] {
			if s.last[m.key] > m.seq {
				s.fail("key %s: %d arrived behind %d", m.key, m.seq, s.last[m.key])
			}
			s.last[m.key] = m.seq
		}
		s.arrived[m.seq] = true
		if since, ok := s.waiting[m.seq]; ok {
			delete(s.waiting, m.seq)
			s.waited(m.seq, since)
		}
	}
	rel.after(loadSend, func() {
		if !rel.gone {
			rel.core.Outcome(rel.now, res)
			rel.step()
		}
	})
}

// waited looks at how long an event of the trickle has waited.
func (s *load) waited(seq int64, since time.Duration) {
	bound := s.bound
	if limit, ok := s.limit[seq]; ok {
		bound = limit
	}
	if wait := s.now - max(since, s.excused); wait > bound {
		s.fail("event %d that can be sent has waited for %v at %v, %d relays, %d in the backlog",
			seq, wait.Round(time.Millisecond), s.now.Round(time.Millisecond), s.relays, s.backlog)
	}
}

// add commits n events of the routes that do not work.
func (s *load) add(n int) {
	tx := s.store.Begin()
	for i := range n {
		key := ""
		if s.rnd.IntN(5) > 0 {
			key = fmt.Sprint("dead", s.rnd.IntN(n))
		}
		tx.Write(fmt.Sprint("dead", i%s.dead, "/0"), key)
	}
	tx.Commit()
}

// trickle writes an event that has to get through, and the next one in a while.
func (s *load) trickle() {
	if s.now > loadLasts {
		return
	}
	tx := s.store.Begin()
	seq := tx.Write("well/0", fmt.Sprint("well", s.rnd.IntN(50)))
	s.waiting[seq] = s.now
	s.rel.core.Wake(s.now, tx.Commit())
	s.rel.step()
	s.after(loadTrickle/2+time.Duration(s.rnd.Int64N(int64(loadTrickle))), s.trickle)
}

// play plays the schedule.
func (s *load) play() {
	if s.history > 0 {
		tx := s.store.Begin()
		for i := range s.history {
			tx.Write("well/1", fmt.Sprint("history", i%1000))
		}
		tx.Commit()
		s.excused = loadHeld
		s.after(loadHeld, func() { s.gone = loadGone })
	}
	early := s.rnd.IntN(2) == 0
	if early {
		s.add(s.backlog)
	}
	s.begin()
	s.trickle()
	if !early {
		for i := range 10 {
			s.after(time.Duration(3+i)*time.Second, func() { s.add(s.backlog / 10) })
		}
	}
	if s.big > 0 {
		s.after(20*time.Second, func() { s.commitLate() })
	}
	if s.rnd.IntN(2) == 0 { // best without having been stopped
		s.after(time.Duration(60+s.rnd.IntN(200))*time.Second, s.begin)
	}
	s.after(loadLasts, func() { s.works = true })
	s.until(loadLasts + 5*time.Minute)
	if len(s.broken) == 0 {
		s.check()
	}
}

// until lets happen what happens up to the time at.
func (s *load) until(at time.Duration) {
	for len(s.events) > 0 && len(s.broken) == 0 && s.now < at {
		last := len(s.events) - 1
		e := s.events[last]
		s.events = s.events[:last]
		s.now = e.at
		e.do()
	}
}

// commitLate has a large transaction commit when the trickle beside it was read already.
func (s *load) commitLate() {
	tx := s.store.Begin()
	for i := range s.big {
		tx.Write("well/2", fmt.Sprint("big", i))
	}
	s.after(3*time.Second, func() {
		s.rel.core.Wake(s.now, tx.Commit())
		s.rel.step()
		s.excused = max(s.excused, s.now+time.Duration(s.big)*(loadSend+loadCall))
	})
}

// check looks at what is left, and at how much was read and kept at once.
func (s *load) check() {
	for seq, since := range s.waiting {
		s.waited(seq, since)
	}
	if queued, live := s.store.Left(); queued+live > 0 {
		s.fail("%d queued, %d parked when all routes have worked for long", queued, live)
	}
	if most := 2 * max(s.cfg.FetchSize, 1); s.mostRead > most {
		s.fail("%d rows in one fetch of %d", s.mostRead, s.cfg.FetchSize)
	}
	if most := 2*s.cfg.Window + 2*s.cfg.FetchSize + s.dead*s.limits.stall; s.mostKept > most {
		s.fail("%d events in memory with a window of %d", s.mostKept, s.cfg.Window)
	}
}

// TestSimulateLoad plays schedules of much work, each with a seed of its own. BOXPAIR_SIM_SEED is
// the seed of the first, BOXPAIR_SIM_LOADS how many are played.
func TestSimulateLoad(t *testing.T) {
	t.Parallel()
	seed, loads := simSetting(t, "BOXPAIR_SIM_SEED", 1), simSetting(t, "BOXPAIR_SIM_LOADS", loads)
	var workers sync.WaitGroup
	defer workers.Wait()
	for worker := range uint64(2) {
		workers.Go(func() {
			for i := worker; i < loads; i += 2 {
				s := newLoad(seed + i)
				if s.play(); len(s.broken) > 0 {
					t.Errorf("load %d: %s", s.seed, strings.Join(s.broken[:min(len(s.broken), 3)], "; "))
				}
			}
		})
	}
}
