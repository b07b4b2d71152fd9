package matrix

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/test/faults/child"
	"github.com/boxpair/boxpair/test/faults/servers"
	"github.com/boxpair/boxpair/test/faults/system"
)

// rough are servers for faults of a whole server, one stage after another.
var (
	rough   = started(servers.Config{Settings: []string{"max_connections=1000"}})
	onStage sync.Mutex
)

// stage is a fault of a whole server while services wait at points: one process with all roles for
// each point.
type stage struct {
	name   string
	points []fault.Point
	inject func(ctx context.Context, s *servers.Servers) error
	on     func() (*servers.Servers, error) // nil for rough
}

// run starts a service for each point, waits until all have reached their points, injects the
// fault, and releases them.
func (st stage) run(t *testing.T) {
	t.Helper()
	if quick && st.name != "crash" && st.name != "kill -9" {
		return
	}
	t.Run(st.name, func(t *testing.T) {
		t.Parallel()
		onStage.Lock()
		defer onStage.Unlock()
		points := st.points
		on := st.on
		if on == nil {
			on = rough
		}
		if quick {
			points = points[:min(3, len(points))]
		}
		var (
			arrived, left sync.WaitGroup
			injected      = make(chan struct{})
			failed        error
		)
		arrived.Add(len(points))
		for _, p := range points {
			left.Go(func() {
				once := sync.OnceFunc(arrived.Done)
				defer once() // also if it fails before, or was not asked for
				t.Run(string(p), func(t *testing.T) {
					t.Cleanup(func() { tally.add(t.Name(), t.Failed()) })
					r := newRig(t, on, system.Config{DrainLimit: time.Minute})
					v := r.allInOne(p)
					once()
					<-injected
					ok(t, failed)
					r.Injected(1)
					ok(t, v.Release())
					r.finish()
				})
			})
		}
		arrived.Wait()
		s, err := on()
		if failed = err; err == nil {
			failed = st.inject(t.Context(), s)
		}
		close(injected)
		left.Wait()
	})
}

// allInOne starts a service with all roles that waits at p until all other services wait.
func (r *rig) allInOne(p fault.Point) *child.Process {
	r.t.Helper()
	changes, when := conditions(p)
	cfg := child.Config{
		Name: "service", Roles: []child.Role{child.Consumer, child.Relay, child.Producer}, Orders: orders,
		LeaseTTL: time.Minute, SendTimeout: time.Minute, Timeout: 40 * time.Second,
	}
	for _, c := range changes {
		c(&cfg)
	}
	v, err := r.Start(r.ctx, cfg, string(p)+"=wait"+when)
	ok(r.t, err)
	ok(r.t, v.Fault(r.within(), 1))
	return v
}

func TestDatabaseRestartedAtAnyPointLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	stage{name: "fast restart", points: points(), inject: func(ctx context.Context, s *servers.Servers) error {
		return s.Postgres.Restart(ctx)
	}}.run(t)
	stage{name: "crash", points: points(), inject: func(ctx context.Context, s *servers.Servers) error {
		return s.Postgres.Crash(ctx)
	}}.run(t)
}

// onTheWire are the points at which the broker matters.
var onTheWire = []fault.Point{
	fault.BeforePublish, fault.BrokerGiven, fault.BeforeClaimCommit, fault.Published, fault.BeforeLease, fault.Leased, fault.OutcomeKnown, fault.BeforeMark, fault.BrokerConfirmed, fault.BrokerDelivered,
	fault.Received, fault.IDRead, fault.WindowAsked, fault.Claimed, fault.BeforeHandler, fault.ClaimCommitted, fault.BeforeWindow, fault.WindowFilled, fault.BeforeAck,
}

func TestBrokerRestartedAtAnyPointLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	stage{name: "restart", points: onTheWire, inject: func(ctx context.Context, s *servers.Servers) error {
		return s.RabbitMQ.Restart(ctx)
	}}.run(t)
	stage{name: "kill -9", points: onTheWire, inject: func(ctx context.Context, s *servers.Servers) error {
		return s.RabbitMQ.Crash(ctx)
	}}.run(t)
}

func TestConnectionsClosedByTheBrokerAtAnyPointLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	stage{name: "closed", points: onTheWire, inject: func(ctx context.Context, s *servers.Servers) error {
		return s.RabbitMQ.CloseConnections(ctx)
	}}.run(t)
}

// beforeTheBroker are the points at which a relay has something to send.
var beforeTheBroker = []fault.Point{fault.BeforePublish, fault.BrokerGiven, fault.Published, fault.BeforeLease, fault.Leased, fault.OutcomeKnown, fault.BrokerConfirmed}

func TestBrokerThatTakesNothingForATimeIsWaitedFor(t *testing.T) {
	t.Parallel()
	hold := func(block, unblock func(context.Context) error) error {
		if err := block(context.Background()); err != nil {
			return err
		}
		pause(4 * time.Second)
		return unblock(context.Background())
	}
	stage{name: "memory alarm", points: beforeTheBroker, inject: func(_ context.Context, s *servers.Servers) error {
		return hold(s.RabbitMQ.BlockMemory, s.RabbitMQ.UnblockMemory)
	}}.run(t)
	stage{name: "disk alarm", points: beforeTheBroker, inject: func(_ context.Context, s *servers.Servers) error {
		return hold(s.RabbitMQ.BlockDisk, s.RabbitMQ.UnblockDisk)
	}}.run(t)
	stage{name: "paused", points: beforeTheBroker, inject: func(_ context.Context, s *servers.Servers) error {
		return hold(func(context.Context) error { return s.RabbitMQ.Pause() }, func(context.Context) error { return s.RabbitMQ.Resume() })
	}}.run(t)
}

// A relay meets an alarm during its work, and is killed when it learns of the alarm.
func TestAlarmUnderLoadDelaysOnly(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]string{"broker-blocked": "broker-blocked=error", "broker-blocked/kill -9": "broker-blocked=kill"} {
		if quick {
			break
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Cleanup(func() { tally.add(t.Name(), t.Failed()) })
			onStage.Lock()
			defer onStage.Unlock()
			r := newRig(t, rough, system.Config{DrainLimit: time.Minute})
			mq := r.Servers.RabbitMQ
			ok(t, r.start(child.Consumer, "").Ready(r.within()))
			relay := r.start(child.Relay, faults)
			ok(t, mq.BlockMemory(r.ctx))
			r.start(child.Producer, "")
			err := relay.Fault(r.within(), 1)
			killed := false
			if err == nil && faults == "broker-blocked=kill" {
				err = relay.Killed(r.within())
				killed = true
			}
			ok(t, mq.UnblockMemory(context.WithoutCancel(r.ctx)))
			ok(t, err)
			r.Injected(1)
			if killed {
				r.start(child.Relay, "")
			}
			state := r.finish()
			if len(state.Dead) > 0 {
				t.Errorf("%d events died of an alarm", len(state.Dead))
			}
		})
	}
}

// All of PostgreSQL refuses writes, and then has no room for further sessions.
func TestServerThatRefusesIsWaitedFor(t *testing.T) {
	t.Parallel()
	stage{name: "read only", points: []fault.Point{fault.BeforeCommit, fault.BeforeMark, fault.BeforeClaimCommit, fault.BeforeBegin, fault.BeforeLease, fault.Received}, inject: func(ctx context.Context, s *servers.Servers) error {
		if err := s.Postgres.Set(ctx, "default_transaction_read_only", "on"); err != nil {
			return fmt.Errorf("set: %w", err)
		}
		pause(2 * time.Second)
		return s.Postgres.Exec(ctx, "SET default_transaction_read_only = off",
			"ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()")
	}}.run(t)
}
