package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/boxpair/boxpair/test/faults/proxy"
	"github.com/boxpair/boxpair/test/faults/system"
)

// faults injects faults until its context ends. Each kind has its own pace, and its own random
// numbers from the seed.
type faults struct {
	sys   *system.System
	fleet *fleet
	seed  uint64
	begun time.Time
	wg    sync.WaitGroup

	mu     sync.Mutex
	done   map[string]int
	failed []string
}

func newFaults(sys *system.System, f *fleet, seed uint64) *faults {
	return &faults{sys: sys, fleet: f, seed: seed, begun: time.Now(), done: make(map[string]int)}
}

// start starts the faults; the caller waits for wg after ctx has ended.
func (f *faults) start(ctx context.Context, p pace) {
	f.every(ctx, "kill", p.kill, f.kill)
	f.every(ctx, "stop", p.stop, f.stop)
	f.every(ctx, "pause", p.pause, f.pause)
	f.every(ctx, "postgres", p.postgres, f.postgres)
	f.every(ctx, "rabbit", p.rabbit, f.rabbit)
	f.every(ctx, "partition", p.partition, f.partition)
	f.every(ctx, "deploy", p.deploy, f.deploy)
	f.wg.Go(func() { f.spare(ctx) })
}

// every calls do repeatedly, on average once every mean, and first after half of mean.
func (f *faults) every(ctx context.Context, kind string, mean time.Duration, do func(context.Context, *rand.Rand) error) {
	var salt uint64
	for _, b := range []byte(kind) {
		salt = salt<<8 | uint64(b)
	}
	rnd := rand.New(rand.NewPCG(f.seed, salt))
	f.wg.Go(func() {
		next := time.Now().Add(mean / 2)
		for sleep(ctx, time.Until(next)) {
			next = time.Now().Add(mean/2 + rand2(rnd, mean))
			if err := do(ctx, rnd); err != nil && ctx.Err() == nil {
				f.fail(fmt.Sprintf("%s: %v", kind, err))
			}
		}
	})
}

func rand2(rnd *rand.Rand, d time.Duration) time.Duration { return time.Duration(rnd.Int64N(int64(d))) }

func (f *faults) fail(text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = append(f.failed, text)
}

func (f *faults) count(kind string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done[kind]++
}

func (f *faults) counted(kind string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.done[kind]
}

// kill kills consumers half as often as other members: a consumer needs time to handle redelivered
// messages one by one.
func (f *faults) kill(_ context.Context, rnd *rand.Rand) error {
	i := rnd.IntN(len(f.fleet.members))
	if strings.HasPrefix(f.fleet.members[i].name, "consumer") && rnd.IntN(2) == 0 {
		i = rnd.IntN(len(f.fleet.members))
	}
	f.fleet.kill(i)
	return nil
}

// deploy kills all consumers and relays at once, like a deployment that does not wait for them: all
// prefetched messages are delivered again.
func (f *faults) deploy(context.Context, *rand.Rand) error {
	for i, m := range f.fleet.members {
		if !strings.HasPrefix(m.name, "producer") {
			f.fleet.kill(i)
		}
	}
	f.count("deploy")
	return nil
}

// stop freezes a relay or a consumer for longer than a lease.
func (f *faults) stop(ctx context.Context, rnd *rand.Rand) error {
	f.count("stop")
	f.fleet.freeze(ctx, f.any(rnd), stopFor)
	return nil
}

// any returns a member that is not a producer.
func (f *faults) any(rnd *rand.Rand) *member {
	for {
		if m := f.fleet.members[rnd.IntN(len(f.fleet.members))]; !strings.HasPrefix(m.name, "producer") {
			return m
		}
	}
}

// pause makes an operator stop a process in order, and start it some time later. If the chosen
// process is spared or has just died, another process is chosen.
func (f *faults) pause(ctx context.Context, rnd *rand.Rand) error {
	for range len(f.fleet.members) {
		if f.fleet.pause(ctx, f.any(rnd)) {
			f.count("pause")
			break
		}
	}
	return nil
}

func (f *faults) postgres(ctx context.Context, _ *rand.Rand) error {
	f.count("postgres")
	return f.sys.Servers.Postgres.Crash(context.WithoutCancel(ctx))
}

func (f *faults) rabbit(ctx context.Context, _ *rand.Rand) error {
	f.count("rabbit")
	return f.sys.Servers.RabbitMQ.Crash(context.WithoutCancel(ctx))
}

// partition disturbs one kind of traffic for a moment: it silences both directions or only the
// answers, resets every connection, or cuts all connections once.
func (f *faults) partition(ctx context.Context, rnd *rand.Rand) error {
	p := []*proxy.Proxy{f.sys.Outbox, f.sys.Inbox, f.sys.Broker}[rnd.IntN(3)]
	lasts := 200*time.Millisecond + rand2(rnd, 1500*time.Millisecond)
	f.count("partition")
	switch rnd.IntN(4) {
	case 0: // half open
		if err := p.Add(proxy.DropReplies(0), proxy.DropRequests(0)); err != nil {
			return err
		}
	case 1: // what was asked for is done, and the answer lost
		if err := p.Add(proxy.DropReplies(100)); err != nil {
			return err
		}
	case 2:
		if err := p.Add(proxy.Reset(0)); err != nil {
			return err
		}
	default:
		return p.Cut()
	}
	sleep(ctx, lasts)
	p.Heal()
	return nil
}

// spare spares one member after the other, and measures its memory.
func (f *faults) spare(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var began time.Time
	who := -1
	for ctx.Err() == nil {
		if time.Since(began) >= sparedFor {
			who, began = (who+1)%len(f.fleet.members), time.Now()
			f.fleet.spare(who)
			f.fleet.endOfLife()
		}
		f.fleet.look(who)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	f.fleet.endOfLife()
}

// look records the memory of a member once the member has settled.
func (f *fleet) look(who int) {
	p, born := f.members[who].now()
	age := time.Since(born)
	if age < settleFor {
		return
	}
	if bytes := resident(p.PID()); bytes > 0 {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.memory.see(age, bytes)
	}
}

func (f *fleet) endOfLife() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.memory.end()
}
