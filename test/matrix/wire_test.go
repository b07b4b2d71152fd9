package matrix

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/test/faults/child"
	"github.com/boxpair/boxpair/test/faults/proxy"
	"github.com/boxpair/boxpair/test/faults/system"
)

// quiet waits until at least n messages were applied and no message arrives any more, so that a
// deletion takes no message with it.
func (r *rig) quiet(n int) {
	r.t.Helper()
	last, since := -1, time.Now()
	r.eventually("a quiet queue", func() (bool, error) {
		applied, err := system.Number(r.ctx, r.InboxPool(), `SELECT count(*) FROM effects`)
		if err != nil {
			return false, err
		}
		if applied != last {
			last, since = applied, time.Now()
		}
		return applied >= n && time.Since(since) > time.Second, nil
	})
}

// consumed waits until the queue of a topic has a consumer.
func (r *rig) consumed(consumer string) {
	r.t.Helper()
	r.eventually("a consumer", func() (bool, error) {
		consumers := 0
		err := r.Channel(func(ch *amqp091.Channel) error {
			queue, err := ch.QueueDeclarePassive(r.Queue(consumer), true, false, false, false, nil)
			consumers = queue.Consumers
			return err
		})
		var missing *amqp091.Error
		if errors.As(err, &missing) && missing.Code == amqp091.NotFound {
			return false, nil
		}
		return consumers > 0, err
	})
}

// routes are ways to break the route of a message.
var routes = map[string]func(r *rig) error{
	"queue deleted": func(r *rig) error {
		return r.Channel(func(ch *amqp091.Channel) error {
			_, err := ch.QueueDelete(r.Queue("stock"), false, false, false)
			return err
		})
	},
	"exchange deleted": func(r *rig) error {
		return r.Channel(func(ch *amqp091.Channel) error { return ch.ExchangeDelete(r.Topic, false, false) })
	},
	"binding deleted": func(r *rig) error {
		return r.Channel(func(ch *amqp091.Channel) error { return ch.QueueUnbind(r.Queue("stock"), "", r.Topic, nil) })
	},
}

// The route breaks before a relay sends, after it has sent, or after the confirm. The relay keeps
// the returned events and declares the route again; the consumer subscribes again.
func TestMissingRouteKeepsEventsAndIsDeclaredAgain(t *testing.T) {
	t.Parallel()
	for name, lose := range routes {
		// By then so many messages have reached the broker.
		for p, sent := range map[fault.Point]int{fault.Leased: 0, fault.BeforePublish: 3, fault.OutcomeKnown: 3, fault.Received: 0} {
			cell(t, name+"/"+string(p), calm, system.Config{NoWire: true}, func(t *testing.T, r *rig) {
				var v *child.Process
				if p == fault.Received { // the consumer is idle
					r.start(child.Relay, "")
					ok(t, r.start(child.Consumer, "").Ready(r.within()))
					ok(t, lose(r))
					r.start(child.Producer, "")
				} else {
					v = r.at(p)
					r.quiet(sent)
					ok(t, lose(r))
					if p == fault.Leased { // it declares the queue before it sends: not in the moment in which it is deleted
						r.consumed("stock")
					}
					ok(t, v.Release())
				}
				r.Injected(1)
				state := r.finish()
				if n := len(state.Dead) + len(state.Consumers[0].Aside); n > 0 {
					t.Errorf("%d events were given up for a missing route", n)
				}
			})
		}
	}
}

// The relay dies when it learns of a returned message, or fails to record the return.
func TestReturnThatIsNotTakenNoteOfIsSentAgain(t *testing.T) {
	t.Parallel()
	for _, action := range []string{"kill", "error", "stop"} {
		cell(t, "broker-returned/"+action, calm, system.Config{NoWire: true}, func(t *testing.T, r *rig) {
			consumer := r.start(child.Consumer, "")
			ok(t, consumer.Ready(r.within()))
			relay := r.start(child.Relay, "broker-returned="+action)
			r.start(child.Producer, "", func(c *child.Config) { c.Orders = 10 })
			ok(t, r.Settle(r.ctx))
			// Or it would declare the queue again before anything is sent.
			report, err := consumer.Stop(r.within())
			ok(t, err)
			r.Reported(consumer, report)
			ok(t, routes["queue deleted"](r))
			r.start(child.Producer, "", named("second"), func(c *child.Config) { c.Producer = "q" })
			ok(t, relay.Fault(r.within(), 1))
			switch action {
			case "kill":
				ok(t, relay.Killed(r.within()))
				r.start(child.Relay, "")
			case "stop":
				relay.Kill()
				r.start(child.Relay, "")
			}
			r.start(child.Consumer, "", named("second-consumer"))
			r.finish()
		})
	}
}

// A relay has no bound queue for a time, since the first consumer comes late.
func TestEventsWithoutAQueueWaitForOne(t *testing.T) {
	t.Parallel()
	cell(t, "broker-returned", calm, system.Config{NoWire: true}, func(t *testing.T, r *rig) {
		ok(t, routes["queue deleted"](r))
		relay := r.start(child.Relay, "", func(c *child.Config) { c.NoQueues = true })
		r.start(child.Producer, "")
		ok(t, relay.Until(r.within(), "a route that is down", func(r *child.Report) bool { return r.RouteError != "" }))
		pause(3 * time.Second)
		r.start(child.Consumer, "")
		r.Injected(1)
		state := r.finish()
		if len(state.Dead) > 0 {
			t.Errorf("%d events died without a queue", len(state.Dead))
		}
	})
}

