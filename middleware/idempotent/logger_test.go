package idempotent

import (
	"log/slog"
	"testing"
)

// TestLoggerDefaultsToTheDefaultOne: a request that fails has a line in the log of a program that
// asked for no logger.
func TestLoggerDefaultsToTheDefaultOne(t *testing.T) {
	t.Parallel()
	cfg, err := (Config{}).withDefaults()
	if cfg.Logger != slog.Default() {
		t.Errorf("%v, %v", cfg.Logger, err)
	}
}
