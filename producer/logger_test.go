package producer

import (
	"log/slog"
	"testing"
)

// TestLoggerDefaultsToTheDefaultOne: what is lost, dead or locked has a line in the log of a
// program that asked for no logger.
func TestLoggerDefaultsToTheDefaultOne(t *testing.T) {
	t.Parallel()
	outbox, err := Config{Name: "orders"}.withDefaults()
	if err != nil || outbox.Logger != slog.Default() {
		t.Errorf("outbox: %v, %v", outbox.Logger, err)
	}
	janitor, err := JanitorConfig{}.withDefaults()
	if err != nil || janitor.Logger != slog.Default() {
		t.Errorf("janitor: %v, %v", janitor.Logger, err)
	}
}
