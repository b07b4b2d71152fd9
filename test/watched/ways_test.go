package watched

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/consumer/effects"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/telemetry/prometheus"
	"github.com/boxpair/boxpair/transport"
)

// way is one way out of a fault: some remedies of the runbook's section, by their order.
type way struct {
	cause func(r *rig)
	// fires tells whether the condition of the alert is true. The numbers are the alert's, but for
	// ages: nobody waits.
	fires  func(r *rig) bool
	steps  []int
	before func(r *rig, step int) // what a person does outside before a step
	after  func(r *rig)           // what happens by itself
}

var errStock = errors.New("no stock")

// repaired has everything work again before a step.
func repaired(step int) func(r *rig, at int) {
	return func(r *rig, at int) {
		if at == step {
			r.breaks(nil)
			r.answers(answer{})
		}
	}
}

// ways are the ways out of all faults, by alert and name.
func ways() map[string]map[string]way {
	return map[string]map[string]way{
		"BoxpairEventsAreNotSent":    notSent(),
		"BoxpairEventsPileUp":        {"a relay": {cause: func(r *rig) { r.write(r.topic, 1100) }, fires: func(r *rig) bool { return r.metric("boxpair_outbox_pending") > 1000 }, steps: []int{0}}},
		"BoxpairShardsWithoutARelay": {"a relay": {cause: func(*rig) {}, fires: func(r *rig) bool { return r.metric("boxpair_outbox_shards_owned") < 64 }, steps: []int{0}}},
		"BoxpairDeadEvents":          deadEvents(),
		"BoxpairManyAttemptsFail":    {"pause and repair": manyFail()},
		"BoxpairDeliveryIsSlow":      {"look": slow()},
		"BoxpairRouteDoesNotWork":    {"pause and repair": routeDoesNotWork()},
		"BoxpairDeadMessages":        deadMessages(),
		"BoxpairMessagesFail":        {"pause and repair": messagesFail()},
		"BoxpairUncertainEffects":    uncertain(),
		"BoxpairWindowIsTooShort":    {"look": shortWindow()},
		"BoxpairPauseIsForgotten":    {"resume": forgotten()},
		"BoxpairConsumerIsPaused":    {"resume": consumerIsPaused()},
		"BoxpairAuditHasFindings":    {"replay": findings()},
		"BoxpairNothingIsWatched":    {"look": unwatched()},
	}
}

func notSent() map[string]way {
	fires := func(r *rig) bool { return r.metric("outbox_max_age_seconds") > 0 }
	return map[string]way{
		"no relay": {cause: func(r *rig) { r.write(r.topic, 3) }, fires: fires, steps: []int{0}},
		"a pause": {
			cause: func(r *rig) {
				r.pause(control.Topic, r.topic)
				r.send()
				r.write(r.topic, 3)
			},
			fires: fires, steps: []int{1},
		},
	}
}

// pause pauses a topic as an operator does.
func (r *rig) pause(kind control.Kind, name string) {
	r.t.Helper()
	p := control.Pause{Kind: kind, Name: name, Reason: "test"}
	if kind == control.Consumer {
		ok(r.t, r.inbox.Pause(r.t.Context(), p))
		return
	}
	ok(r.t, r.outbox.Pause(r.t.Context(), p))
}

func deadEvents() map[string]way {
	cause := func(r *rig) {
		r.answers(answer{refuses: true, outcome: transport.Invalid})
		r.variables["ID"] = r.write(r.topic, 1).String()
		r.send()
	}
	fires := func(r *rig) bool { return r.metric("boxpair_outbox_parked", `boxpair_state="dead"`) > 0 }
	return map[string]way{
		"redrive": {cause: cause, fires: fires, steps: []int{0}, before: repaired(0)},
		"discard": {cause: cause, fires: fires, steps: []int{1}},
	}
}

