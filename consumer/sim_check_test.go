package consumer_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

// settled tells whether nothing is left that a process should still do.
func (s *simulation) settled() bool {
	for _, q := range s.queues {
		if !q.empty() {
			return false
		}
	}
	return len(s.db.transactions()) == 0 && !slices.ContainsFunc(s.db.parked, (*simParked).live)
}

func (s *simulation) leftovers() string {
	var b strings.Builder
	for _, q := range s.queues {
		for _, l := range q.lanes {
			for _, m := range l.messages {
				fmt.Fprintf(&b, "%s has %s, held %v; ", q.name, short(m.event.ID), l.held != nil)
			}
		}
	}
	for _, p := range s.db.parked {
		if p.live() {
			fmt.Fprintf(&b, "%s parked %s as %s after %d; ", p.Consumer, short(p.ID), p.State, p.Attempts)
		}
	}
	fmt.Fprintf(&b, "%d transactions, %d processes", len(s.db.transactions()), len(s.processes))
	return b.String()
}

// number returns the number of a queue's consumer.
func (s *simulation) number(queue string) int {
	return 1 + slices.IndexFunc(s.db.consumers, func(c *simConsumer) bool { return c.name == s.cfg.Service+"/"+queue })
}

// kept tells whether a message was applied or is parked, by its ID and content. Nothing
// is known of contents without a digest.
func (s *simulation) kept(number int, id uuid.UUID, digest transport.Digest) bool {
	key := claimKey{number, id}
	return slices.ContainsFunc(s.db.effects, func(e simEffect) bool { return e.claimKey == key && e.digest.Matches(digest) }) ||
		slices.ContainsFunc(s.db.parked, func(p *simParked) bool { return p.content().claimKey == key && p.Digest.Matches(digest) })
}

// acknowledged checks that the broker may forget a message.
func (s *simulation) acknowledged(queue string, e transport.Event) {
	if !s.kept(s.number(queue), e.ID, e.Digest) {
		s.fail("%s acknowledged %s, which is neither applied nor parked", queue, short(e.ID))
	}
}

// verify looks at how it ended.
func (s *simulation) verify() {
	for _, q := range s.queues {
		number := s.number(q.name)
		for _, e := range s.published {
			if !s.kept(number, e.ID, e.Digest) {
				s.fail("%s lost %s", q.name, short(e.ID))
			}
		}
		if s.ordered[q.name] {
			s.verifyOrder(number)
		}
	}
	if !s.wild.crash && !s.wild.stop && !s.wild.statements && !s.wild.outage && !s.wild.starve {
		s.verifyBlame()
		s.verifyKillers()
	}
}

// verifyBlame checks, of a schedule in which only messages do wrong, that nobody is
// dead for another's fault, or too early.
func (s *simulation) verifyBlame() {
	for _, p := range s.db.parked {
		if p.State != inbox.Dead {
			continue
		}
		var starts int
		if _, err := fmt.Sscanf(p.LastError, "begun %d times", &starts); err == nil && s.db.bystander[p.content().claimKey] >= starts {
			continue // new killers came in other handlers each time
		}
		switch s.plans[p.ID].kind {
		case simGood:
			s.fail("%s of %s is dead and did nothing wrong: %s", short(p.ID), p.Consumer, p.LastError)
		case simRejects, simKills:
		default:
			if p.Attempts < s.handler.Retry.MaxAttempts {
				s.fail("%s of %s is dead after %d attempts of %d: %s", short(p.ID), p.Consumer, p.Attempts, s.handler.Retry.MaxAttempts, p.LastError)
			}
		}
	}
}

