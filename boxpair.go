// Package boxpair runs the parts of a service. The parts themselves are in packages producer (the
// outbox), producer/relay, consumer (the inbox) and middleware.
package boxpair

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/producer"
)

// Part is a part of a service, such as a [producer.Outbox], a relay, a [producer.Janitor] or an
// inbox.
type Part interface {
	// Run works until ctx ends, finishes the work in hand, and returns nil.
	Run(ctx context.Context) error
}

// Group holds the parts of a service that run in one process. A nil part runs in another process, or
// not at all.
type Group struct {
	// Outbox wakes relays in other processes.
	Outbox Part
	// Janitor removes events some time after their delivery. Defaults to a janitor of Outbox with
	// the defaults of [producer.JanitorConfig]: a retention of 7 days.
	Janitor Part
	// NoJanitor leaves the janitor to another process, such as boxpair relay.
	NoJanitor bool
	// Relay publishes committed events.
	Relay Part
	// Inbox retries parked messages, and forgets old dispatch IDs.
	Inbox Part
	// Router receives the messages of the inbox's handlers.
	Router *message.Router
	// Others run beside the relay: further relays, idempotent.Requests, a server.
	Others []Part

	// Logger receives the names of running and ended parts. Defaults to [slog.Default].
	Logger *slog.Logger
}

// Run starts the parts in order, runs them until ctx or a part ends, and stops them in order.
// Handlers start before the relay, so at a first start their queues are there. Parts that take in
// work stop first: the router, which waits for running handlers for its CloseTimeout at most, then
// the inbox, the relay and Others, the janitor and the outbox. A part stops when the part before has
// returned.
//
// Run returns nil if ctx ended and all parts have returned nil. Otherwise Run returns the errors of
// the parts, each with the name of the part. The end of a part before the end of ctx is an error,
// even if the part has returned nil: no part is left out in silence.
func (g Group) Run(ctx context.Context) error {
	log := g.Logger
	if log == nil {
		log = slog.Default()
	}
	parts, err := g.parts()
	if err != nil {
		return err
	}
	names := make([]string, len(parts))
	for i, p := range parts {
		names[i] = p.name
	}
	log.InfoContext(ctx, "service starts", "parts", names)
	switch {
	case g.Inbox != nil && g.Router == nil:
		log.WarnContext(ctx, "no router in the group: parked messages are retried, and no message is received")
	case g.Router != nil && g.Inbox == nil:
		log.WarnContext(ctx, "no inbox in the group: parked messages are not retried, and no dispatch ID is forgotten")
	}
	ended := make(chan *running, len(parts))
	for i, p := range parts {
		if ctx.Err() != nil || len(ended) > 0 || !p.start(ctx, ended) {
			parts = parts[:i+1]
			break
		}
	}
	var early *running
	select {
	case <-ctx.Done():
	case early = <-ended:
		log.ErrorContext(ctx, "part of the service has ended, the others are stopped", "part", early.name, "error", early.err)
		if early.err == nil {
			early.err = errEnded
		}
	}
	err = stopAll(parts)
	if err == nil {
		log.InfoContext(ctx, "service has stopped")
	}
	return err
}

// errEnded is the error of a part that has ended early and returned nil.
var errEnded = errors.New("has ended before its context")

// parts returns the parts in the order in which they start.
func (g Group) parts() ([]*running, error) {
	var parts []*running
	add := func(name string, stopped int, p Part) {
		if p != nil {
			parts = append(parts, &running{name: name, stopped: stopped, run: p.Run})
		}
	}
	if g.NoJanitor && g.Janitor != nil {
		return nil, errors.New("group: set either Janitor or NoJanitor")
	}
	if maker, ok := g.Outbox.(interface {
		Janitor(cfg producer.JanitorConfig) (*producer.Janitor, error)
	}); ok && !g.NoJanitor && g.Janitor == nil {
		janitor, err := maker.Janitor(producer.JanitorConfig{Logger: g.Logger})
		if err != nil {
			return nil, fmt.Errorf("group: %w", err)
		}
		g.Janitor = janitor
	}
	add("outbox", 5, g.Outbox)
	add("janitor", 4, g.Janitor)
	if g.Router != nil {
		parts = append(parts, &running{name: "router", stopped: 1, run: g.Router.Run, ready: g.Router.Running(), close: g.Router.Close})
	}
	add("inbox", 2, g.Inbox)
	add("relay", 3, g.Relay)
	for i, p := range g.Others {
		if p == nil {
			return nil, fmt.Errorf("group: Others[%d] is nil", i)
		}
		add(fmt.Sprintf("others[%d]", i), 3, p)
	}
	if len(parts) == 0 {
		return nil, errors.New("group: no part is set")
	}
	return parts, nil
}

// running is a part of a group.
type running struct {
	name    string
	stopped int // place in the order of stopping
	run     func(ctx context.Context) error
	ready   <-chan struct{} // closed when the part is at work, or nil
	close   func() error    // stops a part with ready; other parts end with their context

	cancel context.CancelFunc
	done   chan struct{} // closed when the part has ended
	err    error
}

// start runs the part, and tells whether the part is at work.
func (p *running) start(ctx context.Context, ended chan<- *running) bool {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p.cancel, p.done = cancel, make(chan struct{})
	go func() {
		p.err = p.run(own)
		close(p.done)
		ended <- p
	}()
	if p.ready == nil {
		return true
	}
	select {
	case <-p.ready:
		return true
	case <-p.done:
	case <-ctx.Done():
	}
	return false
}

// stop stops the part and waits for its end.
func (p *running) stop() error {
	var err error
	select {
	case <-p.ready:
		err = p.close()
	default: // no close, or a router that was not at work: Close would wait for handlers that never ran
	}
	p.cancel()
	<-p.done
	if err = errors.Join(p.err, err); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// stopAll stops the parts that were started, in the order of stopping.
func stopAll(parts []*running) error {
	slices.SortStableFunc(parts, func(a, b *running) int { return a.stopped - b.stopped })
	var errs []error
	for _, p := range parts {
		if p.cancel != nil {
			errs = append(errs, p.stop())
		}
	}
	return errors.Join(errs...)
}
