package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/boxpair/boxpair/store/control"
)

// Pause stops a consumer, in all processes, from handling messages ([control.Consumer]). The name
// is that of any consumer that shares the tables, such as "stock/reserve", or "stock/*" for all
// consumers of a service. A process sees the pause within a second; handlers that run then finish.
// Messages stay at the broker or parked, without counted attempts. A pause replaces the one of its
// name. Pause returns an error that joins all faults of p, and writes nothing then. An error that
// wraps [control.ErrOver] says that Until is over by the database's clock: nothing is paused under the
// name.
func (i *Inbox[TX]) Pause(ctx context.Context, p control.Pause) error {
	errs := []error{ofInbox(p.Kind), p.Validate()}
	if p.Kind == control.Consumer && p.Name != "" {
		errs = append(errs, checkConsumer(p.Name))
	}
	if !p.Until.IsZero() && !p.Until.After(time.Now()) {
		errs = append(errs, fmt.Errorf("Until: %s is over", p.Until.UTC().Format(time.RFC3339)))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	if err := p.Begin(ctx, i.store); err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	attrs := []any{"consumer", p.Name, "reason", p.Reason, "by", p.By}
	if !p.Until.IsZero() {
		attrs = append(attrs, slog.Time("until", p.Until))
	}
	i.log.InfoContext(ctx, "handling paused", attrs...)
	return nil
}

// Resume ends the pause of a name, exactly as given to [Inbox.Pause], and tells whether the pause
// was in force. The kind is [control.Consumer]. Processes see it within a second.
func (i *Inbox[TX]) Resume(ctx context.Context, kind control.Kind, name string) (bool, error) {
	if err := ofInbox(kind); err != nil {
		return false, fmt.Errorf("resume: %w", err)
	}
	ended, err := i.store.EndPause(ctx, kind, name)
	if err == nil && ended {
		i.log.InfoContext(ctx, "handling resumed", "consumer", name)
	}
	return ended, err
}

// Pauses reads the pauses of consumers that are in force, by name, also of other services that
// share the tables.
func (i *Inbox[TX]) Pauses(ctx context.Context) ([]control.Pause, error) {
	list, err := i.store.Pauses(ctx)
	return slices.DeleteFunc(list, func(p control.Pause) bool { return p.Kind != control.Consumer }), err
}

// ofInbox returns an error if an inbox cannot pause the kind.
func ofInbox(kind control.Kind) error {
	switch kind {
	case control.Consumer:
		return nil
	case control.Topic, control.Downstream:
		return fmt.Errorf("Kind: a %s belongs to its outbox, which has methods of the same names", kind)
	}
	return fmt.Errorf("Kind: %q is not consumer", string(kind))
}

// checkConsumer checks the form of a consumer's name, or of a pattern for all of a service.
func checkConsumer(name string) error {
	service, handler, _ := strings.Cut(name, "/")
	if service == "" || handler == "" || strings.Contains(service, "*") {
		return fmt.Errorf("Name: %q is not of the form service/handler, or service/* for all consumers of a service", name)
	}
	return nil
}
