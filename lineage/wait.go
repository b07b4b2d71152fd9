package lineage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/outbox"
)

var (
	// ErrCut is wrapped by [Lineage.WaitDone] if the tree is larger than Config.MaxEvents, or deeper
	// than Config.MaxDepth: events beyond these limits may not be done.
	ErrCut = errors.New("tree is larger than was looked for: raise Config.MaxEvents or Config.MaxDepth")
	// ErrNoConsumer is wrapped by [Lineage.WaitApplied] if the call names no consumer, and no consumer
	// of Config.Consumers expects the topic.
	ErrNoConsumer = errors.New("no consumer of Config.Consumers expects the topic")
)

// FailedError is the error of a wait that only an operator can end.
type FailedError struct{ Open }

// Error names the event, the consumer and the reason.
func (e *FailedError) Error() string { return e.String() }

// WaitDone blocks until an event and its descendants are done: delivered, and applied by every
// consumer that expects their topics. WaitDone looks at once, and then after pauses that double up to
// Config.MaxInterval.
//
// The error is a [*FailedError] as soon as one part needs an operator. The error wraps [ErrUnknown] if
// no outbox has the event, and [ErrCut] if the tree is too large. If ctx ends, the error wraps the
// cause of ctx and names an unfinished part. An error of a database ends the wait; a new wait may
// follow.
func (l *Lineage) WaitDone(ctx context.Context, id uuid.UUID) error {
	return l.wait(ctx, func(ctx context.Context) (*Open, error) {
		p, err := l.Done(ctx, id)
		switch {
		case err != nil:
			return nil, err
		case p.failed() != nil:
			return nil, &FailedError{*p.failed()}
		case p.Cut:
			return nil, fmt.Errorf("event %s: %w", id, ErrCut)
		case len(p.Open) > 0:
			return &p.Open[0], nil
		}
		return nil, nil
	})
}

// WaitApplied blocks until all consumers have applied an event. Without consumers, it waits for every
// consumer of Config.Consumers that expects the topic. WaitApplied looks at once, and then after
// pauses that double up to Config.MaxInterval. Only [Lineage.WaitDone] waits for the handlers' events.
//
// The error is a [*FailedError] if a message is dead, discarded, too old or altered, or if a consumer
// has no message and the event is dead, discarded or cancelled. The error wraps [ErrUnknown] if no
// outbox has the event. If ctx ends, the error wraps the cause of ctx and names a consumer that has
// not applied the event.
func (l *Lineage) WaitApplied(ctx context.Context, id uuid.UUID, consumers ...string) error {
	return l.wait(ctx, func(ctx context.Context) (*Open, error) {
		node, err := l.root(ctx, id)
		if err != nil {
			return nil, err
		}
		if err := l.readMessages(ctx, []*Node{node}); err != nil {
			return nil, err
		}
		names := consumers
		if len(names) == 0 {
			names = l.cfg.expecting(node.Event.Topic)
		}
		if len(names) == 0 {
			return nil, fmt.Errorf("event %s: topic %q: %w", id, node.Event.Topic, ErrNoConsumer)
		}
		return node.unapplied(names)
	})
}

// unapplied returns an open part of one of the consumers, or nil, or a [*FailedError].
func (n *Node) unapplied(consumers []string) (first *Open, err error) {
	list := n.open()
	for _, name := range consumers {
		if !slices.ContainsFunc(n.Messages, func(m Message) bool { return m.Consumer == name }) && !slices.Contains(n.Missing, name) {
			list = append(list, Open{ID: n.Event.ID, Topic: n.Event.Topic, Outbox: n.Outbox, Consumer: name, State: missing, Why: "has not got it"})
		}
	}
	for i := range list {
		o := &list[i]
		switch {
		case !slices.Contains(consumers, o.Consumer):
		case o.Failed:
			return nil, &FailedError{*o}
		case first == nil || first.State == missing:
			first = o
		}
	}
	if first != nil && first.State == missing && n.Event.State != outbox.DeliveredState && list[0].Failed {
		return nil, &FailedError{list[0]} // the event itself
	}
	return first, nil
}

// wait calls look until look returns no open part, or an error.
func (l *Lineage) wait(ctx context.Context, look func(context.Context) (*Open, error)) error {
	var last *Open
	for pause := min(firstPause, l.cfg.MaxInterval); ; pause = min(2*pause, l.cfg.MaxInterval) {
		open, err := look(ctx)
		switch {
		case err != nil && ctx.Err() != nil && last != nil: // the look was interrupted
			return fmt.Errorf("%w: %v", context.Cause(ctx), last)
		case err != nil || open == nil:
			return err
		}
		last = open
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w: %v", context.Cause(ctx), last)
		}
	}
}
