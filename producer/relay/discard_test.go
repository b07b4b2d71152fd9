package relay_test

import (
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

func TestDiscardWithoutIDsAndStatesTakesDeadOnesOnly(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) { t.Parallel(); testDiscard(t, onPostgres(t)) })
	t.Run("sqlite", func(t *testing.T) { t.Parallel(); testDiscard(t, onSQLite(t)) })
}

func testDiscard[TX any](t *testing.T, store outbox.Store[TX]) {
	out := outboxOn(t, store)
	for key, versions := range map[string]int{"dead": 1, "retried": 2} {
		for version := range versions {
			write(t, out, "topic", key, version+1)
		}
	}
	refusing := &recorder{answer: func(_, key string, _ int64, _ int) transport.Outcome {
		if key == "dead" {
			return transport.Invalid
		}
		return transport.Refused
	}}
	relay := relayFor(t, out, refusing, relay.Config{Backoff: relay.Backoff{Initial: time.Hour, Max: time.Hour}})
	if _, err := relay.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	for call, want := range []int{1, 0} {
		ids, err := out.Discard(t.Context(), outbox.Filter{Topic: "topic"}, "a test")
		if err != nil || len(ids) != want {
			t.Errorf("call %d discards %v, %v, want %d", call, ids, err, want)
		}
	}
	stats, err := out.Stats(t.Context())
	if err != nil || stats.Retrying != 1 || stats.Following != 1 || stats.Dead != 0 {
		t.Errorf("%+v, %v", stats, err)
	}
}
