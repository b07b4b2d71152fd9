package matrix

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/test/faults/child"
	"github.com/boxpair/boxpair/test/faults/servers"
	"github.com/boxpair/boxpair/test/faults/system"
)

// slow is the pause of a producer that works for some seconds.
const slow = 30 * time.Millisecond

// timely is a PostgreSQL with a movable clock, beside the RabbitMQ of calm.
var timely = sync.OnceValues(func() (*servers.Servers, error) {
	shared, err := calm()
	if err != nil {
		return nil, err
	}
	s, err := started(servers.Config{FakeClock: true, NoRabbitMQ: true, Settings: []string{"max_connections=1000"}})()
	if err != nil {
		return nil, err
	}
	return &servers.Servers{Postgres: s.Postgres, RabbitMQ: shared.RabbitMQ}, nil
})

// The database's clock jumps while a service waits at a point: leases seem long over, or seem to
// last for hours.
func TestClockOfTheDatabaseThatJumpsLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]time.Duration{"ahead": time.Hour, "back": -2 * time.Hour} {
		stage{
			name: name, on: timely, points: []fault.Point{fault.BeforeMark, fault.BeforeClaimCommit, fault.BeforeCommit, fault.Leased, fault.BeforePublish, fault.Claimed, fault.BeforeWindow},
			inject: func(_ context.Context, s *servers.Servers) error { return s.Postgres.SetClock(by) },
		}.run(t)
	}
}

// onTime runs a cell alone on the servers with the moved clock.
func onTime(t *testing.T, name string, cfg system.Config, run func(t *testing.T, r *rig)) {
	t.Helper()
	if quick {
		return
	}
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		t.Cleanup(func() { tally.add(t.Name(), t.Failed()) })
		onStage.Lock()
		defer onStage.Unlock()
		r := newRig(t, timely, cfg)
		ok(t, r.Servers.Postgres.SetClock(0))
		run(t, r)
	})
}

// After a jump of the clock by a month a janitor must not remove undelivered events, and a consumer
// must not forget IDs whose copies may still arrive.
func TestClockThatJumpsAheadRemovesNothingThatIsNeeded(t *testing.T) {
	t.Parallel()
	onTime(t, "before-delete", system.Config{Archive: true}, func(t *testing.T, r *rig) {
		r.start(child.Janitor, "")
		p := r.start(child.Producer, "")
		ok(t, p.Until(r.within(), "all orders were placed", func(r *child.Report) bool { return r.ProducerDone }))
		ok(t, r.Servers.Postgres.SetClock(30*24*time.Hour))
		r.Injected(1)
		pause(time.Second)
		if n, err := system.Number(r.ctx, r.OutboxPool(), `SELECT count(*) FROM boxpair.outbox_events`); err != nil || n != orders {
			t.Fatalf("%d events are left of %d (%v)", n, orders, err)
		}
		r.start(child.Relay, "")
		r.start(child.Consumer, "")
		r.finish()
	})
	onTime(t, "inbox", system.Config{}, func(t *testing.T, r *rig) {
		often := func(c *child.Config) { c.ForgetInterval, c.CacheSize = 50*time.Millisecond, 1 }
		consumer := r.chain("", "", often)[child.Consumer]
		ok(t, r.Settle(r.ctx))
		ok(t, r.Servers.Postgres.SetClock(30*24*time.Hour))
		r.Injected(1)
		pause(time.Second)
		recorded, err := r.Recorded()
		ok(t, err)
		var copies []amqp091.Publishing
		for i := range recorded {
			copies = append(copies, system.Copy(&recorded[i]))
		}
		ok(t, r.Put("stock", copies...))
		r.needed.Copies = orders
		r.suppressed(consumer, orders)
		state, err := r.Finish(r.ctx, r.needed)
		ok(t, err)
		state.Reordered = true // the record was put back by hand
		r.check(state)
	})
}
