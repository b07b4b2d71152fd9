package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// target is a goal of this library.
type target struct {
	name string
	of   string // scenario/variant
	// against is the variant of the scenario by which figure is divided, or the rate without a figure;
	// "" compares figure itself.
	against string
	figure  func(Result) *float64
	bound   float64
	atMost  bool   // or at least
	report  bool   // no bound: only told
	when    string // "", "quick" or "full"
	// retained is the number of retained events in the name, if not 0; a scaled run has fewer.
	retained int
}

func atLeast(name, of, against string, bound float64) target {
	return target{name: name, of: of, against: against, bound: bound}
}

func atMost(name, of string, bound float64, figure func(Result) *float64) target {
	return target{name: name, of: of, figure: figure, bound: bound, atMost: true}
}

// atMostOf is a goal for a figure divided by that of another variant.
func atMostOf(name, of, against string, bound float64, figure func(Result) *float64) target {
	return target{name: name, of: of, against: against, figure: figure, bound: bound, atMost: true}
}

func only(when string, t target) target {
	t.when = when
	return t
}

func retaining(n int, t target) target {
	t.retained = n
	return t
}

// scaled returns the target for a run of fewer messages.
func (t target) scaled(scale float64) target {
	if t.retained > 0 && scale < 1 {
		n := (&stage{scale: scale}).scaled(t.retained)
		t.name = strings.Replace(t.name, number(float64(t.retained)/1e6)+" M", number(float64(n)/1e6)+" M", 1)
	}
	return t
}

func extra(name string) func(Result) *float64 {
	return func(r Result) *float64 {
		v, ok := r.Extra[name]
		if !ok {
			return nil
		}
		return &v
	}
}

func rate(r Result) *float64 { return &r.Rate }