// manyFail is a topic of which one key is refused: the others show that the route works.
func manyFail() way {
	var failed, all float64
	attempts := func(r *rig) (bad, every float64) {
		every = max(0, r.metric("boxpair_outbox_attempts_total"))
		return every - max(0, r.metric("boxpair_outbox_attempts_total", `boxpair_outcome="confirmed"`)), every
	}
	return way{
		cause: func(r *rig) {
			r.answers(answer{refuses: true, outcome: transport.Refused, only: "0"})
			r.send()
			r.write(r.topic, 5)
			r.until("an event is dead", func() bool { return r.metric("boxpair_outbox_parked", `boxpair_state="dead"`) > 0 })
		},
		fires: func(r *rig) bool {
			bad, every := attempts(r)
			return r.metric("boxpair_outbox_parked") > 0 || every == all || (bad-failed)/(every-all) > 0.1
		},
		steps: []int{0, 1},
		before: func(r *rig, step int) {
			repaired(1)(r, step)
			if step == 1 {
				failed, all = attempts(r)
			}
		},
	}
}

func routeDoesNotWork() way {
	fires := func(r *rig) bool { return r.metric("boxpair_relay_routes_stalled") > 0 }
	return way{
		cause: func(r *rig) {
			r.answers(answer{refuses: true, outcome: transport.Unavailable})
			r.send()
			r.write(r.topic, 1)
		},
		fires: fires, steps: []int{0, 1},
		before: func(r *rig, step int) {
			if step == 1 {
				r.until("a paused route is no alert", func() bool { return !fires(r) })
			}
			repaired(1)(r, step)
		},
		after: func(r *rig) {
			r.until("the event is sent", func() bool { return r.metric("outbox_unsent_count") == 0 })
		},
	}
}

func deadMessages() map[string]way {
	fires := func(r *rig) bool {
		return r.metric("boxpair_inbox_parked", `boxpair_state="dead"`)+r.metric("boxpair_inbox_parked", `boxpair_state="altered"`) > 0
	}
	dead := func(r *rig) {
		r.breaks(consumer.Reject(errStock))
		r.variables["ID"] = r.receive(r.handler.Consume, transport.Event{}).String()
	}
	altered := func(r *rig) {
		id := r.receive(r.handler.Consume, transport.Event{Payload: []byte("1"), Digest: transport.Digest{1}})
		r.receive(r.handler.Consume, transport.Event{ID: id, Payload: []byte("2"), Digest: transport.Digest{2}})
		r.variables["ID"] = id.String()
	}
	return map[string]way{
		"redrive":            {cause: dead, fires: fires, steps: []int{0}, before: repaired(0), after: (*rig).once},
		"edit":               {cause: dead, fires: fires, steps: []int{1}, before: repaired(0), after: (*rig).once},
		"redrive by force":   {cause: altered, fires: fires, steps: []int{2}, after: (*rig).once},
		"discard":            {cause: dead, fires: fires, steps: []int{3}},
		"discard an altered": {cause: altered, fires: fires, steps: []int{3}},
	}
}

func messagesFail() way {
	return way{
		cause: func(r *rig) {
			r.breaks(errStock)
			r.receive(r.handler.Consume, transport.Event{})
		},
		fires: func(r *rig) bool { return r.metric("boxpair_inbox_parked_age_seconds") > 0 },
		steps: []int{0, 1}, before: repaired(1), after: (*rig).once,
	}
}

func uncertain() map[string]way {
	fires := func(r *rig) bool {
		return r.metric("boxpair_inbox_effects", `boxpair_state="uncertain"`)+r.metric("boxpair_inbox_effects", `boxpair_state="dead"`) > 0
	}
	cause := func(r *rig) {
		r.breaks(errors.New("no answer"))
		id := r.receive(r.charges.Consume, transport.Event{})
		r.variables["EFFECT"] = effects.Key("stock/charge", id).String()
		r.once()
	}
	return map[string]way{
		"resolve": {cause: cause, fires: fires, steps: []int{0}, after: (*rig).once},
		"redrive": {cause: cause, fires: fires, steps: []int{1}, before: repaired(0), after: (*rig).once},
		"discard": {cause: cause, fires: fires, steps: []int{2}},
	}
}

