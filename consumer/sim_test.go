package consumer_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

// simulation runs processes of a service through a random schedule, on virtual
// time: statements that take any time, fail before or after they did their work, or commit
// when nobody listens any more; processes that die at any step, or are stopped, lose their
// connections and wake up; messages that come twice, altered, too late or in any order of
// their keys, that fail, hang or kill their process; operators; pauses and a rate limit. Whatever a process does
// to the world waits for its turn, which the schedule gives: one seed, one schedule.
type simulation struct {
	t         *testing.T
	rnd       *rand.Rand
	db        *simDB
	cfg       consumer.Config
	handler   consumer.HandlerConfig
	ordered   map[string]bool
	stores    map[string]bool // handlers that store messages first
	shares    bool            // messages share transactions on the defaults
	most      int             // processes at once
	prefetch  int
	rate      int // of faults: one in so many
	queues    []*simQueue
	processes []*simProcess
	gone      []*simProcess
	named     int
	wild      simFaults
	calm      bool // the faults are over
	down      bool // the database
	trace     bool

	mu    sync.Mutex
	calls []*simCall

	published []transport.Event
	plans     map[uuid.UUID]*simPlan
	troubles  map[uuid.UUID]int // errors of the database that were told
	starts    int               // of handlers
	crashes   int
	faults    int
	broken    []string
}

// simFaults says what may happen in a schedule.
type simFaults struct {
	crash, stop, statements, outage, bad, killers, altered, old, foreign, forget, operators, starve, pauses bool
}

func newSimulation(t *testing.T, seed uint64) *simulation {
	s := &simulation{
		t: t, rnd: rand.New(rand.NewPCG(seed, 43)), plans: make(map[uuid.UUID]*simPlan), troubles: make(map[uuid.UUID]int),
		ordered: make(map[string]bool), stores: make(map[string]bool),
	}
	s.db = &simDB{
		sim: s, claims: make(map[claimKey]*simClaim), attempts: make(map[claimKey]attemptRow),
		everAside: make(map[simContent]bool), askedFor: make(map[claimKey]int),
		begun: make(map[claimKey]map[*simProcess]int), bystander: make(map[claimKey]int),
	}
	flag := func() bool { return s.chance(2) }
	s.wild = simFaults{flag(), flag(), flag(), flag(), flag(), flag(), flag(), flag(), flag(), flag(), flag(), flag(), flag()}
	pick := func(of ...int) int { return of[s.rnd.IntN(len(of))] }
	s.most = pick(1, 3, 3)
	if s.chance(4) { // whoever is blamed then has done it
		s.most = pick(1, 3, 8)
		s.wild.crash, s.wild.stop, s.wild.statements, s.wild.outage, s.wild.starve = false, false, false, false, false
	}
	s.wild.old = s.wild.old && s.wild.forget
	s.cfg = consumer.Config{
		Service: "sim", CacheSize: pick(-1, 1, 4, 100), MaxHold: time.Duration(pick(1, 3)) * time.Second,
		PollInterval: 500 * time.Millisecond, MaxClockStep: 1000 * time.Hour,
	}
	if s.wild.forget {
		s.cfg.Window, s.cfg.ForgetInterval = time.Duration(pick(5, 30))*time.Second, 3*time.Second
	}
	s.handler = consumer.HandlerConfig{
		Topic: "orders", Timeout: 2 * time.Second, LockTimeout: 300 * time.Millisecond,
		Retry: consumer.RetryConfig{QuickAttempts: pick(1, 2, 3), MaxAttempts: pick(2, 5), MaxSoloStarts: pick(1, 3)}, Parked: consumer.ParkedConfig{MinBackoff: 200 * time.Millisecond, MaxBackoff: 2 * time.Second, Concurrency: pick(1, 3)},
	}
	s.handler.Optimistic = flag()
	if s.chance(20) {
		s.handler.MaxPerSecond = 50
	}
	s.prefetch, s.rate = pick(1, 3, 8), pick(3, 12, 30)
	for n := range pick(1, 1, 2) {
		name := fmt.Sprint("handler", n)
		s.queues = append(s.queues, &simQueue{sim: s, name: name})
		s.ordered[name] = flag()
	}
	if !s.handler.Optimistic && s.chance(2) {
		s.handler.Group.Size, s.handler.Group.Concurrency = pick(2, 4, 16), pick(1, 2)
	}
	for _, q := range s.queues {
		s.stores[q.name] = s.chance(3)
	}
	s.shares = flag()
	return s
}

