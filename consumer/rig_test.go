package consumer_test

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

// work is what a handler is given in these tests.
type work = consumer.Work[*fakeTx]

// rig is an inbox over a fake database, with one handler.
type rig struct {
	t       *testing.T
	store   *fakeStore
	inbox   *consumer.Inbox[*fakeTx]
	handler *consumer.Handler[*fakeTx]
	log     *logBuffer
	calls   atomic.Int64                  // of the handler
	gate    atomic.Pointer[chan struct{}] // what the opener of a group waits for
}

// setup is what a test changes of a rig.
type setup struct {
	store   *fakeStore
	outbox  *producer.Outbox[*fakeTx]
	config  consumer.Config
	handler consumer.HandlerConfig
	fn      consumer.HandlerFunc[*fakeTx]
}

// newRig returns a rig whose handler has the effect "did <dispatch ID>" before it
// calls the setup's function.
func newRig(t *testing.T, s setup) *rig {
	t.Helper()
	r := &rig{t: t, store: s.store, log: &logBuffer{}}
	if r.store == nil {
		r.store = newFake()
	}
	if s.config.Service == "" {
		s.config.Service = "stock"
	}
	s.config.Logger = textLogger(r.log)
	var err error
	var options []consumer.Option[*fakeTx]
	if s.outbox != nil {
		options = append(options, consumer.WithOutbox(s.outbox))
	}
	if r.inbox, err = consumer.New(r.store, s.config, options...); err != nil {
		t.Fatal(err)
	}
	if s.handler.Topic == "" {
		s.handler.Topic = "orders"
	}
	r.handler, err = r.inbox.Handle("reserve", func(ctx context.Context, w *work, msg *message.Message) error {
		r.calls.Add(1)
		w.DB().Do("did " + w.Event().ID.String())
		if gate := r.gate.Load(); gate != nil && w.Event().ID == number(opener) {
			<-*gate
		}
		if s.fn == nil {
			return nil
		}
		return s.fn(ctx, w, msg)
	}, s.handler)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// handle adds another handler to the inbox.
func (r *rig) handle(name string, fn consumer.HandlerFunc[*fakeTx]) *consumer.Handler[*fakeTx] {
	r.t.Helper()
	h, err := r.inbox.Handle(name, fn, consumer.HandlerConfig{Topic: "orders"})
	if err != nil {
		r.t.Fatal(err)
	}
	return h
}

// consume has the message handled and fails the test if it is not acknowledged.
func (r *rig) consume(msg *message.Message) {
	r.t.Helper()
	if err := r.handler.Consume(msg); err != nil {
		r.t.Fatalf("Consume: %v", err)
	}
}

// wantCalls checks how often the handler was run.
func (r *rig) wantCalls(want int64) {
	r.t.Helper()
	if got := r.calls.Load(); got != want {
		r.t.Errorf("handler was run %d times, want %d", got, want)
	}
}

// wantDone checks how often the effect of a dispatch was committed.
func (r *rig) wantDone(id uuid.UUID, want int) {
	r.t.Helper()
	if got := r.store.done("did " + id.String()); got != want {
		r.t.Errorf("effect of %s was committed %d times, want %d", id, got, want)
	}
}

// wantStates checks what is parked.
func (r *rig) wantStates(want ...inbox.State) {
	r.t.Helper()
	got := r.store.states()
	if len(got) != len(want) {
		r.t.Fatalf("parked: %v, want %v", got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			r.t.Fatalf("parked: %v, want %v", got, want)
		}
	}
}

// wantLog checks that the log has a line with all of the words.
func (r *rig) wantLog(words ...string) {
	r.t.Helper()
	for line := range strings.Lines(r.log.String()) {
		found := true
		for _, w := range words {
			found = found && strings.Contains(line, w)
		}
		if found {
			return
		}
	}
	r.t.Errorf("no log line with %q in:\n%s", words, r.log.String())
}

// parked returns the only parked message.
func (r *rig) parked() inbox.Parked {
	r.t.Helper()
	found, err := r.inbox.ListParked(r.t.Context(), inbox.Filter{})
	if err != nil || len(found) != 1 {
		r.t.Fatalf("ListParked: %d messages, %v; want one", len(found), err)
	}
	return found[0]
}

// run runs the inbox until the returned function is called.
func (r *rig) run() (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() { done <- r.inbox.Run(ctx) }()
	return func() {
		r.t.Helper()
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("Run: %v", err)
		}
	}
}

func fresh(e transport.Event) *message.Message { return e.Message() }

func textLogger(b *logBuffer) *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }
