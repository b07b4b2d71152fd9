package core

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer/relay/internal/memstore"
	"github.com/boxpair/boxpair/transport"
)

// turns is a schedule of a relay beside routes that take only few of their events: the good ones,
// which lie among bad ones in the queue and among the parked events. Each good event, and each event
// of a route that works, has to get through within a bound, whatever goes on besides: routes that
// work now and again, late commits, statements that fail, queues that are read again, relays that
// die. One seed, one schedule.
type turns struct {
	*load
	outcome  map[string]transport.Outcome // of the bad events of a route
	good     map[int64]bool
	interval time.Duration // between two events that a flapping route takes
	free     time.Duration // when a flapping route takes the next one
	bad      int
	shards   int // the events lie in so many
	late     int // events of a transaction that commits late
	fails    map[string]float64
}

const (
	turnsLast    = 8 * time.Minute
	turnsTrickle = time.Second // between two events of a route that works
)

func newTurns(seed uint64) *turns {
	s := &turns{
		load: &load{
			seed: seed, rnd: rand.New(rand.NewPCG(seed, 23)),
			waiting: make(map[int64]time.Duration), last: make(map[string]int64), arrived: make(map[int64]bool), limit: make(map[int64]time.Duration),
		},
		outcome: make(map[string]transport.Outcome), good: make(map[int64]bool),
	}
	pick := func(of ...int) int { return of[s.rnd.IntN(len(of))] }
	s.store = memstore.New(func() time.Duration { return s.now })
	s.cfg = Options{
		Window: pick(20, 50, 300), FetchSize: pick(20, 100, 1000), MaxAttempts: 1_000_000, RouteProbeInterval: time.Second,
		Backoff: Backoff{Initial: time.Second, Max: time.Duration(pick(1, 60)) * time.Second},
	}
	s.limits = defaultLimits
	s.limits.stall, s.limits.due, s.limits.page = pick(4, 8, 32), pick(10, 50, 256), pick(4, 16, 128)
	s.limits.sweep = time.Duration(pick(10, 300)) * time.Second
	s.row = time.Duration(pick(5, 50, 500)) * time.Microsecond
	s.bad, s.shards = pick(5, 12, 25), pick(1, 3, idgen.Shards)
	s.late = pick(0, 0, 5, 30)
	if pick(0, 1) == 1 {
		s.interval = time.Duration(pick(300, 500, 3000)) * time.Millisecond
	}
	if pick(0, 0, 1) == 1 {
		s.fails = map[string]float64{"Undefer": []float64{0.1, 1}[s.rnd.IntN(2)], "Fetch": 0.02, "Due": 0.02}
	}
	s.store.Fail = func(method string) error {
		if p := s.fails[method]; p > 0 && s.rnd.Float64() < p {
			return errors.New("statement failed")
		}
		return nil
	}
	s.answer = s.reply
	return s
}

// reply is what the broker says of a message.
func (s *turns) reply(m rigSend) transport.Result {
	route, _, _ := strings.Cut(m.topic, "/")
	if bad, ok := s.outcome[route]; ok && !s.good[m.seq] && !s.works {
		return transport.Result{Outcome: bad, Err: errors.New("no")}
	}
	if route == "flap" && !s.works {
		if s.now < s.free {
			return transport.Result{Outcome: transport.Refused, Err: errors.New("full")}
		}
		s.free = s.now + s.interval
	}
	return transport.Result{Outcome: transport.Confirmed}
}

// key returns a key in one of the shards that are used.
func (s *turns) key(name string) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint(name, "/", i); idgen.Shard(key, [16]byte{}) < s.shards {
			return key
		}
	}
}

// awaited has an event that has to get through within a bound.
func (s *turns) awaited(seq int64, bound time.Duration) {
	s.waiting[seq], s.limit[seq] = s.now, bound
}

// fill commits the events of the routes that do not work.
func (s *turns) fill() {
	routes := 1 + s.rnd.IntN(3)
	// An event is probed in a second, a lap or a pass over the due events gives a few events their
	// turns, and a route that has worked in between begins anew.
	bound := 3*time.Minute + time.Duration(10*s.bad)*time.Second
	outcomes := []transport.Outcome{transport.Refused, transport.Returned, transport.Unavailable}
	for r := range routes {
		name := fmt.Sprint("sick", r)
		s.outcome[name] = outcomes[s.rnd.IntN(len(outcomes))]
		parked := s.rnd.IntN(3) == 0
		lucky := s.rnd.IntN(s.bad)
		if s.outcome[name] == transport.Unavailable { // of no event of the route
			lucky = -1
		}
		for i := range s.bad {
			key := s.key(fmt.Sprint(name, i))
			var seq int64
			if parked && s.rnd.IntN(2) == 0 {
				seq = s.store.ParkDue(name, key)
			} else {
				seq = s.store.Add(name, key)
			}
			if i == lucky {
				s.good[seq] = true
				s.awaited(seq, bound)
			}
		}
	}
	if s.interval > 0 {
		for i := range 100 {
			s.store.Add("flap", s.key(fmt.Sprint("flap", i%40)))
		}
		s.after(s.interval, s.flap)
	}
}

// flap adds as many events as the route takes.
func (s *turns) flap() {
	if s.now > turnsLast {
		return
	}
	s.store.Add("flap", s.key(fmt.Sprint("flap", s.rnd.IntN(40))))
	s.after(s.interval, s.flap)
}

// trickle writes an event of a route that works, now and then one that is parked or deferred.
func (s *turns) trickle() {
	if s.now > turnsLast {
		return
	}
	key := s.key(fmt.Sprint("well", s.rnd.IntN(20)))
	const bound = 30 * time.Second
	switch s.rnd.IntN(10) {
	case 0:
		s.awaited(s.store.ParkDue("well", key+"/parked"), bound+dueSafety)
	case 1:
		if s.fails["Undefer"] < 1 {
			seq := s.store.AddDeferred("well", key+"/deferred", s.now+time.Second)
			s.awaited(seq, bound+time.Second)
		}
	default:
		tx := s.store.Begin()
		s.awaited(tx.Write("well", key), bound)
		for range s.late {
			tx.Write("well", s.key("late"))
		}
		s.after(time.Duration(s.rnd.IntN(400))*time.Millisecond, func() {
			s.rel.core.Wake(s.now, tx.Commit())
			s.rel.step()
		})
	}
	s.after(turnsTrickle/2+time.Duration(s.rnd.Int64N(int64(turnsTrickle))), s.trickle)
}

// rewind has a queue read again from somewhere.
func (s *turns) rewind() {
	if sh := s.rel.core.shards[s.rnd.IntN(s.shards)]; sh != nil && sh.open() && sh.low > 0 {
		sh.rewind(s.rnd.Int64N(sh.low))
		s.rel.step()
	}
}

func (s *turns) play() {
	s.fill()
	s.begin()
	s.excused = 0
	s.trickle()
	every := func(d time.Duration, do func()) {
		var again func()
		again = func() {
			if s.now < turnsLast {
				do()
				s.after(d/2+time.Duration(s.rnd.Int64N(int64(d))), again)
			}
		}
		s.after(d, again)
	}
	if s.rnd.IntN(3) == 0 {
		every(5*time.Second, s.rewind)
	}
	if s.rnd.IntN(3) == 0 {
		every(5*time.Minute, s.begin)
	}
	every(5*time.Second, s.watch)
	s.after(turnsLast, func() { s.works, s.fails = true, nil })
	s.until(turnsLast + 20*time.Minute)
	if len(s.broken) > 0 {
		return
	}
	if queued, live := s.store.Left(); queued+live > 0 {
		s.fail("%d queued, %d parked when all routes have worked for long", queued, live)
	}
	if n := len(s.rel.core.routes.stalled); n > 0 {
		s.fail("%d routes are stalled and nothing waits", n)
	}
}

func (s *turns) String() string {
	return fmt.Sprintf("window %d, fetch %d, stall %d, due %d, page %d, sweep %v, row %v, backoff %v, %d bad, %d shards, %d late, flaps %v, fails %v, outcomes %v",
		s.cfg.Window, s.cfg.FetchSize, s.limits.stall, s.limits.due, s.limits.page, s.limits.sweep, s.row, s.cfg.Backoff.Max, s.bad, s.shards, s.late, s.interval, s.fails, s.outcome)
}

// watch looks for events that have waited for too long.
func (s *turns) watch() {
	for seq, since := range s.waiting {
		s.waited(seq, since)
	}
}

// TestSimulateTurns plays schedules of turns, each with a seed of its own. BOXPAIR_SIM_SEED is the
// seed of the first, BOXPAIR_SIM_TURNS how many are played.
func TestSimulateTurns(t *testing.T) {
	t.Parallel()
	seeds := make(chan uint64)
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			for seed := range seeds {
				s := newTurns(seed)
				if s.play(); len(s.broken) > 0 {
					t.Errorf("turns %d: %s: %s", s.seed, s, strings.Join(s.broken[:min(len(s.broken), 3)], "; "))
				}
			}
		})
	}
	first := simSetting(t, "BOXPAIR_SIM_SEED", 1)
	for i := range simSetting(t, "BOXPAIR_SIM_TURNS", turnsPlayed) {
		seeds <- first + i
	}
	if first == 1 {
		for _, seed := range turnsFound {
			seeds <- seed
		}
	}
	close(seeds)
	workers.Wait()
}