// verifyKillers checks, of the same schedules, that a message which kills every process is dead
// after a few: each copy once before it is known as redelivered, once beside others and
// MaxSoloStarts times alone. A stored message is not redelivered: each process that runs already may
// die of it once. A process that has returned it to the transport does not suspect it
// when it comes again.
func (s *simulation) verifyKillers() {
	copies := make(map[uuid.UUID]int)
	for _, e := range s.published {
		copies[e.ID]++
	}
	for id, plan := range s.plans {
		if plan.kind != simKills || plan.times != simAlways || s.wild.operators || s.wild.bad {
			continue
		}
		for name, runs := range plan.runs {
			most := copies[id] + 1 + s.handler.Retry.MaxSoloStarts + plan.returned[name]
			if s.stores[strings.TrimPrefix(name, s.cfg.Service+"/")] {
				most += s.most // each process that ran before the message was due
			}
			if runs > most {
				s.fail("%s has killed %d processes by %s, want %d at most", short(id), runs, name, most)
			}
		}
	}
}

// verifyOrder checks that messages of a key were applied in the order in which they were
// published first, except for those that were set aside.
func (s *simulation) verifyOrder(number int) {
	place := make(map[uuid.UUID]int)
	for i, e := range s.published {
		if _, ok := place[e.ID]; !ok {
			place[e.ID] = i
		}
	}
	last := make(map[string]simEffect)
	for _, e := range s.db.effects {
		if e.consumer != number || e.key == "" || s.db.everAside[e.simContent] {
			continue
		}
		if before, ok := last[e.key]; ok && place[e.id] < place[before.id] {
			s.fail("consumer %d, key %s: %s was applied behind %s", number, e.key, short(e.id), short(before.id))
		}
		last[e.key] = e
	}
}

// play plays the schedule of a seed, with the faults, then without.
func play(t *testing.T, seed uint64, trace bool) *simulation {
	var s *simulation
	synctest.Test(t, func(t *testing.T) {
		s = newSimulation(t, seed)
		s.trace = trace
		s.startProcess()
		synctest.Wait()
		for range 150 + s.rnd.IntN(450) {
			s.happen()
			if len(s.broken) > 0 {
				break
			}
		}
		if len(s.broken) == 0 {
			s.drain()
		}
		if len(s.broken) == 0 {
			s.verify()
		}
		for len(s.processes) > 0 {
			s.crash(s.processes[0])
		}
		for _, p := range slices.Clone(s.gone) { // one that was leaving may have calls that nobody answers any more
			if !p.dead {
				s.crash(p)
			}
		}
		for _, p := range s.gone {
			p.wg.Wait()
		}
	})
	return s
}

func setting(t *testing.T, name string, def uint64) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return def
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestSimulate plays BOXPAIR_SIM_SCHEDULES random schedules from BOXPAIR_SIM_SEED on. A
// schedule that broke something is played again alone with its seed, and traced with
// BOXPAIR_SIM_TRACE=1.
func TestSimulate(t *testing.T) {
	schedules := setting(t, "BOXPAIR_SIM_SCHEDULES", 100)
	seed := setting(t, "BOXPAIR_SIM_SEED", rand.Uint64N(1<<32))
	trace := os.Getenv("BOXPAIR_SIM_TRACE") != ""
	var next, violations atomic.Uint64
	if schedules >= 10_000 {
		began := time.Now()
		tick := time.NewTicker(10 * time.Second)
		defer tick.Stop()
		done := make(chan struct{})
		defer close(done)
		go func() {
			for {
				select {
				case <-tick.C:
					n := next.Load()
					fmt.Printf("simulate consumer: %d of %d schedules, %.0f/s, %d violations\n", n, schedules, float64(n)/time.Since(began).Seconds(), violations.Load())
				case <-done:
					return
				}
			}
		}()
	}
	t.Run("schedules", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for i := next.Add(1) - 1; i < schedules && violations.Load() < 10; i = next.Add(1) - 1 {
					if s := play(t, seed+i, trace); len(s.broken) > 0 {
						violations.Add(1)
						fmt.Printf("simulate consumer: violation at seed %d\n", seed+i) // the report comes last
						t.Errorf("BOXPAIR_SIM_SEED=%d BOXPAIR_SIM_SCHEDULES=1: %s", seed+i, strings.Join(s.broken, "; "))
					}
				}
			})
		}
	})
	fmt.Printf("simulate consumer: %d schedules, %d violations, seed %d\n", min(next.Load(), schedules), violations.Load(), seed)
}
