package producer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/boxpair/boxpair/internal/topics"
	"github.com/boxpair/boxpair/store/control"
)

// Pause stops relays, in all processes, from sending to topics ([control.Topic]; the name is a
// pattern in the syntax of the relays' Downstream.Topics) or to a downstream
// ([control.Downstream]). A relay sees the pause within a second; events in flight are confirmed as
// usual. Events of paused topics stay in the outbox without counted attempts, and later events of
// their keys wait for them, also on topics that are not paused. Topics with one route are paused
// together. A pause replaces the one of its kind and name. Pause returns an error that joins all
// faults of p, and writes nothing then. An error that wraps [control.ErrOver] says that Until is over
// by the database's clock: nothing is paused under the name.
func (o *Outbox[TX]) Pause(ctx context.Context, p control.Pause) error {
	errs := []error{ofOutbox(p.Kind), p.Validate()}
	if p.Kind == control.Topic {
		if err := topics.CheckPattern(p.Name); err != nil {
			errs = append(errs, fmt.Errorf("Name: %w", err))
		}
	}
	if !p.Until.IsZero() && !p.Until.After(time.Now()) {
		errs = append(errs, fmt.Errorf("Until: %s is over", p.Until.UTC().Format(time.RFC3339)))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	if err := p.Begin(ctx, o.store); err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	attrs := []any{"kind", string(p.Kind), "name", p.Name, "reason", p.Reason, "by", p.By}
	if !p.Until.IsZero() {
		attrs = append(attrs, slog.Time("until", p.Until))
	}
	o.cfg.Logger.InfoContext(ctx, "sending paused", attrs...)
	return nil
}

// Resume ends the pause of a kind and a name, exactly as given to [Outbox.Pause], and tells whether
// the pause was in force. Relays see it within a second.
func (o *Outbox[TX]) Resume(ctx context.Context, kind control.Kind, name string) (bool, error) {
	if err := ofOutbox(kind); err != nil {
		return false, fmt.Errorf("resume: %w", err)
	}
	ended, err := o.store.EndPause(ctx, kind, name)
	if err == nil && ended {
		o.cfg.Logger.InfoContext(ctx, "sending resumed", "kind", string(kind), "name", name)
	}
	return ended, err
}

// Pauses reads the pauses of topics and downstreams that are in force, by kind and name.
func (o *Outbox[TX]) Pauses(ctx context.Context) ([]control.Pause, error) {
	list, err := o.store.Pauses(ctx)
	return slices.DeleteFunc(list, func(p control.Pause) bool { return ofOutbox(p.Kind) != nil }), err
}

// ofOutbox returns an error if an outbox cannot pause the kind.
func ofOutbox(kind control.Kind) error {
	switch kind {
	case control.Topic, control.Downstream:
		return nil
	case control.Consumer:
		return errors.New("Kind: a consumer belongs to its inbox, which has methods of the same names")
	}
	return fmt.Errorf("Kind: %q is neither topic nor downstream", string(kind))
}