func (s *simulation) chance(n int) bool { return s.rnd.IntN(n) == 0 }

func (s *simulation) tracef(format string, args ...any) {
	if s.trace {
		fmt.Println(time.Now().Format("15:04:05.000000"), fmt.Sprintf(format, args...))
	}
}

func (s *simulation) fail(format string, args ...any) {
	s.tracef("VIOLATION: "+format, args...)
	if len(s.broken) < 20 {
		s.broken = append(s.broken, fmt.Sprintf(format, args...))
	}
}

// sortCalls puts calls in an order that does not depend on how goroutines are
// scheduled.
func (s *simulation) sortCalls(calls []*simCall) {
	slices.SortStableFunc(calls, func(a, b *simCall) int {
		return cmp.Or(cmp.Compare(a.proc.name, b.proc.name), cmp.Compare(a.name, b.name))
	})
}

// waiting returns the calls whose turn it could be.
func (s *simulation) waiting() []*simCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var able []*simCall
	for _, c := range s.calls {
		if !c.proc.stopped.After(now) && (c.ready == nil || c.ready() || c.expired(now)) {
			able = append(able, c)
		}
	}
	s.sortCalls(able)
	return able
}

func (c *simCall) expired(now time.Time) bool {
	return c.fallible && c.ctx.Err() != nil || !c.until.IsZero() && now.After(c.until)
}

// grant lets a call happen, as the schedule wants it.
func (s *simulation) grant(c *simCall) {
	s.mu.Lock()
	s.calls = slices.DeleteFunc(s.calls, func(o *simCall) bool { return o == c })
	s.mu.Unlock()
	fault := 0
	switch {
	case !c.fallible || s.calm:
	case s.down:
		fault = 1
	case s.wild.statements && s.chance(s.rate):
		fault = 1 + s.rnd.IntN(4)
	}
	if fault > 0 {
		s.faults++
	}
	var err error
	if c.tx != nil {
		err = s.commit(c, fault)
	} else {
		err = s.execute(c, fault)
	}
	s.tracef("%s %s: %v", c.proc.name, c.name, err)
	c.done <- err
	synctest.Wait()
}

// execute runs a statement, or lets it fail before or after its work.
func (s *simulation) execute(c *simCall, fault int) error {
	switch {
	case c.fallible && c.ctx.Err() != nil:
		return fmt.Errorf("%w: %w", errOutage, c.ctx.Err())
	case c.ready != nil && !c.ready(), fault == 1 && s.wild.statements && s.chance(2):
		return errConflict
	case fault == 1:
		return errOutage
	}
	c.do()
	if c.proc.dead {
		return errCrashed
	}
	if fault > 1 {
		return errOutage
	}
	return nil
}

// commit ends a transaction. Its outcome may be known, or not; then it may be
// still to come.
func (s *simulation) commit(c *simCall, fault int) error {
	unknown := fmt.Errorf("commit: %w", inbox.ErrCommitUnknown)
	switch {
	case c.tx.gone(): // the database ended it while its process was stopped
		return errOutage
	case c.ctx.Err() != nil, fault == 2:
		c.tx.doubt = true
		return unknown
	case fault == 1:
		c.tx.end(false)
		if s.chance(2) {
			return errConflict
		}
		return errOutage
	case fault == 3:
		c.tx.end(false)
		return unknown
	}
	c.tx.end(true)
	if fault == 4 {
		return unknown
	}
	return nil
}

// notice lets the database find out about a connection that is gone.
func (s *simulation) notice() {
	for _, tx := range s.db.transactions() {
		switch {
		case !s.calm && !s.chance(3):
		case tx.doubt:
			commit := s.chance(2)
			s.tracef("a commit of %s ends: %v", tx.proc.name, commit)
			tx.end(commit)
		case tx.proc.dead, tx.proc.stopped.After(time.Now()):
			tx.end(false)
		}
	}
}

