package matrix

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/test/faults/child"
	"github.com/boxpair/boxpair/test/faults/proxy"
	"github.com/boxpair/boxpair/test/faults/system"
	"github.com/boxpair/boxpair/transport/amqp"
)

// applied waits until every order has its effect, regardless of other unfinished work.
func (r *rig) applied(want int) {
	r.t.Helper()
	r.eventually("every order's effect", func() (bool, error) {
		n, err := system.Number(r.ctx, r.InboxPool(), `SELECT count(DISTINCT dispatch) FROM effects`)
		return n == want, err
	})
}

// forget removes the events of other topics from the outbox: they belong to no order.
func (r *rig) forget() {
	r.t.Helper()
	for _, statement := range []string{
		`DELETE FROM boxpair.outbox_queue q USING boxpair.outbox_events e WHERE e.id = q.id AND e.topic <> $1`,
		`DELETE FROM boxpair.outbox_parked p USING boxpair.outbox_events e WHERE e.id = p.id AND e.topic <> $1`,
		`DELETE FROM boxpair.outbox_events WHERE topic <> $1`,
	} {
		_, err := r.OutboxPool().Exec(r.ctx, statement, r.Topic)
		ok(r.t, err)
	}
}

// A janitor stands still in the midst of its work. Meanwhile relays take shards over from each
// other and send all events, and another janitor removes them.
func TestJanitorThatStandsStillHoldsUpNobody(t *testing.T) {
	t.Parallel()
	for _, p := range []fault.Point{fault.BeforeDelete, fault.WithinDelete} {
		cell(t, string(p), calm, system.Config{Archive: true}, func(t *testing.T, r *rig) {
			j := r.start(child.Janitor, string(p)+"=stop@3")
			first := r.chain("", "", func(c *child.Config) { c.Pause = slow })[child.Relay]
			ok(t, j.Fault(r.within(), 1))
			first.Kill()
			r.start(child.Relay, "", named("second"))
			r.start(child.Janitor, "", named("next"))
			ok(t, r.Settle(r.ctx))
			r.eventually("an empty log", func() (bool, error) {
				n, err := system.Number(r.ctx, r.OutboxPool(), `SELECT count(*) FROM boxpair.outbox_events`)
				return n == 0, err
			})
			ok(t, j.Signal(syscall.SIGCONT))
			r.Injected(1)
			r.finish()
		})
	}
}

// An operator's replay loses its connection in the midst of its transaction, and the server does
// not notice.
func TestReplayThatIsCutOffHoldsUpNobody(t *testing.T) {
	t.Parallel()
	cell(t, "leased", calm, system.Config{}, func(t *testing.T, r *rig) {
		first := r.chain("", "")[child.Relay]
		ok(t, r.Settle(r.ctx))
		heal := r.replayCutOff()
		first.Kill()
		r.start(child.Producer, "", named("later"), func(c *child.Config) { c.Producer = "q" })
		r.start(child.Relay, "", named("second"))
		ok(t, r.Settle(r.ctx))
		heal()
		r.Injected(1)
		r.needed.Orders = 2 * orders
		r.finish()
	})
}

// replayCutOff begins a replay, and swallows the server's answers once the replay has locked rows
// of shards. The caller must heal the connection.
func (r *rig) replayCutOff() (heal func()) {
	r.t.Helper()
	between, url, err := proxy.Before(r.Servers.Postgres.URL(r.OutboxDB))
	ok(r.t, err)
	cfg, err := pgxpool.ParseConfig(url)
	ok(r.t, err)
	cfg.ConnConfig.RuntimeParams["application_name"] = "operator"
	pool, err := pgxpool.NewWithConfig(r.ctx, cfg)
	ok(r.t, err)
	store, err := postgres.New(pool, postgres.Config{})
	ok(r.t, err)
	out, err := producer.New(store, producer.Config{Name: child.OutboxName})
	ok(r.t, err)
	tx := r.begin(r.OutboxDB)
	_, err = tx.Exec(r.ctx, `SELECT FROM boxpair.outbox_shards FOR UPDATE`)
	ok(r.t, err)
	ctx, cancel := context.WithCancel(r.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		all := outbox.Selection{Topic: r.Topic, From: time.Now().Add(-time.Hour), To: time.Now()}
		_, _ = out.Replay(ctx, producer.Replay{Selection: all, Limit: 10})
	}()
	replay := func(state string) {
		r.eventually("a replay that is "+state, func() (bool, error) {
			n, err := system.Number(r.ctx, r.OutboxPool(), `SELECT count(*) FROM pg_stat_activity
				WHERE datname = current_database() AND application_name = 'operator' AND state = $1 AND query LIKE '%WITH chosen%'`, state)
			return n > 0, err
		})
	}
	replay("active") // and waits for the shards
	ok(r.t, between.Add(proxy.DropReplies(0)))
	ok(r.t, tx.Rollback(r.ctx))
	replay("idle in transaction")
	return func() {
		cancel()
		between.Heal()
		<-ended
		pool.Close()
		ok(r.t, between.Close())
	}
}

