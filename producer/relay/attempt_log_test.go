package relay

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/producer/relay/internal/core"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

func TestEveryAttemptHasALineInTheLogAtLevelDebug(t *testing.T) {
	t.Parallel()
	for level, want := range map[slog.Level]int{slog.LevelDebug: 3, slog.LevelInfo: 0} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := realStore()
				f.Add("good", "a customer")
				sender := &fakeSender{took: 20 * time.Millisecond, answer: func(topic string, _ *message.Message) transport.Result {
					if topic == "bad" {
						return transport.Result{Outcome: transport.Refused, Err: errors.New("queue is full")}
					}
					return transport.Result{Outcome: transport.Confirmed}
				}}
				var log bytes.Buffer
				var mu sync.Mutex
				logger := slog.New(slog.NewTextHandler(&lockedWriter{mu: &mu, to: &log}, &slog.HandlerOptions{Level: level}))
				r := relayOn(t, f, &f.Local, sender, Config{Logger: logger, Name: "r1", MaxAttempts: 2, Backoff: Backoff{Initial: time.Second, Max: time.Second}})
				stop := running(t, r)
				f.Add("bad", "another customer")
				time.Sleep(500 * time.Millisecond) // the second attempt is later
				stop()
				sender.pending.Wait()
				mu.Lock()
				defer mu.Unlock()
				text := log.String()
				if n := strings.Count(text, "attempt to publish an event"); n < min(want, 2) || want == 0 && n > 0 {
					t.Errorf("%d lines in:\n%s", n, text)
				}
				if strings.Contains(text, "customer") {
					t.Error("the log has a key")
				}
				for _, line := range []string{
					`dispatch_id=[0-9a-f-]{36} correlation_id=c topic=good attempt=1 outcome=confirmed duration=20ms relay=r1\n`,
					`dispatch_id=[0-9a-f-]{36} correlation_id=c topic=bad attempt=1 outcome=refused duration=20ms relay=r1 error="queue is full"\n`,
				} {
					if want > 0 && !regexp.MustCompile(line).MatchString(text) {
						t.Errorf("no line %s in:\n%s", line, text)
					}
				}
			})
		})
	}
}

func TestEveryEventOfABatchHasALine(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	l := &relayLoop{cfg: Config{Name: "r1", Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}}
	event := func(correlation string) *core.Entry {
		e := &core.Entry{Queued: outbox.Queued{Attempts: 3}, Redelivered: true}
		e.ID, e.Topic, e.CorrelationID = uuid.New(), "t", correlation
		return e
	}
	e := event("")
	e.BatchTail = []*core.Entry{event("request 7")}
	l.logging(t.Context(), e, func(transport.Result) {})(transport.Result{Outcome: transport.Confirmed})
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "attempt=4") || !strings.Contains(lines[0], "redelivered=true batch=2") ||
		!strings.Contains(lines[0], e.ID.String()) || !strings.Contains(lines[1], `correlation_id="request 7"`) {
		t.Errorf("got %q", lines)
	}
}

func TestAttemptsCostNothingWithoutTheLevel(t *testing.T) { // not in parallel: AllocsPerRun counts the whole process
	l := &relayLoop{cfg: Config{Logger: slog.New(slog.DiscardHandler)}}
	e, done := &core.Entry{}, func(transport.Result) {}
	if n := testing.AllocsPerRun(100, func() { l.logging(context.Background(), e, done) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
