package core

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestSimulate plays random schedules, each with a seed of its own: faults first, then calm, in
// which everything has to be delivered. BOXPAIR_SIM_SCHEDULES says how many, and BOXPAIR_SIM_SEED
// the seed of the first; with BOXPAIR_SIM_TRACE=1 every step is printed.
func TestSimulate(t *testing.T) {
	t.Parallel()
	run := simRun{t: t, began: time.Now(), schedules: simSetting(t, "BOXPAIR_SIM_SCHEDULES", schedules), seed: simSetting(t, "BOXPAIR_SIM_SEED", 1)}
	run.loud = os.Getenv("BOXPAIR_SIM_SCHEDULES") != ""
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(run.work)
	}
	workers.Wait()
	if run.total.Faults() == 0 || run.total.Deliveries == 0 {
		t.Error("nothing happened")
	}
	run.report()
}

func simSetting(t *testing.T, name string, def uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return def
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// simRun is a run of many schedules.
type simRun struct {
	t               *testing.T
	began           time.Time
	schedules, seed uint64
	loud            bool

	next atomic.Uint64

	mu         sync.Mutex
	done       uint64
	violations int
	total      simCounts
	shown      time.Time
}

const simEnough = 10 // violations, beyond which a run ends

func (r *simRun) work() {
	for {
		n := r.next.Add(1) - 1
		if n >= r.schedules {
			return
		}
		s := newSimulation(r.t, r.seed+n)
		s.trace = os.Getenv("BOXPAIR_SIM_TRACE") == "1"
		s.play()
		if !r.take(s) {
			return
		}
	}
}

// take books a schedule and tells whether to go on.
func (r *simRun) take(s *simulation) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done++
	r.total.add(s.counts)
	if len(s.broken) > 0 {
		r.violations++
		r.t.Errorf("seed %d: %s\nalone: make simulate SCHEDULES=1 SEED=%d TRACE=1", s.seed, strings.Join(s.broken[:min(len(s.broken), 5)], "; "), s.seed)
		if r.loud {
			fmt.Printf("simulate: violation at seed %d: %s; alone: make simulate SCHEDULES=1 SEED=%d TRACE=1\n", s.seed, s.broken[0], s.seed)
		}
	}
	if r.loud && time.Since(r.shown) > 10*time.Second {
		r.shown = time.Now()
		rate := float64(r.done) / time.Since(r.began).Seconds()
		fmt.Printf("simulate: %d of %d schedules, %.0f/s, %d violations\n", r.done, r.schedules, rate, r.violations)
	}
	return r.violations < simEnough
}

func (r *simRun) report() {
	if !r.loud {
		return
	}
	text, err := json.Marshal(struct {
		Package    string  `json:"package"`
		Schedules  uint64  `json:"schedules"`
		Violations int     `json:"violations"`
		Seed       uint64  `json:"seed"`
		Seconds    float64 `json:"seconds"`
		simCounts
	}{"producer", r.done, r.violations, r.seed, time.Since(r.began).Round(time.Millisecond).Seconds(), r.total})
	if err != nil {
		r.t.Fatal(err)
	}
	fmt.Printf("%s\nsimulate: %d schedules, %d violations, seed %d\n", text, r.done, r.violations, r.seed)
}

// simCounts says how much happened.
type simCounts struct {
	Steps       int `json:"steps"`
	Events      int `json:"events"`
	Deliveries  int `json:"deliveries"`
	Relays      int `json:"relays"`
	Crashes     int `json:"crashes"`
	Stops       int `json:"stops"`      // as by SIGSTOP
	Shutdowns   int `json:"shutdowns"`  // as by SIGTERM
	Statements  int `json:"statements"` // that failed, before or after their work
	Outages     int `json:"outages"`    // messages whose outcome got lost
	Refusals    int `json:"refusals"`   // messages
	Channels    int `json:"channels"`   // that broke
	Batches     int `json:"batches"`    // that were not taken
	Operations  int `json:"operations"` // that changed something
	LateCommits int `json:"late_commits"`
	Deferrals   int `json:"deferrals"`
	FailOvers   int `json:"fail_overs"`
	Witnesses   int `json:"witnesses"` // that ended while their relay went on
	Expiries    int `json:"expiries"`  // statements that ended leases
	Rested      int `json:"rested"`    // stops of relays that did not notice
}

func (a *simCounts) add(b simCounts) {
	a.Steps += b.Steps
	a.Events += b.Events
	a.Deliveries += b.Deliveries
	a.Relays += b.Relays
	a.Crashes += b.Crashes
	a.Stops += b.Stops
	a.Shutdowns += b.Shutdowns
	a.Statements += b.Statements
	a.Witnesses += b.Witnesses
	a.Expiries += b.Expiries
	a.Rested += b.Rested
	a.Batches += b.Batches
	a.Outages += b.Outages
	a.Refusals += b.Refusals
	a.Channels += b.Channels
	a.Operations += b.Operations
	a.LateCommits += b.LateCommits
	a.Deferrals += b.Deferrals
	a.FailOvers += b.FailOvers
}

// Faults returns how many things went wrong.
func (a *simCounts) Faults() int {
	return a.Crashes + a.Stops + a.Statements + a.Outages + a.Refusals + a.Channels + a.FailOvers
}