// Unreadable rows stand among rows of the orders' keys. They become dead, and delay no other event.
func TestRowsThatCannotBeReadAreDeadAndDelayNobody(t *testing.T) {
	t.Parallel()
	cell(t, "before-publish", calm, system.Config{}, func(t *testing.T, r *rig) {
		const rows = 20
		r.start(child.Consumer, "")
		r.start(child.Producer, "", func(c *child.Config) { c.Pause = slow })
		r.eventually("an event", func() (bool, error) {
			n, err := system.Number(r.ctx, r.OutboxPool(), `SELECT count(*) FROM boxpair.outbox_events`)
			return n > 0, err
		})
		for range rows {
			_, err := r.OutboxPool().Exec(r.ctx, `WITH e AS (
				INSERT INTO boxpair.outbox_events (dispatch_id, digest, shard, topic, key, headers, payload)
				SELECT gen_random_uuid(), decode(repeat('00', 16), 'hex'), shard, $1, key, '{"a": 1}', payload FROM boxpair.outbox_events
				WHERE topic = $2 ORDER BY id DESC LIMIT 1 RETURNING shard, id)
				INSERT INTO boxpair.outbox_queue (shard, id) SELECT shard, id FROM e`, r.Topic+"_unreadable", r.Topic)
			ok(t, err)
			pause(5 * time.Millisecond)
		}
		r.start(child.Relay, "")
		ok(t, r.Settle(r.ctx))
		var dead, all int
		ok(t, r.OutboxPool().QueryRow(r.ctx, `SELECT count(*) FILTER (WHERE p.state = 'dead'), count(*)
			FROM boxpair.outbox_events e LEFT JOIN boxpair.outbox_parked p USING (id) WHERE e.topic <> $1`, r.Topic).Scan(&dead, &all))
		if dead != rows || all != rows {
			t.Errorf("%d of %d rows that cannot be read are dead, and there were %d", dead, all, rows)
		}
		r.forget()
		r.Injected(dead)
		r.finish()
	})
}

// Half a million events wait for an undeclared queue. The orders' events are sent meanwhile, also
// by a relay that has just taken over.
func TestBacklogOfADeadRouteDelaysNobodyElse(t *testing.T) {
	t.Parallel()
	const backlog = 500_000
	cell(t, "leased", calm, system.Config{}, func(t *testing.T, r *rig) {
		r.patience = 150 * time.Second // a relay reads the backlog once, beside all the other cells
		nowhere := r.Topic + "_nowhere"
		t.Cleanup(func() { ok(t, r.RemoveTopic(nowhere, "nobody")) })
		_, err := r.OutboxPool().Exec(r.ctx, `WITH e AS (
			INSERT INTO boxpair.outbox_events (dispatch_id, digest, shard, topic, key, payload)
			SELECT gen_random_uuid(), decode(repeat('00', 16), 'hex'), n % 64, $1, 'nowhere-' || n, '{}' FROM generate_series(1, $2::int) n
			RETURNING shard, id)
			INSERT INTO boxpair.outbox_queue (shard, id) SELECT shard, id FROM e`, nowhere, backlog)
		ok(t, err)
		first := r.chain("", "", func(c *child.Config) { c.Pause = slow })[child.Relay]
		ok(t, first.Until(r.within(), "it met the dead route", func(r *child.Report) bool { return r.RouteError != "" }))
		first.Kill()
		second := r.start(child.Relay, "", named("second"))
		r.applied(orders)
		left, err := system.Number(r.ctx, r.OutboxPool(), `SELECT count(*) FROM boxpair.outbox_queue`)
		ok(t, err)
		if left < backlog*9/10 {
			t.Errorf("%d of %d events of the dead route are left in the queue", left, backlog)
		}
		_, err = second.Stop(r.within()) // nobody looks at what is removed
		ok(t, err)
		r.forget()
		r.start(child.Relay, "", named("third"))
		r.Injected(1)
		r.finish()
	})
}

