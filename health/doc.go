// Package health judges the state of an outbox or an inbox as healthy, degraded or unhealthy, by
// the age of the oldest waiting event or message, by the number that wait, and by the number that
// wait for an operator.
//
//	check, err := health.New(health.Config{UnhealthyAge: 5 * time.Minute})
//
//	stats, err := outbox.Stats(ctx)
//	report := check.Outbox(stats)
//	if report.State != health.Healthy {
//		log.Warn("outbox", "state", report.State, "problems", report.Problems)
//	}
//
// A report is about the one snapshot that it was made from. Whether a relay runs and reaches its
// database and broker is a separate question, which [Relay] answers from relay.Relay.Health.
//
// [Handler] serves /healthz and /readyz to an orchestrator, in one line of a service:
//
//	mux.Handle("/", health.Handler(nil, health.RelayReady(relay, 0), health.SchemaReady("outbox", store)))
//
// # Use
//
// Show the report, or alert on it. Do not use it as a liveness probe: a service with an unhealthy
// outbox can still take orders, and a restart of a relay repairs neither a broker nor a dead
// letter. Use it as a readiness probe ([OutboxReady], [InboxReady]) only if the service should do
// nothing but wait.
//
// # Limitations
//
// An inbox does not know how many messages wait in the queue of its broker: watch the queue at the
// broker. A report describes one moment and cannot say "for five minutes"; docs/monitoring.md has
// alerts that can.
package health
