package telemetry

import (
	"errors"

	"go.opentelemetry.io/otel/metric"
)

// instruments are all instruments of a [Telemetry].
type instruments struct {
	attempts        metric.Int64Counter
	publishDuration metric.Float64Histogram
	deliveryLatency metric.Float64Histogram
	handlerDuration metric.Float64Histogram

	pending, outboxParked, deferred, outboxOwned gauge
	unsent, outboxRelays, outboxPauses           gauge
	age, maxAge                                  floatGauge
	retained                                     counter

	relayInFlight, relayWaiting, relayShards, relayStalled  gauge
	relayProblems, relayUnmarked, relayLimited, relayRoutes gauge
	relayOldest, relayHeld, relayLast                       floatGauge
	relayReads, relayDropped                                counter
	relayReadTime                                           metric.Float64ObservableCounter

	messages, hits, forgotten                             counter
	inboxFailures, groups, held, odd, dropped, effectRuns counter
	dead, inboxParked, effects                            gauge
	paused                                                gauge
	oldestParked, oldestEffect, horizon                   floatGauge

	findings  metric.Int64Gauge
	auditedAt metric.Float64Gauge

	all   []metric.Observable
	meter metric.Meter
	errs  []error
}

type (
	gauge      = metric.Int64ObservableGauge
	floatGauge = metric.Float64ObservableGauge
	counter    = metric.Int64ObservableCounter
)

// The bounds of the buckets of histograms, in seconds. shortSpans are for operations of
// milliseconds. longSpans are for durations of up to a day, such as the delivery of an event during
// an outage of a broker.
var (
	shortSpans = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}
	longSpans  = []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400}
)