// The leader of one queue does not answer. Meanwhile events of other topics are sent and applied.
// The queue's own events follow, in order, once the leader answers.
func TestQueueWithoutItsLeaderDelaysItsOwnTopicOnly(t *testing.T) {
	t.Parallel()
	cell(t, "broker-given", calm, system.Config{}, func(t *testing.T, r *rig) {
		const events = 40
		silent := r.Topic + "_silent"
		sub, err := amqp.NewSubscriber(amqp.SubscriberConfig{AMQP: child.Topology(r.Servers.RabbitMQ.URL(), "nobody")})
		ok(t, err)
		t.Cleanup(func() { ok(t, errors.Join(sub.Close(), r.RemoveTopic(silent, "nobody"))) })
		ok(t, sub.SubscribeInitialize(silent))
		r.control(child.QueueName(silent, "nobody"), "suspend")
		r.write(silent, events)
		r.chain("", "")
		r.applied(orders)
		r.control(child.QueueName(silent, "nobody"), "resume")
		r.Injected(1)
		messages, err := sub.Subscribe(r.within(), silent)
		ok(t, err)
		seen := make(map[string]bool)
		for len(seen) < events {
			msg, open := <-messages
			if !open {
				t.Fatalf("%d of %d events of the silent queue have come", len(seen), events)
			}
			if want := fmt.Sprint(len(seen)); !seen[msg.UUID] && string(msg.Payload) != want {
				t.Errorf("event %s came where %s is next", msg.Payload, want)
			}
			seen[msg.UUID] = true
			msg.Ack()
		}
		r.eventually("an empty queue of the outbox", func() (bool, error) {
			n, err := system.Number(r.ctx, r.OutboxPool(), `SELECT count(*) FROM boxpair.outbox_queue`)
			return n == 0, err
		})
		r.forget()
		r.finish()
	})
}

// control sends a command to the process of a queue: a suspended process answers only after it is
// resumed.
func (r *rig) control(queue, what string) {
	r.t.Helper()
	_, err := r.Servers.RabbitMQ.Ctl(r.ctx, "eval", fmt.Sprintf(
		`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)), sys:%s(amqqueue:get_pid(Q)).`, queue, what))
	ok(r.t, err)
}

// write commits n events of one key to a topic. Their payloads are numbers from 0.
func (r *rig) write(topic string, n int) {
	r.t.Helper()
	store, err := postgres.New(r.OutboxPool(), postgres.Config{})
	ok(r.t, err)
	outbox, err := producer.New(store, producer.Config{Name: child.OutboxName})
	ok(r.t, err)
	events := make([]producer.Event, n)
	for i := range events {
		events[i] = producer.Event{Topic: topic, Key: "one", Source: "silent", Version: int64(i) + 1, Payload: fmt.Append(nil, i)}
	}
	ok(r.t, outbox.Transact(r.ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
		_, err := w.Write(ctx, events...)
		return err
	}))
}

