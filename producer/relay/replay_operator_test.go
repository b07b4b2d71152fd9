package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// journal is a recorder that also keeps the order of all copies.
type journal struct {
	*recorder
	mu  sync.Mutex
	all []string
}

func newJournal(refuse func(key string, version int64) bool) *journal {
	j := &journal{}
	j.recorder = &recorder{answer: func(_, key string, version int64, _ int) transport.Outcome {
		if refuse != nil && refuse(key, version) {
			return transport.Refused
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		j.all = append(j.all, fmt.Sprintf("%s/%d", key, version))
		return transport.Confirmed
	}}
	return j
}

// of returns the copies of key that were taken, from the nth on.
func (j *journal) of(key string, n int) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var list []string
	for _, name := range j.all {
		if strings.HasPrefix(name, key+"/") {
			list = append(list, name)
		}
	}
	return list[min(n, len(list)):]
}

func versions(key string, from, to int) (list []string) {
	for v := from; v <= to; v++ {
		list = append(list, fmt.Sprintf("%s/%d", key, v))
	}
	return list
}

func testReplay[TX any](t *testing.T, store outbox.Store[TX]) {
	out := outboxOn(t, store)
	got := newJournal(nil)
	run(t, relayFor(t, out, got, relay.Config{LeaseTTL: time.Minute}))
	for version := range 10 {
		for _, key := range []string{"a", "b", "c"} {
			write(t, out, "topic", key, version+1)
		}
	}
	drained := func() bool {
		st, err := out.Stats(t.Context())
		return err == nil && st.Pending == 0
	}
	eventually(t, "all is delivered", drained)
	var queued atomic.Int64
	report, err := out.Replay(t.Context(), producer.Replay{
		Selection: outbox.Selection{Key: "a", From: time.Now().Add(-time.Hour)}, InQueue: 4,
		Progress: func(producer.ReplayReport) {
			if st, err := out.Stats(t.Context()); err == nil {
				queued.Store(max(queued.Load(), st.Pending))
			}
		},
	})
	if err != nil || report.Replayed != 10 || !report.Done {
		t.Fatalf("replay did %+v, %v", report, err)
	}
	eventually(t, "all is delivered again", func() bool { return drained() && len(got.of("a", 0)) == 20 })
	if again := got.of("a", 10); !slices.Equal(again, versions("a", 1, 10)) {
		t.Errorf("replayed %v", again)
	}
	if n := len(got.of("b", 10)) + len(got.of("c", 10)); n != 0 {
		t.Errorf("%d copies of other keys", n)
	}
	if queued.Load() > 4 {
		t.Errorf("%d replayed events were in the queue", queued.Load())
	}
	report, err = out.Replay(t.Context(), producer.Replay{All: true, Limit: 7})
	if err != nil || report.Replayed != 7 || !report.Done {
		t.Fatalf("replay of seven did %+v, %v", report, err)
	}
	eventually(t, "seven are delivered again", drained)
	report, err = out.Replay(t.Context(), producer.Replay{All: true, After: report.Through})
	if err != nil || report.Replayed != 23 {
		t.Fatalf("replay of the rest did %+v, %v", report, err)
	}
	eventually(t, "the rest is delivered again", drained)
	for _, key := range []string{"a", "b", "c"} {
		if again := got.of(key, len(got.of(key, 0))-10); !slices.Equal(again, versions(key, 1, 10)) {
			t.Errorf("replayed %v", again)
		}
	}
}

func TestReplaySendsRetainedEventsInTheOrderOfTheirKeys(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) { t.Parallel(); testReplay(t, onPostgres(t)) })
	t.Run("sqlite", func(t *testing.T) { t.Parallel(); testReplay(t, onSQLite(t)) })
}

// testReplayOfABlockedKey replays events of a key whose next one is refused.
func testReplayOfABlockedKey[TX any](t *testing.T, store outbox.Store[TX]) {
	out := outboxOn(t, store)
	var broken atomic.Bool
	broken.Store(true)
	got := newJournal(func(key string, version int64) bool { return broken.Load() && key == "bad" && version == 6 })
	run(t, relayFor(t, out, got, relay.Config{
		LeaseTTL: time.Minute, MaxAttempts: 1000, Backoff: relay.Backoff{Initial: 20 * time.Millisecond, Max: 50 * time.Millisecond},
	}))
	for version := range 8 {
		write(t, out, "topic", "bad", version+1)
		write(t, out, "topic", "good", version+1) // the route works for others
	}
	eventually(t, "the key waits", func() bool {
		st, err := out.Stats(t.Context())
		return err == nil && st.Retrying == 1 && st.Following == 2 && st.Pending == 0
	})
	report, err := out.Replay(t.Context(), producer.Replay{Selection: outbox.Selection{Key: "bad"}})
	if err != nil || report.Replayed != 5 {
		t.Fatalf("replay did %+v, %v", report, err)
	}
	eventually(t, "what was delivered before is delivered again", func() bool { return len(got.of("bad", 5)) == 5 })
	broken.Store(false)
	eventually(t, "the key goes on", func() bool { return len(got.of("bad", 0)) == 13 })
	if all, want := got.of("bad", 0), slices.Concat(versions("bad", 1, 5), versions("bad", 1, 8)); !slices.Equal(all, want) {
		t.Errorf("sent %v, want %v", all, want)
	}
}