// happen lets one thing of the schedule happen.
func (s *simulation) happen() {
	if len(s.processes) == 0 {
		s.startProcess()
		synctest.Wait()
	}
	switch n := s.rnd.IntN(24); {
	case n < 3:
		s.produce()
	case n < 7:
		s.deliver()
	case n < 8:
		s.disturb()
	case n < 9:
		s.notice()
	case n < 12:
		s.pass()
	default:
		if able := s.waiting(); len(able) > 0 {
			s.grant(able[s.rnd.IntN(len(able))])
		} else {
			s.pass()
		}
	}
	synctest.Wait()
}

// deliver hands something to a process.
func (s *simulation) deliver() {
	p := s.processes[s.rnd.IntN(len(s.processes))]
	if !p.leaving {
		s.queues[s.rnd.IntN(len(s.queues))].deliver(p)
	}
}

// disturb lets something go wrong, or right again.
func (s *simulation) disturb() {
	p := s.processes[s.rnd.IntN(len(s.processes))]
	switch s.rnd.IntN(8) {
	case 0:
		if s.wild.crash {
			s.crash(p)
		}
	case 1:
		if len(s.processes) < s.most {
			s.startProcess()
		}
	case 2:
		if s.wild.stop {
			p.stopped = time.Now().Add(time.Duration(s.rnd.IntN(8000)) * time.Millisecond)
			s.tracef("%s is stopped until %v", p.name, p.stopped)
		}
	case 3:
		if s.wild.stop {
			s.tracef("%s is disconnected", p.name)
			p.disconnect()
		}
	case 4:
		s.down = s.wild.outage && s.chance(2)
	case 5:
		switch {
		case !s.wild.crash:
		case p.leaving:
			s.crash(p) // nobody waits for ever
		case s.chance(3):
			s.tracef("%s is told to end", p.name)
			p.leaving = true
			p.cancel()
		}
	case 6:
		if s.wild.operators {
			s.operate()
		}
	case 7:
		if s.wild.pauses {
			s.pause()
		}
	}
}

// operate does what an operator does: one who does not redrive what was applied.
func (s *simulation) operate() {
	if len(s.db.parked) == 0 {
		return
	}
	row := s.db.parked[s.rnd.IntN(len(s.db.parked))]
	f := inbox.Filter{Consumer: row.Consumer, IDs: []uuid.UUID{row.ID}, States: []inbox.State{row.State}}
	applied := slices.ContainsFunc(s.db.effects, func(e simEffect) bool { return e.claimKey == row.content().claimKey })
	switch {
	case row.State == inbox.Dead, row.State == inbox.TooOldState && !applied:
		s.tracef("redrive %s of %s", short(row.ID), row.Consumer)
		s.db.redrive(f)
	case s.chance(3):
		s.tracef("discard %s of %s", short(row.ID), row.Consumer)
		s.db.discard(f, "no use")
	}
}

// pass lets time go by: unless the schedule may starve, only while nobody waits
// for a turn.
func (s *simulation) pass() {
	d := time.Duration(s.rnd.IntN(200_000)) * time.Microsecond
	switch s.rnd.IntN(12) {
	case 0:
		d = time.Duration(s.rnd.IntN(3000)) * time.Millisecond
	case 1:
		if s.wild.forget {
			d = time.Duration(s.rnd.IntN(60)) * time.Second
		}
	}
	for d > 0 && (s.wild.starve || len(s.waiting()) == 0) {
		slice := d
		if !s.wild.starve {
			slice = min(d, 20*time.Millisecond)
		}
		time.Sleep(slice)
		d -= slice
		synctest.Wait()
	}
}

// drain lets everything calm down and end.
func (s *simulation) drain() {
	s.calm, s.down = true, false
	s.resume()
	for _, p := range s.processes {
		p.stopped = time.Time{}
	}
	for round := 0; !s.settled(); round++ {
		if round > 5000 {
			s.fail("does not drain: %s", s.leftovers())
			return
		}
		s.processes = slices.DeleteFunc(s.processes, func(p *simProcess) bool {
			if p.leaving {
				p.disconnect()
				s.gone = append(s.gone, p)
			}
			return p.leaving
		})
		if len(s.processes) == 0 {
			s.startProcess()
			synctest.Wait()
		}
		s.notice()
		for able := s.waiting(); len(able) > 0; able = s.waiting() {
			s.grant(able[s.rnd.IntN(len(able))])
		}
		for _, p := range slices.Clone(s.processes) {
			for _, q := range s.queues {
				for !p.leaving && q.deliver(p) {
					synctest.Wait()
				}
			}
		}
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
	}
}
