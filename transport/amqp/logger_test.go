package amqp

import (
	"log/slog"
	"testing"
)

// TestLoggerDefaultsToTheDefaultOne: unroutable messages have a line in the log of a program that
// asked for no logger.
func TestLoggerDefaultsToTheDefaultOne(t *testing.T) {
	t.Parallel()
	var p PublisherConfig
	p.setDefaults()
	var s SubscriberConfig
	s.setDefaults()
	if p.Logger != slog.Default() || s.Logger != slog.Default() {
		t.Errorf("publisher %v, subscriber %v", p.Logger, s.Logger)
	}
}
