package relay

import (
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/core"
	"github.com/boxpair/boxpair/transport"
)

// TestMessageSaysWhenADeferredEventOccurred, and nothing where its stamp says as much.
func TestMessageSaysWhenADeferredEventOccurred(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 20, 10, 20, 30, 5000, time.UTC)
	for stamp, want := range map[time.Time]string{
		at:                             "",
		at.Add(999 * time.Millisecond): "",
		at.Add(time.Hour):              "2026-11-20T10:20:30.000005Z",
		at.Add(-time.Hour):             "2026-11-20T10:20:30.000005Z",
	} {
		e := &core.Entry{}
		e.OccurredAt, e.Stamp = at, stamp
		if got := messageTo(t.Context(), e).Metadata[transport.MetaOccurredAt]; got != want {
			t.Errorf("stamp %v: %q, want %q", stamp, got, want)
		}
	}
	e := &core.Entry{} // of a row that does not say
	e.Stamp = at
	if got := messageTo(t.Context(), e).Metadata[transport.MetaOccurredAt]; got != "" {
		t.Errorf("%q", got)
	}
}