// shortWindow ends when no such message arrives any more. The rule looks at the increase of an hour.
func shortWindow() way {
	var before float64
	noticed := func(r *rig) float64 {
		return max(0, r.metric("boxpair_inbox_unusual_total", `boxpair_kind="short_window"`))
	}
	return way{
		cause: func(r *rig) { r.receive(r.handler.Consume, transport.Event{ResendUntil: time.Now().AddDate(1, 0, 0)}) },
		fires: func(r *rig) bool { return noticed(r) > before },
		after: func(r *rig) { // the producer has a lower ResendFor
			before = noticed(r)
			r.receive(r.handler.Consume, transport.Event{ResendUntil: time.Now().Add(time.Hour)})
		},
	}
}

// slow is the end of an outage: the first event was written ten minutes ago. The rule looks at the
// averages of ten minutes.
func slow() way {
	var sum, count float64
	read := func(r *rig) (s, n float64) {
		const name = "boxpair_outbox_delivery_latency_seconds"
		return max(0, r.metric(name+"_sum")), max(0, r.metric(name+"_count"))
	}
	return way{
		cause: func(r *rig) {
			r.write(r.topic, 1)
			_, err := r.pool.Exec(r.t.Context(), `UPDATE boxpair.outbox_events SET created_at = created_at - interval '10 minutes'`)
			ok(r.t, err)
			r.send()
		},
		fires: func(r *rig) bool {
			s, n := read(r)
			return n > count && (s-sum)/(n-count) > 300
		},
		after: func(r *rig) {
			sum, count = read(r)
			r.write(r.topic, 1)
			r.until("an event is delivered", func() bool { _, n := read(r); return n > count })
		},
	}
}

// unwatched is a service that exports no metrics of the outbox.
func unwatched() way {
	return way{
		cause: func(r *rig) {
			var err error
			r.metrics, err = prometheus.New(prometheus.Config{OnlyInstruments: true})
			ok(r.t, err)
		},
		fires: func(r *rig) bool { return r.metric("boxpair_outbox_age_seconds") < 0 },
		after: (*rig).measure,
	}
}

func forgotten() way {
	return way{
		cause: func(r *rig) { r.pause(control.Topic, r.topic) },
		fires: func(r *rig) bool { return r.metric("boxpair_outbox_pauses") > 0 },
		steps: []int{0},
	}
}

func consumerIsPaused() way {
	return way{
		cause: func(r *rig) {
			r.pause(control.Consumer, "stock/reserve")
			ended := make(chan error, 1)
			ctx, stop := context.WithCancel(context.Background())
			e := transport.Event{ID: uuid.New(), Topic: r.topic, Stamp: time.Now()}
			msg := e.Message()
			msg.SetContext(ctx)
			go func() { ended <- r.handler.Consume(msg) }()
			r.t.Cleanup(func() {
				stop()
				if err := <-ended; err != nil {
					r.t.Errorf("the message was not handled: %v", err)
				}
			})
		},
		fires: func(r *rig) bool { return r.metric("boxpair_inbox_paused", "stock/reserve") > 0 },
		steps: []int{0},
		after: func(r *rig) {
			r.until("the message is handled", func() bool {
				return r.metric("boxpair_inbox_messages_total", "stock/reserve", `boxpair_outcome="applied"`) == 1
			})
		},
	}
}

// findings is a broker that loses what it has confirmed.
func findings() way {
	return way{
		cause: func(r *rig) {
			r.answers(answer{deliver: true})
			r.send()
			r.write(r.topic, 1) // a consumer that has never received anything is no loss
			r.until("a message is applied", func() bool { return r.handler.Counters().Applied == 1 })
			r.answers(answer{})
			r.variables["ID"] = r.write(r.topic, 1).String()
			r.until("the event is confirmed", func() bool { return r.metric("outbox_unsent_count") == 0 })
		},
		fires: func(r *rig) bool {
			r.audit()
			return r.metric("boxpair_audit_findings", `boxpair_kind="not_applied"`) > 0
		},
		steps:  []int{0},
		before: func(r *rig, _ int) { r.answers(answer{deliver: true}) },
	}
}
