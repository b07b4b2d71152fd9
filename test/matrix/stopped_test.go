package matrix

import (
	"syscall"
	"testing"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/test/faults/child"
	"github.com/boxpair/boxpair/test/faults/system"
)

// named gives a child another name.
func named(name string) change { return func(c *child.Config) { c.Name = name } }

// pointsOf returns the points that a role's process reaches.
func pointsOf(role child.Role) []fault.Point {
	var all []fault.Point
	for _, p := range points() {
		if victim(p) == role {
			all = append(all, p)
		}
	}
	return all
}

// A relay stands still until another relay has taken over and sent everything. When it is woken,
// its statements must change nothing, and its messages are copies.
func TestRelayStoppedPastItsLeaseIsTakenOverAndFencedOff(t *testing.T) {
	t.Parallel()
	for _, p := range pointsOf(child.Relay) {
		cell(t, string(p), calm, system.Config{}, func(t *testing.T, r *rig) {
			changes, when := conditions(p)
			zombie := r.chain(child.Relay, string(p)+"=stop"+when, changes...)[child.Relay]
			ok(t, zombie.Fault(r.within(), 1))
			second := r.start(child.Relay, "", append(changes, named("second"))...)
			ok(t, second.Until(r.within(), "it had taken over", func(r *child.Report) bool { return r.Shards == 64 }))
			ok(t, r.Settle(r.ctx))
			ok(t, zombie.Signal(syscall.SIGCONT))
			ok(t, second.Until(r.within(), "it saw the woken relay", func(r *child.Report) bool { return r.Relays == 2 }))
			r.Injected(0)
			r.finish()
		})
	}
}

// A producer stands still with its transaction open. Processes that wait for its locks go on when
// the database ends the transaction, and the woken producer's statements are rolled back.
func TestProducerStoppedInItsTransactionBlocksOthersForATimeOnly(t *testing.T) {
	t.Parallel()
	for _, p := range pointsOf(child.Producer) {
		cell(t, string(p), calm, system.Config{}, func(t *testing.T, r *rig) {
			ok(t, r.Servers.Postgres.Exec(r.ctx,
				"ALTER ROLE "+child.Producer.Login()+" IN DATABASE "+r.OutboxDB+" SET idle_in_transaction_session_timeout = '500ms'"))
			zombie := r.chain(child.Producer, string(p)+"=stop"+nth)[child.Producer]
			ok(t, zombie.Fault(r.within(), 1))
			second := r.start(child.Producer, "", named("second"), func(c *child.Config) { c.Producer = "q" })
			ok(t, second.Until(r.within(), "its orders were placed", func(r *child.Report) bool { return r.ProducerDone }))
			ok(t, zombie.Signal(syscall.SIGCONT))
			r.Injected(0)
			r.needed.Orders = 2 * orders
			r.finish()
		})
	}
}

// A consumer stands still while the broker gives its messages to another consumer. Both then handle
// the same message, one after the other.
func TestConsumerStoppedWhileItsMessagesGoToAnotherOneAppliesNothingTwice(t *testing.T) {
	t.Parallel()
	for _, p := range pointsOf(child.Consumer) {
		cell(t, string(p), calm, system.Config{Proxies: true}, func(t *testing.T, r *rig) {
			changes, when := conditions(p)
			zombie := r.chain(child.Consumer, string(p)+"=stop"+when, changes...)[child.Consumer]
			ok(t, zombie.Fault(r.within(), 1))
			second := r.start(child.Consumer, "", append(changes, named("second"))...)
			ok(t, second.Ready(r.within()))
			ok(t, r.Broker.Cut())
			ok(t, second.Until(r.within(), "it had messages", func(r *child.Report) bool {
				h := r.Handlers["stock"]
				return h.Applied+h.Duplicates()+h.DatabaseErrors+h.Parked+h.Followed > 0
			}))
			ok(t, zombie.Signal(syscall.SIGCONT))
			r.Injected(0)
			r.finish()
		})
	}
}
