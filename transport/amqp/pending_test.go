package amqp

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

// TestWhatIsGatheredIsNotWaitedForLonger than what was published, nor forgotten with the channel.
func TestWhatIsGatheredIsNotWaitedForLonger(t *testing.T) {
	t.Parallel()
	p, err := NewPublisher(PublisherConfig{AMQP: DurableQueue("amqp://localhost"), Envelope: true, BatchSize: 10})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	outcomes := make(map[string][]transport.Result)
	c := &confirmChannel{lastAnswer: time.Now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, of := range []struct {
		name string
		ctx  context.Context
	}{{"impatient", ctx}, {"patient", t.Context()}} {
		p.window <- struct{}{}
		done := func(r transport.Result) { outcomes[of.name] = append(outcomes[of.name], r) }
		if !p.packets.gather(of.ctx, c, &outgoing{key: "queue", messages: 1, mayBatch: true}, done) {
			t.Fatal("not gathered")
		}
	}
	if len(c.pending.order) != 1 || len(c.pending.order[0].slots) != 2 || !c.pending.has(&outgoing{key: "queue"}) ||
		c.pending.has(&outgoing{key: "other"}) {
		t.Fatalf("gathered: %+v", c.pending)
	}
	report := func(judged []judgement) {
		for _, j := range judged {
			j.done(j.result)
		}
	}
	report(p.judge.overdue(c, nil))
	if len(outcomes) != 0 {
		t.Fatalf("outcomes %v before the end of a context", outcomes)
	}
	cancel()
	for range 2 {
		report(p.judge.overdue(c, nil))
	}
	if len(outcomes["impatient"]) != 1 || !errors.Is(outcomes["impatient"][0].Err, context.Canceled) || len(outcomes["patient"]) != 0 {
		t.Fatalf("outcomes %v at the end of a context", outcomes)
	}
	// A batch that nobody waits for is not published any more.
	p.window <- struct{}{}
	if !p.packets.gather(ctx, c, &outgoing{key: "other", messages: 1, mayBatch: true}, func(transport.Result) {}) {
		t.Fatal("not gathered")
	}
	report(p.judge.overdue(c, nil))
	slices.Reverse(c.pending.order)
	c.packets, c.pending.order[1].since = gatherAbove, time.Now().Add(time.Hour) // the other one is not to be published yet
	changed := p.changed
	p.waiting = 1 // for its bytes
	if p.packets.publishDue(c); len(c.pending.order) != 1 || c.pending.byRoute[destination{key: "other"}] != nil {
		t.Fatalf("gathered: %+v", c.pending)
	}
	select {
	case <-changed:
	default:
		t.Error("nobody is told that there is room")
	}
	report(p.packets.end(c, nil))
	if len(outcomes["impatient"]) != 1 || len(outcomes["patient"]) != 1 || outcomes["patient"][0].Outcome != transport.Unavailable {
		t.Errorf("outcomes %v without the channel", outcomes)
	}
	if len(p.window) != 0 || p.bytes != 0 || c.abandoned != 0 || len(c.pending.order)+len(c.pending.byRoute) != 0 {
		t.Errorf("%d places, %d bytes, %d abandoned, gathered %+v", len(p.window), p.bytes, c.abandoned, c.pending)
	}
}

// TestWhatIsGatheredIsASuspectAfterAnException, in its place of the window.
func TestWhatIsGatheredIsASuspectAfterAnException(t *testing.T) {
	t.Parallel()
	p, err := NewPublisher(PublisherConfig{AMQP: DurableQueue("amqp://localhost"), Envelope: true, BatchSize: 10})
	if err != nil {
		t.Fatal(err)
	}
	var outcomes []transport.Result
	c := &confirmChannel{failure: &amqp091.Error{Code: amqp091.NotFound, Server: true}} // for another message
	p.window <- struct{}{}
	p.mu.Lock()
	gathered := p.packets.gather(t.Context(), c, &outgoing{key: "queue", messages: 1, mayBatch: true}, func(r transport.Result) { outcomes = append(outcomes, r) })
	judged := p.packets.end(c, nil)
	p.mu.Unlock()
	if !gathered || len(judged) != 0 || len(p.suspects.list) != 1 || p.suspects.list[0].in.key != "queue" || len(p.window) != 1 || len(c.pending.order) != 0 {
		t.Fatalf("gathered: %t, judged %v, %d suspects, %d places", gathered, judged, len(p.suspects.list), len(p.window))
	}
	p.suspects.giveUp(errNotConnected)
	if len(outcomes) != 1 || outcomes[0].Outcome != transport.Unavailable || len(p.window) != 0 || len(p.suspects.list) != 0 {
		t.Errorf("outcomes %v without another channel, %d places, %d suspects", outcomes, len(p.window), len(p.suspects.list))
	}
}
