package soak

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/boxpair/boxpair/test/faults/child"
	"github.com/boxpair/boxpair/test/faults/system"
)

// fleet is the processes of the chain. A killed process is started again at once.
type fleet struct {
	sys     *system.System
	members []*member
	wg      sync.WaitGroup

	mu     sync.Mutex
	kills  int
	spared int // index of the member that is currently not killed
	counts counts
	memory memory
	failed []string
}

// rarities say how rarely a handler misbehaves: once in so many messages it fails, swallows the
// error of a statement, panics, ends its transaction, hangs, or refuses the message for ever.
type rarities struct{ fail, swallow, panics, end, hang, doom int }

var (
	each = rarities{997, 1499, 2503, 5003, 25_013, 10_007}
	// In a set of messages the misbehaving one is found by halving, which costs as much as several
	// sets.
	sets = rarities{9973, 14_983, 25_031, 20_011, 100_003, 50_051}
)

// batchSize is how many events relays put into a message with Config.Batches.
const batchSize = 16

// overrun is the deadline of a handler, which a hanging handler exceeds.
const overrun = 3 * time.Second

// counts are the last reports of processes. The work of a killed process since its last report is
// missing, so counts are lower bounds.
type counts struct {
	applied, suppressed, byWindow, unknown, troubles, parked, starts, orders, removed int64

	misbehaved map[string]int64
}

// member is a succession of processes under one name.
type member struct {
	name string
	cfg  child.Config

	mu     sync.Mutex
	proc   *child.Process
	born   time.Time
	over   bool // do not start it again
	paused bool // an operator ended it, and will start it again
}

func newFleet(sys *system.System, cfg *Config) *fleet {
	f := &fleet{sys: sys, spared: -1, counts: counts{misbehaved: make(map[string]int64)}}
	commit, window, batch, group, prefetch, rare := 200, 500, [2]int{1, 32}, 32, 0, each
	if cfg.Batches {
		// The prefetched messages of a killed consumer are delivered again: here a few small
		// batches.
		commit, window, batch, group, prefetch, rare = 500, 2000, [2]int{batchSize, batchSize}, 64, 64, sets
	}
	if cfg.StoreFirst {
		group = 1
	}
	for i := range 2 {
		n := strconv.Itoa(i + 1)
		f.add(child.Config{
			Name: "producer-" + n, Roles: []child.Role{child.Producer}, Producer: "p" + n,
			Bulk: true, Batch: commit, Keys: cfg.Keys, PayloadBytes: 100,
		})
		f.add(child.Config{
			Name: "relay-" + n, Roles: []child.Role{child.Relay}, Window: window, Envelope: true, BatchSize: batch[i],
		})
		f.add(child.Config{
			Name: "consumer-" + n, Roles: []child.Role{child.Consumer}, Lean: true, InFlight: 64, Prefetch: prefetch, CacheSize: 1 << 16,
			Group: group, Set: !cfg.StoreFirst && (i == 1 || cfg.Batches), // otherwise the handler is called for each message
			Fail: rare.fail, Swallow: rare.swallow, Panic: rare.panics, End: rare.end, Hang: rare.hang, Doom: rare.doom, Timeout: overrun,
			// Processes are killed regardless of the message that they handle.
			StoreFirst: cfg.StoreFirst, MaxSoloStarts: 50, MaxHold: time.Minute,
		})
	}
	f.add(child.Config{Name: "janitor", Roles: []child.Role{child.Janitor}, Retention: retention})
	return f
}

func (f *fleet) add(cfg child.Config) {
	cfg.Quiet, cfg.GOMAXPROCS = true, 2
	f.members = append(f.members, &member{name: cfg.Name, cfg: cfg})
}

// start starts all members and keeps them running until ctx ends or [fleet.stop].
func (f *fleet) start(ctx context.Context) error {
	for _, m := range f.members {
		if err := f.launch(ctx, m); err != nil {
			return err
		}
		f.wg.Go(func() { f.keep(ctx, m) })
	}
	return nil
}

func (f *fleet) launch(ctx context.Context, m *member) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return nil
	}
	p, err := f.sys.Start(ctx, m.cfg, "")
	if err != nil {
		return fmt.Errorf("start %s: %w", m.name, err)
	}
	m.proc, m.born = p, time.Now()
	return nil
}

