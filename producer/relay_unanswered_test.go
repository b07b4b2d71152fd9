package producer

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

func TestASendWithoutAnOutcomeIsGivenUpAndSentAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lost := r.store.add("topic", "key")
	next := r.store.add("topic", "key")
	rel := r.start(RelayConfig{})
	rel.mute = func(s rigSend) bool { return s.seq == lost }
	r.run(time.Minute)
	origin := time.Unix(0, 0)
	if h := rel.core.state(origin); h.InFlight != 1 || origin.Add(r.now).Sub(h.OldestInFlight) < 50*time.Second {
		t.Fatalf("%d in flight, the oldest since %v", h.InFlight, h.OldestInFlight)
	}
	late := rel.muted
	rel.mute = nil
	rel.core.overdue(r.now, rel.core.unanswered.last-1)
	if rel.core.inflight != 1 {
		t.Fatal("a send was given up before its time")
	}
	rel.core.overdue(r.now, rel.core.unanswered.last)
	rel.muted = nil
	r.run(10 * time.Second)
	r.drained()
	if got, want := r.sent(), []int64{lost, next}; !slices.Equal(got, want) {
		t.Errorf("sent %v, want %v", got, want)
	}
	for _, s := range late { // nobody waits for it any more
		rel.core.outcome(r.now, sendResult{entry: s.entry, gen: s.gen, Result: confirmAll(s)})
	}
	r.run(time.Second)
	if h := rel.core.state(origin); h.InFlight != 0 || !h.OldestInFlight.IsZero() || h.Unmarked != 0 {
		t.Errorf("at the end the health is %+v", h)
	}
}

// strict is a sender that must be given nothing.
type strict struct {
	transport.Sender
	t *testing.T
}

func (s strict) Send(_ context.Context, _ string, m *message.Message, _ func(transport.Result)) {
	s.t.Errorf("sent %v", m.Metadata)
}

func TestEventThatCannotBeReadIsBuriedInsteadOfSent(t *testing.T) {
	t.Parallel()
	cfg, err := RelayConfig{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	bad, good := outbox.Queued{Unreadable: "headers are no JSON object"}, outbox.Queued{}
	for name, e := range map[string]*entry{
		"alone":      {Queued: bad},
		"in a batch": {Queued: good, riders: []*entry{{Queued: good}, {Queued: bad}}},
	} {
		l := newRelayLoop(nil, strict{t: t}, cfg, nil, false)
		l.until[0].Store(int64(time.Hour))
		e.shard = &shardState{}
		l.send(t.Context(), e)
		if len(l.box.outcomes) != 1 || l.box.outcomes[0].Outcome != transport.Invalid || !strings.Contains(l.box.outcomes[0].Err.Error(), bad.Unreadable) {
			t.Errorf("%s: outcomes are %+v", name, l.box.outcomes)
		}
	}
}

func TestSendsThatAreAnsweredAreForgotten(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(RelayConfig{Window: 4})
	stuck := r.store.add("topic", "stuck")
	rel.mute = func(s rigSend) bool { return s.seq == stuck }
	for range 100 {
		r.store.add("topic", "key")
	}
	r.run(time.Minute)
	if n := len(rel.core.unanswered.sends); n > 16 {
		t.Errorf("%d sends are remembered for a window of 4", n)
	}
}

func TestDeadlinesTellWhichSendsAreOverdue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []int64
		d := sendDeadlines{timeout: 16 * time.Second, ended: func(through int64) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, through)
		}}
		wantTold := func(want ...int64) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(told, want) {
				t.Errorf("overdue are %v, want %v", told, want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		for range 6 { // three share a context
			d.context(ctx)
			time.Sleep(400 * time.Millisecond)
		}
		time.Sleep(16 * time.Second)
		wantTold(3)
		time.Sleep(2 * time.Second)
		wantTold(3, 6)
		d.context(ctx)
		cancel() // the relay ends
		d.end()
		time.Sleep(time.Minute)
		wantTold(3, 6)
	})
}

// panicking is a sender that cannot tell a route.
type panicking struct{ transport.Sender }

func (panicking) Route(string) string { panic("payload") }

func TestARouteFunctionThatPanicsEndsNothing(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	cfg, err := RelayConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	l := newRelayLoop(nil, panicking{}, cfg, nil, false)
	if route := l.core.routeOf("topic"); route != "topic" {
		t.Errorf("the route is %q", route)
	}
	if text := log.String(); !strings.Contains(text, "level=ERROR") || !strings.Contains(text, "topic=topic") || strings.Contains(text, "payload") {
		t.Errorf("logged %q", text)
	}
}