func TestReplayedEventsOfAKeyThatWaitsKeepItsOrder(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) { t.Parallel(); testReplayOfABlockedKey(t, onPostgres(t)) })
	t.Run("sqlite", func(t *testing.T) { t.Parallel(); testReplayOfABlockedKey(t, onSQLite(t)) })
}

func TestReplayAfterTheJanitorFindsWhatIsLeft(t *testing.T) {
	t.Parallel()
	store := onSQLite(t)
	outbox := outboxOn(t, store)
	got := newJournal(nil)
	relay := relayFor(t, outbox, got, relay.Config{})
	janitor, err := producer.NewJanitor(store, producer.JanitorConfig{Retention: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	deliver := func(version int) {
		t.Helper()
		write(t, outbox, "topic", "key", version)
		if _, err := relay.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	deliver(1)
	eventually(t, "the first one is removed", func() bool {
		r, err := janitor.RunOnce(t.Context())
		return err == nil && r.Events == 1
	})
	deliver(2)
	report, err := outbox.Replay(t.Context(), producer.Replay{All: true})
	if err != nil || report.Replayed != 1 {
		t.Fatalf("replay did %+v, %v", report, err)
	}
	if _, err := relay.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all := got.of("key", 0); !slices.Equal(all, []string{"key/1", "key/2", "key/2"}) {
		t.Errorf("sent %v", all)
	}
}

func TestReplayBeyondTheHorizonNeedsForce(t *testing.T) {
	t.Parallel()
	store := onSQLite(t)
	outbox, err := producer.New(store, producer.Config{Name: "test", ResendFor: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	got := newJournal(nil)
	relay := relayFor(t, outbox, got, relay.Config{})
	write(t, outbox, "topic", "key", 1)
	if _, err := relay.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the horizon is over", func() bool {
		report, err := outbox.Replay(t.Context(), producer.Replay{All: true})
		if err != nil && (report.Replayed != 0 || !strings.Contains(err.Error(), "could be sent until")) {
			t.Fatalf("refused replay did %+v, %v", report, err)
		}
		if err == nil { // it was in time
			if _, err := relay.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		return errors.Is(err, producer.ErrBeyondHorizon)
	})
	before := len(got.of("key", 0))
	report, err := outbox.Replay(t.Context(), producer.Replay{All: true, Force: true})
	if err != nil || report.Replayed != 1 {
		t.Fatalf("replay by force did %+v, %v", report, err)
	}
	if _, err := relay.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(got.of("key", 0)); n != before+1 {
		t.Errorf("sent %d times, was %d", n, before)
	}
}

func TestReplayWaitsForNoRelayBeyondItsBatch(t *testing.T) {
	t.Parallel()
	store := onSQLite(t)
	outbox := outboxOn(t, store)
	relay := relayFor(t, outbox, newJournal(nil), relay.Config{})
	for version := range 5 {
		write(t, outbox, "topic", "key", version+1)
	}
	if _, err := relay.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	report, err := outbox.Replay(ctx, producer.Replay{All: true, InQueue: 2, Progress: func(producer.ReplayReport) { cancel() }})
	if !errors.Is(err, context.Canceled) || report.Replayed != 2 || report.Done {
		t.Fatalf("replay without a relay did %+v, %v", report, err)
	}
}

func TestReplayRefusesWhatIsNotMeant(t *testing.T) {
	t.Parallel()
	out := outboxOn(t, onSQLite(t))
	now := time.Now()
	for name, c := range map[string]struct {
		r    producer.Replay
		word string
	}{
		"nothing selected": {producer.Replay{}, "All"},
		"all and a topic":  {producer.Replay{All: true, Selection: outbox.Selection{Topic: "topic"}}, "All"},
		"times":            {producer.Replay{Selection: outbox.Selection{From: now, To: now}}, "From"},
		"after":            {producer.Replay{All: true, After: -1}, "After"},
		"limit":            {producer.Replay{All: true, Limit: -1}, "Limit"},
		"in queue":         {producer.Replay{All: true, InQueue: -1}, "InQueue"},
	} {
		if _, err := out.Replay(t.Context(), c.r); err == nil || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%s: error %v does not name %s", name, err, c.word)
		}
	}
}