// keep restarts a member whenever its process has ended.
func (f *fleet) keep(ctx context.Context, m *member) {
	for {
		p, _ := m.now()
		<-p.Ended()
		f.said(m, p)
		if m.ended() || ctx.Err() != nil {
			return
		}
		if err := p.Killed(ctx); err != nil && !m.rests(ctx) { // only a kill may end a process
			f.fail(err.Error())
		}
		if err := f.launch(ctx, m); err != nil {
			f.fail(err.Error())
			return
		}
	}
}

func (m *member) now() (*child.Process, time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.proc, m.born
}

func (m *member) ended() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.over
}

// pause stops a member in order unless it is spared, and tells whether the member was stopped.
func (f *fleet) pause(ctx context.Context, m *member) bool {
	f.mu.Lock()
	spared := f.spared >= 0 && f.members[f.spared] == m
	f.mu.Unlock()
	if spared {
		return false
	}
	m.mu.Lock()
	p := m.proc
	m.paused = true
	m.mu.Unlock()
	return p.Terminate(ctx) == nil
}

// rests waits while the member is paused, and tells whether it was paused.
func (m *member) rests(ctx context.Context) bool {
	m.mu.Lock()
	paused := m.paused
	m.paused = false
	m.mu.Unlock()
	if paused {
		sleep(ctx, pauseFor)
	}
	return paused
}

func (f *fleet) fail(text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = append(f.failed, text)
}

// failures returns how many processes ended by themselves or could not be started.
func (f *fleet) failures() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.failed)
}

// said adds the last report of an ended process to the counts.
func (f *fleet) said(m *member, p *child.Process) {
	r := p.Last()
	if r == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts.add(r)
	f.memory.peak(m.name, r.PeakHeap)
	if r.Leaked != "" {
		f.failed = append(f.failed, m.name+" leaked: "+r.Leaked)
	}
}

func (c *counts) add(r *child.Report) {
	c.orders += r.Placed
	c.removed += r.Removed
	for how, n := range r.Misbehaved {
		c.misbehaved[how] += n
	}
	for _, h := range r.Handlers {
		c.applied += h.Applied
		c.suppressed += h.Duplicates()
		c.byWindow += h.DuplicatesByWindow
		c.unknown += h.CommitsUnknown
		c.troubles += h.DatabaseErrors
		c.starts += h.SoloStarts
		c.parked += h.Parked + h.Followed
	}
}

// soFar returns the counts of ended and running processes.
func (f *fleet) soFar() counts {
	f.mu.Lock()
	c := f.counts
	c.misbehaved = maps.Clone(c.misbehaved)
	f.mu.Unlock()
	for _, m := range f.members {
		p, _ := m.now()
		select {
		case <-p.Ended():
		default:
			if r := p.Last(); r != nil {
				c.add(r)
			}
		}
	}
	return c
}

// kill kills a member with SIGKILL unless the member is spared.
func (f *fleet) kill(i int) {
	f.mu.Lock()
	spared := f.spared
	f.mu.Unlock()
	if i == spared {
		i = (i + 1) % len(f.members)
	}
	p, _ := f.members[i].now()
	select {
	case <-p.Ended():
		return
	default:
	}
	p.Kill()
	f.mu.Lock()
	f.kills++
	f.mu.Unlock()
}

func (f *fleet) spare(i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.spared = i
}

// freeze stops a member's process with SIGSTOP for d.
func (f *fleet) freeze(ctx context.Context, m *member, d time.Duration) {
	p, _ := m.now()
	_ = p.Signal(syscall.SIGSTOP)
	sleep(ctx, d)
	_ = p.Signal(syscall.SIGCONT)
}

// stop stops, in order, the members whose names begin with prefix.
func (f *fleet) stop(ctx context.Context, prefix string) {
	var wg sync.WaitGroup
	for _, m := range f.members {
		if !strings.HasPrefix(m.name, prefix) {
			continue
		}
		m.mu.Lock()
		m.over = true
		p := m.proc
		m.mu.Unlock()
		wg.Go(func() {
			if _, err := p.Stop(ctx); err != nil {
				f.fail(err.Error())
			}
		})
	}
	wg.Wait()
}

// resident returns the memory of a process in bytes, or 0 if it is unknown.
func resident(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseFloat(fields[1], 64)
	return pages * float64(os.Getpagesize())
}

// sleep waits for d, and returns false if ctx ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
