// Package health says how an outbox or an inbox is, from its state: healthy, degraded or unhealthy,
// by the age of the oldest that waits, by how many wait, and by how many wait for an operator.
//
//	check, err := health.New(health.Config{UnhealthyAge: 5 * time.Minute})
//
//	stats, err := outbox.Stats(ctx)
//	report := check.Outbox(stats)
//	if report.State != health.Healthy {
//		log.Warn("outbox", "state", report.State, "problems", report.Problems)
//	}
//
// Nothing here does I/O or keeps anything: a report is about the one state that it was made from.
// Whether a relay runs and reaches its database and broker is another question, which
// relay.Relay.Health answers.
//
// # What to do with it
//
// Show it, or alert on it. A service whose outbox is unhealthy can take orders all the same, and to
// start a relay again brings back neither a broker nor a dead letter: do not use it as a liveness
// probe, and as a readiness probe only where nothing but waiting helps.
//
// # Limitations
//
// An inbox does not know what waits in the queue of its broker: watch that there. A number is that
// of one moment, without a "for five minutes"; docs/monitoring.md has alerts with one.
package health
