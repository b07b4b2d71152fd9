package telemetry

import (
	"log/slog"
	"testing"
)

// TestLoggerDefaultsToTheDefaultOne: state that cannot be read has a line in the log of a program
// that asked for no logger.
func TestLoggerDefaultsToTheDefaultOne(t *testing.T) {
	t.Parallel()
	if cfg, err := (Config{}).withDefaults(); err != nil || cfg.Logger != slog.Default() {
		t.Errorf("%v, %v", cfg.Logger, err)
	}
}