// A full queue rejects messages until a consumer makes room.
func TestFullQueueIsWaitedFor(t *testing.T) {
	t.Parallel()
	cell(t, "outcome-known", calm, system.Config{NoWire: true}, func(t *testing.T, r *rig) {
		_, err := r.Servers.RabbitMQ.Ctl(r.ctx, "set_policy", r.Topic, "^"+r.Queue("stock")+"$",
			`{"max-length": 5, "overflow": "reject-publish"}`, "--apply-to", "queues")
		ok(t, err)
		t.Cleanup(func() { _, _ = r.Servers.RabbitMQ.Ctl(t.Context(), "clear_policy", r.Topic) })
		relay := r.start(child.Relay, "")
		r.start(child.Producer, "")
		ok(t, relay.Until(r.within(), "a route that refuses", func(r *child.Report) bool { return r.RouteError != "" }))
		r.Injected(1)
		r.start(child.Consumer, "")
		state := r.finish()
		if len(state.Dead) > 0 {
			t.Errorf("%d events died of a full queue", len(state.Dead))
		}
	})
}

// Three more copies of every message arrive, in any order, from another publisher.
func TestCopiesInAnyOrderHaveNoEffect(t *testing.T) {
	t.Parallel()
	for name, cache := range map[string]int{"window": 1000, "window of one": 1, "table only": -1} {
		cell(t, name+"/window-asked", calm, system.Config{}, func(t *testing.T, r *rig) {
			consumer := r.chain("", "", func(c *child.Config) { c.CacheSize = cache })[child.Consumer]
			ok(t, r.Settle(r.ctx))
			recorded, err := r.Recorded()
			ok(t, err)
			var copies []amqp091.Publishing
			for range 3 {
				for i := range recorded {
					copies = append(copies, system.Copy(&recorded[i]))
				}
			}
			rand.Shuffle(len(copies), func(i, j int) { copies[i], copies[j] = copies[j], copies[i] })
			ok(t, r.Put("stock", copies...))
			r.Injected(1)
			r.needed.Copies = 3 * orders
			r.suppressed(consumer, r.needed.Copies)
			state, err := r.Finish(r.ctx, r.needed)
			ok(t, err)
			state.Reordered = true // the record was put back by hand
			r.check(state)
		})
	}
}

// Messages reach a consumer out of order. Each message still has one effect; order follows the
// wire.
func TestReorderedMessagesHaveOneEffect(t *testing.T) {
	t.Parallel()
	cell(t, "received", calm, system.Config{Unordered: true}, func(t *testing.T, r *rig) {
		r.start(child.Relay, "")
		r.start(child.Producer, "")
		r.eventually("an empty outbox", func() (bool, error) {
			n, err := system.Number(r.ctx, r.OutboxPool(), `SELECT count(*) FROM orders
				WHERE NOT EXISTS (SELECT FROM boxpair.outbox_queue)`)
			return n == orders, err
		})
		taken, err := r.Take("stock")
		ok(t, err)
		copies := make([]amqp091.Publishing, len(taken))
		for i := range taken {
			copies[i] = system.Copy(&taken[i])
		}
		rand.Shuffle(len(copies), func(i, j int) { copies[i], copies[j] = copies[j], copies[i] })
		ok(t, r.Put("stock", copies...))
		r.Injected(1)
		r.start(child.Consumer, "")
		r.finish()
	})
}

// spoiled are network faults of connections.
var spoiled = map[string][]proxy.Toxic{
	"latency":             {proxy.Latency(30, 20)},
	"sliced":              {proxy.Slice(100, 100), proxy.SliceReplies(100, 100)},
	"slow":                {proxy.Bandwidth(20)},
	"reset":               {proxy.Reset(150)},
	"cut while speaking":  {proxy.Limit(6000)},
	"cut while spoken to": {proxy.LimitReplies(6000)},
	"half open":           {proxy.DropReplies(0), proxy.DropRequests(0)},
	"no replies":          {proxy.DropReplies(0)},
}

// The network between a service and a server is bad for a few seconds.
func TestBadNetworkLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	for name, toxics := range spoiled {
		for _, to := range []string{"broker", "outbox", "inbox"} {
			cell(t, name+"/"+to, calm, system.Config{Proxies: true, DrainLimit: time.Minute}, func(t *testing.T, r *rig) {
				p := map[string]*proxy.Proxy{"broker": r.Broker, "outbox": r.Outbox, "inbox": r.Inbox}[to]
				r.chain("", "", func(c *child.Config) { c.Pause = 20 * time.Millisecond })
				r.eventually("the first effects", func() (bool, error) {
					n, err := system.Number(r.ctx, r.InboxPool(), `SELECT count(*) FROM effects`)
					return n >= 3, err
				})
				ok(t, p.Add(toxics...))
				pause(3 * time.Second)
				p.Heal()
				r.Injected(1)
				state := r.finish()
				if n := len(state.Dead) + len(state.Consumers[0].Aside); n > 0 {
					t.Errorf("%d events were given up for a bad network", n)
				}
			})
		}
	}
}

// The connections are cut while a process stands at a point.
func TestConnectionsCutAtAnyPointOfTheWireLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	for _, p := range onTheWire {
		cell(t, string(p), calm, system.Config{Proxies: true}, func(t *testing.T, r *rig) {
			v := r.at(p)
			ok(t, r.Broker.Cut())
			r.Injected(1)
			ok(t, v.Release())
			r.finish()
		})
	}
}