// A service is deployed again and again while it holds many messages. Redelivered messages are
// applied once, and none is set aside.
func TestRedeliveriesOfDeploysAreAppliedOnce(t *testing.T) {
	t.Parallel()
	for _, p := range []fault.Point{fault.BeforeHandler, fault.BeforeWindow, fault.BrokerDelivered} {
		cell(t, string(p), calm, system.Config{}, func(t *testing.T, r *rig) {
			const many, deploys = 400, 6
			r.needed.Orders, r.needed.Faults = many, deploys
			r.start(child.Relay, "")
			r.start(child.Producer, "", func(c *child.Config) { c.Orders, c.Batch, c.Keys = many, 20, 40 })
			for range deploys {
				ok(t, r.start(child.Consumer, string(p)+"=kill@20", full).Killed(r.within()))
			}
			r.Injected(0)
			r.start(child.Consumer, "", full)
			for _, c := range r.finish().Consumers {
				if len(c.Aside)+len(c.Live) > 0 {
					t.Errorf("%d messages are set aside or parked", len(c.Aside)+len(c.Live))
				}
			}
		})
	}
}

// full makes a consumer take many messages at once.
func full(c *child.Config) { c.InFlight = 64 }

// Three processes of a service come and go. One process reads the queue at a time, and the next
// process goes on in order.
func TestReplicasThatComeAndGoKeepTheOrder(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{1, 2, 5} {
		for _, p := range []fault.Point{fault.Claimed, fault.BeforeClaimCommit, fault.BeforeWindow, fault.BeforeAck} {
			cell(t, fmt.Sprintf("%d %s", replicas, p), calm, system.Config{}, func(t *testing.T, r *rig) { r.replicasComeAndGo(t, replicas, p) })
		}
	}
}

// Processes that store messages first come and go, and are killed while they store a message or
// handle a stored one. One process reads the queue at a time; all of them handle what is stored, and
// keep the order.
func TestReplicasThatStoreFirstKeepTheOrder(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{1, 2, 5} {
		for _, p := range []fault.Point{fault.BeforeMessageParked, fault.MessageParked, fault.BeforeHandler, fault.BeforeClaimCommit, fault.ClaimCommitted, fault.BeforeAck} {
			cell(t, fmt.Sprintf("%d %s", replicas, p), calm, system.Config{}, func(t *testing.T, r *rig) { r.storersComeAndGo(t, replicas, p) })
		}
	}
}

// storersComeAndGo has a consumer killed and as many others take over as there are replicas, each of
// which dies at its third time at p: one after another at points of the process that reads the
// queue.
func (r *rig) storersComeAndGo(t *testing.T, n int, p fault.Point) {
	t.Helper()
	const many = 300
	stores := func(c *child.Config) {
		c.StoreFirst, c.Pause, c.MaxSoloStarts = true, slow, 50 // processes are killed regardless of the message
		if c.Name == string(child.Producer) {
			c.Orders = many
		}
	}
	r.start(child.Relay, "")
	var replicas []*child.Process
	for i := range n {
		replicas = append(replicas, r.start(child.Consumer, string(p)+"=kill@3", named(fmt.Sprint("replica ", i)), stores))
	}
	r.start(child.Producer, "", stores)
	for _, replica := range replicas {
		ok(t, replica.Killed(r.within()))
	}
	r.start(child.Consumer, "", named("last"), stores)
	r.Injected(0)
	r.needed.Orders, r.needed.Faults = many, len(replicas)
	for _, c := range r.finish().Consumers {
		if len(c.Aside)+len(c.Live) > 0 {
			t.Errorf("%d messages are set aside or parked", len(c.Aside)+len(c.Live))
		}
	}
}

// replicasComeAndGo has a consumer killed and as many others take over as there are replicas, each of
// which dies at its third time at p.
func (r *rig) replicasComeAndGo(t *testing.T, n int, p fault.Point) {
	t.Helper()
	const many = 200
	first := r.chain("", "", func(c *child.Config) {
		c.Pause = slow / 2
		if c.Name == string(child.Producer) {
			c.Orders = many
		}
	})[child.Consumer]
	var replicas []*child.Process
	for i := range n {
		replicas = append(replicas, r.start(child.Consumer, string(p)+"=kill@3", named(fmt.Sprint("replica ", i))))
	}
	for _, replica := range replicas {
		ok(t, replica.Ready(r.within()))
	}
	first.Kill() // the broker has another one go on
	for _, replica := range replicas {
		ok(t, replica.Killed(r.within()))
	}
	r.start(child.Consumer, "", named("last"))
	r.Injected(0)
	r.needed.Orders, r.needed.Faults = many, len(replicas)
	r.finish()
}
