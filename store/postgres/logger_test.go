package postgres

import (
	"log/slog"
	"testing"
)

// TestLoggerDefaultsToTheDefaultOne: a lock that Migrate waits for has a line in the log of a
// program that asked for no logger.
func TestLoggerDefaultsToTheDefaultOne(t *testing.T) {
	t.Parallel()
	if m, err := newMigrator(nil, Config{}); err != nil || m.log != slog.Default() {
		t.Errorf("%v, %v", m, err)
	}
}