// targets are all targets, in the order of the report.
func targets() []target {
	return []target{
		atLeast("default enqueue, one event, 8 producers: of a plain outbox table by hand", "enqueue/readme-8", "limit-plain-8", 1),
		atMostOf("default enqueue, one event, 8 producers: PostgreSQL's CPU, of the same", "enqueue/readme-8", "limit-plain-8", 1.15, func(r Result) *float64 { return r.PostgresCPU }),
		atLeast("default enqueue, one event, 1 producer: of the same", "enqueue/readme-1", "limit-plain-1", 1.2),
		atLeast("default enqueue, 100 events in a transaction: of unnest into the plain table", "enqueue/readme-100x8", "limit-plain-100x8", 0.95),
		atLeast("default relay, classic queue: of raw amqp091 with four short headers", "relay/classic-headers", "limit-classic", 0.90),
		atLeast("default relay, quorum queue: of raw amqp091 with four short headers", "relay/quorum-headers", "limit-quorum", 0.80),
		atLeast("default relay, classic queue: of raw amqp091 with the same properties", "relay/classic-headers", "limit-classic-headers", 0.97),
		atLeast("default relay, quorum queue: of raw amqp091 with the same properties", "relay/quorum-headers", "limit-quorum-headers", 0.92),
		atLeast("relay, 200 topics in batches: of raw amqp091", "relay/classic-200-topics", "limit-classic", 3),
		atLeast("default steady state, 8 producers: of transactions and a relay by hand", "steady/steady", "limit-handwritten", 1),
		atLeast("default consume, a transaction per message: of raw pipelined workers", "consume/default", "limit-pipelined", 1.15),
		atLeast("default consume, a pool of 8 connections: of raw pipelined workers", "consume/default-pool-8", "limit-pipelined", 1),
		atLeast("consume, group commit with handlers that write by Exec: of raw pipelined workers", "consume/group-exec", "limit-pipelined", 3),
		atLeast("default chain: of the handwritten chain", "chain/chain-default", "limit-handwritten", 0.95),
		atLeast("default chain, statements queued for the COMMIT: of the handwritten chain", "chain/chain-queued", "limit-handwritten", 0.95),
		atLeast("relay, classic queue: of raw amqp091", "relay/classic", "limit-classic", 0.95),
		atLeast("relay, classic queue: of the forwarder, tuned", "relay/classic", "forwarder-tuned", 8),
		atLeast("relay, classic queue: of the forwarder, defaults", "relay/classic", "forwarder", 20),
		atLeast("relay, quorum queue: of raw amqp091", "relay/quorum", "limit-quorum", 0.90),
		atLeast("relay, classic queue: of raw amqp091 with the same batches", "relay/classic", "limit-classic-batch", 0.95),
		atLeast("relay, quorum queue: of raw amqp091 with the same batches", "relay/quorum", "limit-quorum-batch", 0.90),
		atLeast("relay with an AMQP message per event, classic queue: of raw amqp091", "relay/classic-envelope", "limit-classic", 0.95),
		atLeast("relay with an AMQP message per event, quorum queue: of raw amqp091", "relay/quorum-envelope", "limit-quorum", 0.90),
		only("full", atLeast("relay with an AMQP message per event, classic queue: of raw amqp091 with the same envelopes", "relay/classic-envelope", "limit-classic-envelope", 0.95)),
		only("full", atLeast("relay with an AMQP message per event, quorum queue: of raw amqp091 with the same envelopes", "relay/quorum-envelope", "limit-quorum-envelope", 0.90)),
		only("full", atLeast("relay with headers, classic queue: of raw amqp091", "relay/classic-headers", "limit-classic", 0.95)),
		only("full", atLeast("relay with headers, quorum queue: of raw amqp091", "relay/quorum-headers", "limit-quorum", 0.90)),
		atLeast("relay, 4 classic queues: of raw amqp091 with one", "relay/classic-4-queues", "limit-classic", 1.5),
		atLeast("relay, 1,000 Zipf keys: of raw amqp091", "relay/classic-zipf", "limit-classic", 0.80),
		atLeast("relay, old snapshot held: of itself without", "relay/classic-snapshot", "classic", 0.95),
		only("quick", atLeast("relay, 200,000 retained events: of itself without", "relay/classic-retained-small", "classic", 0.97)),
		only("full", retaining(10_000_000, atLeast("relay, 10 M retained events: of itself without", "relay/classic-retained-10m", "classic", 0.97))),
		atMost("relay, Go CPU seconds per 100,000", "relay/classic", 1.3, func(r Result) *float64 { return &r.ClientCPU }),
		atMost("relay, peak memory in MB", "relay/classic", 60, func(r Result) *float64 {
			if r.PeakRSS == nil {
				return nil
			}
			mb := *r.PeakRSS / 1e6
			return &mb
		}),
		atMost("relay, bytes of WAL per event", "relay/classic", 150, func(r Result) *float64 { return r.WAL }),
		atLeast("enqueue, Transact: of the same statements raw in one round trip", "enqueue/transact-8", "limit-raw-8", 0.95),
		atLeast("enqueue, Write in the caller's transaction: of the same statements by hand", "enqueue/write-8", "limit-statements-8", 0.98),
		atLeast("enqueue, Write of 100 events: of raw unnest", "enqueue/write-100x8", "limit-unnest-100x8", 0.90),
		atLeast("consume, transaction per message: of raw pipelined workers", "consume/message-batched", "limit-pipelined", 0.95),
		atLeast("consume, group commit: of raw pipelined workers", "consume/group-batched", "limit-pipelined", 2.0),
		atLeast("consume, batch handler: of raw pipelined workers", "consume/batch-batched", "limit-pipelined", 3.2),
		atLeast("consume with an AMQP message per event, transaction per message: of raw pipelined workers", "consume/message", "limit-pipelined", 0.95),
		atLeast("consume with an AMQP message per event, group commit: of raw pipelined workers", "consume/group", "limit-pipelined", 2.0),
		atLeast("consume with an AMQP message per event, batch handler: of raw pipelined workers", "consume/batch", "limit-pipelined", 3.2),
		atLeast("duplicates in the window: of acknowledging only", "consume/duplicates-window", "limit-ack", 0.95),
		atMost("latency, same process, commit to received: p50 in ms", "latency/woken", 0.7, extra("p50_ms")),
		atMost("latency, same process, commit to received: p99 in ms", "latency/woken", 2.5, extra("p99_ms")),
		atMostOf("latency, same process: p50, of a relay by hand that listens", "latency/woken", "limit-listen", 1, extra("p50_ms")),
		atMostOf("latency, same process: p99, of a relay by hand that listens", "latency/woken", "limit-listen", 1, extra("p99_ms")),
		atMostOf("latency, NOTIFY from another process: p50, of a relay by hand that listens", "latency/notified", "limit-listen", 1.5, extra("p50_ms")),
		atMostOf("latency, NOTIFY from another process: p99, of a relay by hand that listens", "latency/notified", "limit-listen", 1.5, extra("p99_ms")),
		atMost("latency, polling only, commit to received: p50 in ms", "latency/poll-only", 10, extra("p50_ms")),
		atMost("latency, polling only: percent of a core when idle", "latency/poll-only", 1, extra("idle_core_percent")),
		atMost("idle relay and inbox: transactions a second", "latency/idle", 1, extra("idle_transactions")),
		atMost("idle relay and inbox: percent of a core", "latency/idle", 0.3, extra("idle_core_percent")),
		atMost("latency, commit to effect committed: p50 in ms", "latency/effect", 1.5, extra("p50_ms")),
		atMost("latency, commit to effect committed: p99 in ms", "latency/effect", 5, extra("p99_ms")),
		atMost("takeover after kill -9 of a relay, direct connections: seconds to the first event", "takeover/direct", 0.5, extra("takeover_s")),
		atMost("takeover after kill -9 of a relay, behind a pooler, polling: seconds to the first event", "takeover/pooled", 3, extra("takeover_s")),
		atMost("takeover after kill -9 of a relay, behind a pooler, listening past it: seconds to the first event", "takeover/pooled-direct", 3, extra("takeover_s")),
		atLeast("full chain: of the handwritten chain", "chain/chain", "limit-handwritten", 0.90),
		atLeast("full chain with group commit: of the handwritten chain", "chain/chain-group", "limit-handwritten", 0.90),
		{name: "embedded: events per second through SQLite and memory", of: "embedded/chain", figure: rate, report: true},
	}
}

