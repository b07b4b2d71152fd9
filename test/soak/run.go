package soak

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/boxpair/boxpair/test/faults/servers"
	"github.com/boxpair/boxpair/test/faults/system"
)

// settings are the settings of a PostgreSQL server that must keep its data.
var settings = []string{
	"fsync=on", "full_page_writes=on", "synchronous_commit=on", "wal_level=replica",
	"work_mem=64MB", "max_connections=400", "shared_buffers=256MB", "max_wal_size=2GB",
}

const (
	tellEvery = 5 * time.Second
	lookEvery = 500 * time.Millisecond
	stopLimit = 30 * time.Second
)

// Run runs a soak. On an error the soak did not reach its end; otherwise its findings are in the
// report.
func Run(ctx context.Context, cfg Config) (report *Report, err error) {
	if cfg, err = cfg.withDefaults(); err != nil {
		return nil, fmt.Errorf("soak: %w", err)
	}
	s, err := servers.Start(ctx, servers.Config{Settings: settings})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	sys, err := system.New(ctx, s, system.Config{Dir: cfg.Dir, NoWire: true, AsTold: cfg.Batches, Proxies: true, DrainLimit: cfg.DrainLimit})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sys.Close(context.WithoutCancel(ctx))) }()
	c, err := newCopier(sys)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.publisher.Close()) }()
	o, err := newOperations(sys)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, o.forget()) }()
	if err := keepOrigins(ctx, sys); err != nil {
		return nil, err
	}
	r := &run{
		cfg: cfg, sys: sys, copier: c, operations: o, fleet: newFleet(sys, &cfg), watch: newWatch(sys, cfg.Backlog, o.written),
	}
	defer r.watch.close()
	r.watch.batch = 1
	if cfg.Batches {
		r.watch.batch = batchSize
	}
	r.faults = newFaults(sys, r.fleet, cfg.Seed)
	return r.run(ctx)
}

// hopeless is how many processes may end by themselves before a soak is aborted. Refused settings,
// for example, end every process.
const hopeless = 50

// run is one soak.
type run struct {
	cfg        Config
	sys        *system.System
	fleet      *fleet
	faults     *faults
	copier     *copier
	operations *operations
	watch      *watch
	begun      time.Time

	unheardLost, unheardUnordered int64
}

func (r *run) run(ctx context.Context) (*Report, error) {
	if err := r.fleet.start(ctx); err != nil {
		return nil, err
	}
	r.begun = time.Now()
	r.load(ctx)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	lasted := time.Since(r.begun)
	r.tell("faults are over")
	// Without the wait for the rest, copies could be made of events that a stopped or killed chain
	// has not sent yet.
	drain, drained, err := r.drain(ctx)
	if err != nil {
		return nil, err
	}
	r.tell(fmt.Sprintf("at rest after %.1f s", drain.Seconds()))
	began := time.Now()
	found, err := verify(ctx, r.sys)
	if err != nil {
		return nil, err
	}
	report := r.report(found)
	report.Verified = round(time.Since(began).Seconds())
	report.Seconds, report.Rate = round(lasted.Seconds()), round(float64(found.messages)/lasted.Seconds())
	report.Drained, report.Drain = drained, round(drain.Seconds())
	report.Versions, report.Settings = r.versions(ctx), r.settings(ctx)
	report.judge(&r.cfg, slices.Concat(found.late, r.fleet.failed, r.faults.failed))
	return report, nil
}

// patience is how many times the requested time a soak may last. A host whose disk stands still for
// a while gets the time to do the required work.
const patience = 3

// load runs load and faults for the requested time, and then until enough work was done.
func (r *run) load(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience*r.cfg.Duration)
	defer cancel()
	p := r.cfg.pace()
	r.faults.start(ctx, p)
	r.operations.start(ctx, &r.faults.wg, p)
	rnd := rand.New(rand.NewPCG(r.cfg.Seed, math.MaxUint64))
	r.faults.wg.Go(func() {
		for sleep(ctx, p.copies) {
			r.copier.inject(ctx, rnd, copiesAtOnce)
		}
	})
	told := time.Now()
	for sleep(ctx, lookEvery) {
		r.watch.look(ctx)
		r.watch.brake(ctx)
		if time.Since(told) >= tellEvery {
			told = time.Now()
			r.tell("")
		}
		if n := r.fleet.failures(); n >= hopeless {
			r.tell(fmt.Sprintf("broken off, since %d processes have ended by themselves", n))
			cancel()
		}
		if time.Since(r.begun) >= r.cfg.Duration && r.enough() {
			cancel()
		}
	}
	r.faults.wg.Wait()
}

