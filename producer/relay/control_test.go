package relay_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/outbox"
)

func TestPauseAndRateLimitAreInTheDatabase(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) { t.Parallel(); testControl(t, onPostgres(t)) })
	t.Run("sqlite", func(t *testing.T) { t.Parallel(); testControl(t, onSQLite(t)) })
}

func testControl[TX any](t *testing.T, store outbox.Store[TX]) {
	out := outboxOn(t, store)
	write(t, out, "order.placed", "a", 1)
	write(t, out, "user.created", "b", 1)
	if err := out.Pause(t.Context(), control.Pause{Kind: control.Topic, Name: "order.#", Reason: "wrong prices"}); err != nil {
		t.Fatal(err)
	}
	once := func(cfg relay.Config, want relay.Report) {
		t.Helper()
		got, err := relayFor(t, out, &recorder{}, cfg).RunOnce(t.Context())
		if err != nil || got != want {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
	once(relay.Config{}, relay.Report{Delivered: 1, Left: 1})
	if ended, err := out.Resume(t.Context(), control.Topic, "order.#"); err != nil || !ended {
		t.Fatal(ended, err)
	}
	once(relay.Config{}, relay.Report{Delivered: 1})

	for i := range 8 {
		write(t, out, "order.placed", fmt.Sprint("k", i), 1)
	}
	began := time.Now()
	once(relay.Config{MaxPerSecond: 5}, relay.Report{Delivered: 8})
	if took := time.Since(began); took < 500*time.Millisecond { // five at once, three more at five a second
		t.Errorf("8 events took %v", took)
	}
}