func newInstruments(meter metric.Meter) (*instruments, error) {
	i := &instruments{meter: meter}
	var err error
	i.attempts, err = meter.Int64Counter("boxpair.outbox.attempts", metric.WithUnit("{attempt}"),
		metric.WithDescription("Attempts to publish an event, by outcome."))
	i.note(err)
	i.publishDuration = i.histogram("boxpair.outbox.publish.duration", "From the start of an attempt to publish to its outcome.", shortSpans)
	i.deliveryLatency = i.histogram("boxpair.outbox.delivery.latency", "From the writing or due time of an event to its confirmation.", longSpans)
	i.handlerDuration = i.histogram("boxpair.inbox.handler.duration", "One run of a handler.", shortSpans)

	i.pending = i.gauge("boxpair.outbox.pending", "{event}", "Events that wait in the queue.")
	i.age = i.floatGauge("boxpair.outbox.age", "Age of the oldest undelivered event, without dead events.")
	i.outboxParked = i.gauge("boxpair.outbox.parked", "{event}", "Parked events, by state.")
	i.deferred = i.gauge("boxpair.outbox.deferred", "{event}", "Events that wait for their time.")
	i.outboxOwned = i.gauge("boxpair.outbox.shards.owned", "{shard}", "Shards whose lease a relay holds.")
	i.unsent = i.gauge("outbox.unsent.count", "{event}", "Events that are due and not confirmed: pending, retrying and following ones.")
	i.maxAge = i.floatGauge("outbox.max_age", "The same as boxpair.outbox.age, by the name under which it is often searched for.")
	i.outboxRelays = i.gauge("boxpair.outbox.relays", "{relay}", "Relays that the outbox has heard of lately.")
	i.outboxPauses = i.gauge("boxpair.outbox.pauses", "{pause}", "Pauses by operators that are in force, by kind.")
	i.retained = i.counter("boxpair.outbox.retention.deleted", "{row}", "Rows that janitors of this process have removed, by kind.")

	i.relayInFlight = i.gauge("boxpair.relay.in_flight", "{event}", "Events that the transport has not confirmed yet.")
	i.relayWaiting = i.gauge("boxpair.relay.waiting", "{event}", "Unsent events in the relay's memory.")
	i.relayShards = i.gauge("boxpair.relay.shards", "{shard}", "Shards whose lease the relay holds.")
	i.relayStalled = i.gauge("boxpair.relay.routes.stalled", "{route}", "Routes on which nothing is sent but probes.")
	i.relayProblems = i.gauge("boxpair.relay.problems", "{problem}", "Reasons why the relay does not work as it should, as health.Relay lists them, without the broker's connection.")
	i.relayUnmarked = i.gauge("boxpair.relay.unmarked", "{event}", "Confirmed events that are still in the queue.")
	i.relayLimited = i.gauge("boxpair.relay.limited", "{event}", "Events in the relay's memory that wait for a rate limit.")
	i.relayRoutes = i.gauge("boxpair.relay.routes", "{route}", "Routes that refuse, do not answer or are paused, by state.")
	i.relayOldest = i.floatGauge("boxpair.relay.in_flight.age", "Since when the transport has not answered about the oldest event in flight.")
	i.relayHeld = i.floatGauge("boxpair.relay.held.age", "Since when nothing is sent because the list of pauses cannot be read.")
	i.relayLast = i.floatGauge("boxpair.relay.last.timestamp", "Unix time of the relay's last read, renewal, mark, confirm and found fail-over, by kind.")
	i.relayDropped = i.counter("boxpair.relay.notices.dropped", "{notice}", "Calls of the relay's observer that were dropped because it is slow.")

	i.relayReads = i.counter("boxpair.relay.reads", "{read}", "Polls of the database by the relay.")
	i.relayReadTime, err = meter.Float64ObservableCounter("boxpair.relay.reads.time", metric.WithUnit("s"),
		metric.WithDescription("Time that the relay has waited for its polls."))
	i.note(err)
	i.all = append(i.all, i.relayReadTime)

	i.messages = i.counter("boxpair.inbox.messages", "{message}", "Messages that a consumer has processed, by outcome.")
	i.hits = i.counter("boxpair.inbox.window.hits", "{message}", "Copies that the window in memory knew.")
	i.forgotten = i.counter("boxpair.inbox.forgotten", "{row}", "Forgotten dispatch IDs.")
	i.paused = i.gauge("boxpair.inbox.paused", "{consumer}", "1 if the consumer was paused when this process had work for it last.")
	i.dead = i.gauge("boxpair.inbox.dead", "{message}", "Dead messages, which wait for an operator.")
	i.inboxParked = i.gauge("boxpair.inbox.parked", "{message}", "Parked messages, by state.")
	i.oldestParked = i.floatGauge("boxpair.inbox.parked.age", "Age of the oldest retrying or following message.")
	i.effects = i.gauge("boxpair.inbox.effects", "{effect}", "Unfinished effects outside the database, by state.")
	i.inboxFailures = i.counter("boxpair.inbox.failures", "{failure}", "Failures of handling, by kind.")
	i.groups = i.counter("boxpair.inbox.groups", "{transaction}", "Transactions of several messages that were committed.")
	i.held = i.counter("boxpair.inbox.held", "{message}", "Messages that waited for the end of a pause or for a rate limit.")
	i.odd = i.counter("boxpair.inbox.unusual", "{message}", "Messages that show a fault of their producer or of the settings, by kind.")
	i.dropped = i.counter("boxpair.inbox.notices.dropped", "{notice}", "Notices of the inbox to its observer that were dropped because it is slow.")
	i.oldestEffect = i.floatGauge("boxpair.inbox.effects.age", "Age of the oldest effect that is not done.")
	i.effectRuns = i.counter("boxpair.inbox.effects.attempts", "{attempt}", "Attempts to carry out an effect outside the database, by outcome.")
	i.horizon = i.floatGauge("boxpair.inbox.horizon", "For how long after its writing an event may be sent to the consumer again.")

	i.findings, err = meter.Int64Gauge("boxpair.audit.findings", metric.WithUnit("{finding}"),
		metric.WithDescription("Findings of the last audit, by kind."))
	i.note(err)
	i.auditedAt, err = meter.Float64Gauge("boxpair.audit.last.timestamp", metric.WithUnit("s"),
		metric.WithDescription("Unix time until which the last audit has compared."))
	i.note(err)
	return i, errors.Join(i.errs...)
}

// observed returns the instruments that a collection observes.
func (i *instruments) observed() []metric.Observable { return i.all }

func (i *instruments) note(err error) { i.errs = append(i.errs, err) }

func (i *instruments) histogram(name, description string, bounds []float64) metric.Float64Histogram {
	h, err := i.meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
		metric.WithExplicitBucketBoundaries(bounds...))
	i.note(err)
	return h
}

func (i *instruments) gauge(name, unit, description string) gauge {
	g, err := i.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	i.note(err)
	i.all = append(i.all, g)
	return g
}

func (i *instruments) floatGauge(name, description string) floatGauge {
	g, err := i.meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(description))
	i.note(err)
	i.all = append(i.all, g)
	return g
}

func (i *instruments) counter(name, unit, description string) counter {
	c, err := i.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	i.note(err)
	i.all = append(i.all, c)
	return c
}
