package relay

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

	"github.com/boxpair/boxpair/producer/relay/internal/core"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

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
	cfg, err := Config{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	bad, good := outbox.Queued{Unreadable: "headers are no JSON object"}, outbox.Queued{}
	for name, e := range map[string]*core.Entry{
		"alone":      {Queued: bad},
		"in a batch": {Queued: good, BatchTail: []*core.Entry{{Queued: good}, {Queued: bad}}},
	} {
		l := newRelayLoop(nil, strict{t: t}, cfg, false)
		l.until[0].Store(int64(time.Hour))
		l.send(t.Context(), e)
		if len(l.box.outcomes) != 1 || l.box.outcomes[0].Outcome != transport.Invalid || !strings.Contains(l.box.outcomes[0].Err.Error(), bad.Unreadable) {
			t.Errorf("%s: outcomes are %+v", name, l.box.outcomes)
		}
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
	cfg, err := Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	l := newRelayLoop(nil, panicking{}, cfg, false)
	if route := l.route("topic"); route != "topic" {
		t.Errorf("the route is %q", route)
	}
	if text := log.String(); !strings.Contains(text, "level=ERROR") || !strings.Contains(text, "topic=topic") || strings.Contains(text, "payload") {
		t.Errorf("logged %q", text)
	}
}