// outcome is the result of a target.
type outcome struct {
	Name   string
	Value  *float64 // nil if it was not measured
	Target *float64 // nil if it is only told
	Met    bool
	of     string
	atMost bool
}

func (o outcome) split() (scenarioName, variantName string) {
	scenarioName, variantName, _ = strings.Cut(o.of, "/")
	return scenarioName, variantName
}

// outcomes are encoded as one object, in the order of the targets.
type outcomes []outcome

// MarshalJSON implements [json.Marshaler].
func (list outcomes) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	for i, o := range list {
		name, err := json.Marshal(o.Name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(struct {
			Value  *float64 `json:"value"`
			Target *float64 `json:"target"`
			Met    bool     `json:"met"`
		}{o.Value, o.Target, o.Met})
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%s%s:%s", map[bool]string{true: "{", false: ","}[i == 0], name, value)
	}
	if len(list) == 0 {
		b.WriteByte('{')
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// outcomes compares the results with the targets.
func (r *report) outcomes() outcomes {
	var list outcomes
	for _, t := range targets() {
		if t.when == "quick" && !r.plan.quick || t.when == "full" && r.plan.quick || !r.plan.only.MatchString(t.of) {
			continue
		}
		list = append(list, t.scaled(r.plan.scale).judge(r.results))
	}
	return list
}

func (t target) judge(results map[string][]Result) outcome {
	o := outcome{Name: t.name, of: t.of, atMost: t.atMost}
	if !t.report {
		o.Target = &t.bound
	}
	var values []float64
	if t.against != "" {
		scenarioName, _ := o.split()
		figure := t.figure
		if figure == nil {
			figure = rate
		}
		values = ratios(results[t.of], results[scenarioName+"/"+t.against], figure)
	} else {
		values = figures(results[t.of], t.figure)
	}
	if len(values) == 0 {
		return o
	}
	value := significant(median(values))
	o.Value = &value
	o.Met = t.report || t.atMost && value <= t.bound || !t.atMost && value >= t.bound
	return o
}

// ratios divides the figures of each round.
func ratios(results, limits []Result, figure func(Result) *float64) []float64 {
	var values []float64
	for _, r := range results {
		i := slices.IndexFunc(limits, func(l Result) bool { return l.Round == r.Round })
		if i < 0 {
			continue
		}
		if v, of := figure(r), figure(limits[i]); v != nil && of != nil && *of > 0 {
			values = append(values, *v / *of)
		}
	}
	return values
}

// figures returns the known values of a figure, one per round.
func figures(results []Result, figure func(Result) *float64) []float64 {
	var values []float64
	for _, r := range results {
		if v := figure(r); v != nil {
			values = append(values, *v)
		}
	}
	return values
}

// median returns the middle value, or the mean of the two middle values.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n == 0 {
		return math.NaN()
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// significant rounds to three digits, and large numbers to integers.
func significant(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return v
	}
	unit := math.Pow(10, math.Floor(math.Log10(math.Abs(v)))-2)
	if unit >= 1 {
		return math.Round(v)
	}
	return math.Round(v/unit) / math.Round(1/unit)
}