// enough tells whether the required work is done.
func (r *run) enough() bool {
	return len(r.report(&findings{messages: r.watch.placed}).needs(r.cfg.Duration)) == 0
}

// drain stops the producers, declares the missing queue, and stops all other processes when no work
// is left.
func (r *run) drain(ctx context.Context) (took time.Duration, drained bool, err error) {
	for _, p := range []interface{ Heal() }{r.sys.Outbox, r.sys.Inbox, r.sys.Broker} {
		p.Heal()
	}
	began := time.Now()
	stopping, cancel := context.WithTimeout(ctx, stopLimit)
	r.fleet.stop(stopping, "producer")
	cancel()
	hearing, heard := context.WithTimeout(ctx, r.cfg.DrainLimit)
	defer heard()
	var wg sync.WaitGroup
	wg.Go(func() { r.unheardLost, r.unheardUnordered, err = r.operations.hear(hearing) })
	_, drained = r.watch.rest(ctx, r.cfg.DrainLimit)
	took = time.Since(began)
	wg.Wait()
	stopping, cancel = context.WithTimeout(ctx, stopLimit)
	defer cancel()
	r.fleet.stop(stopping, "")
	r.fleet.wg.Wait()
	return took, drained, err
}

func (r *run) tell(what string) {
	c := r.fleet.soFar()
	r.fleet.mu.Lock()
	kills := r.fleet.kills
	r.fleet.mu.Unlock()
	if what != "" {
		what += ": "
	}
	_, _ = fmt.Fprintf(r.cfg.Progress, "%5.0f s: %s%s\n", time.Since(r.begun).Seconds(), what,
		r.watch.line(&c, kills, r.faults, r.copier.injected))
}

func (r *run) report(f *findings) *Report {
	c := r.fleet.soFar()
	r.fleet.mu.Lock()
	defer r.fleet.mu.Unlock()
	r.operations.mu.Lock()
	defer r.operations.mu.Unlock()
	m := &r.fleet.memory
	report := &Report{
		Seed: r.cfg.Seed, Batches: r.cfg.Batches, Stored: r.cfg.StoreFirst, Messages: f.messages,
		Kills: r.fleet.kills, Stops: r.faults.counted("stop"), PGCrashes: r.faults.counted("postgres"),
		RabbitKill: r.faults.counted("rabbit"), Partitions: r.faults.counted("partition"), Injected: r.copier.injected,
		Pauses: r.faults.counted("pause"), Misbehaved: c.misbehaved,
		Deploys: r.faults.counted("deploy"), Unheard: r.operations.unheard, Replayed: r.operations.replayed,
		Redriven: r.operations.redriven, RedrivenLate: f.redriven, Discarded: r.operations.discarded, Removed: c.removed,
		Seen: max(c.suppressed, int64(r.copier.injected)), Suppressed: c.suppressed, ByWindow: c.byWindow,
		Lost: f.lost + r.unheardLost, Repeated: f.repeated, Unordered: f.unordered + r.unheardUnordered, Phantom: f.phantom, Torn: f.torn, Unclaimed: f.unclaimed,
		Parked: f.aside, Unknown: c.unknown, SoloStarts: c.starts,
		Stall: round(r.watch.stall.Seconds()), Slowest: round(f.most), P50: round(f.p50), P99: round(f.p99),
		RSSSlope: round(m.all.perMinute() / (1 << 20)), RSSError: round(m.all.standardError() / (1 << 20)), RSSMinutes: round(m.all.minutes),
		PeakHeapMB: make(map[string]float64),
	}
	for role, bytes := range m.peaks {
		report.PeakHeapMB[role] = round(float64(bytes) / (1 << 20))
	}
	return report
}

func round(f float64) float64 { return math.Round(f*100) / 100 }

func (r *run) versions(ctx context.Context) map[string]string {
	v := map[string]string{
		"go": runtime.Version(), "cores": fmt.Sprint(runtime.NumCPU()), "os": runtime.GOOS + "/" + runtime.GOARCH,
		"postgresql": r.show(ctx, "server_version"),
	}
	if _, err := r.watch.queued(); err == nil {
		v["rabbitmq"], _ = r.watch.conn.Properties["version"].(string)
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v["commit"] = s.Value
			}
		}
	}
	return v
}

func (r *run) settings(ctx context.Context) map[string]string {
	s := map[string]string{"queue": "quorum, single active consumer", "rabbitmq": "fsync of its log before a confirm, as delivered"}
	for _, name := range []string{"fsync", "full_page_writes", "synchronous_commit", "wal_sync_method"} {
		s["postgresql "+name] = r.show(ctx, name)
	}
	return s
}

func (r *run) show(ctx context.Context, name string) (value string) {
	_ = r.sys.OutboxPool().QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&value)
	return value
}
