// Package control is the part of a store that outbox and inbox have in common: what an operator has
// paused, and the rate limits that all processes share.
package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Kind says what a [Pause] stops.
type Kind string

const (
	// Topic stops the sending of topics. The name is a pattern, as of relay.Downstream.Topics.
	Topic Kind = "topic"
	// Downstream stops the sending to a downstream of a relay, by its name.
	Downstream Kind = "downstream"
	// Consumer stops the handling of messages by a consumer. The name is that of the consumer, as
	// stock/reserve, or that of a service followed by "/*", for all its consumers.
	Consumer Kind = "consumer"
)

// Pause stops something until an operator resumes it, or until a time. Nothing is lost meanwhile,
// and no attempt is counted.
type Pause struct {
	Kind Kind
	Name string // at most 255 bytes
	// Since is when the pause began. [Store.SetPause] ignores the field.
	Since time.Time
	// Until is when the pause ends by itself, by the database's clock. Zero means never.
	Until time.Time
	// Reason is why, at most 1 KiB. Required.
	Reason string
	// By is who has paused, at most 255 bytes. Defaults to the database's user, where it has users.
	By string
}

// Consumes tells whether p pauses the consumer with the name.
func (p *Pause) Consumes(consumer string) bool {
	if p.Kind != Consumer {
		return false
	}
	service, all := strings.CutSuffix(p.Name, "/*")
	return p.Name == consumer || all && strings.HasPrefix(consumer, service+"/")
}

// String returns a sentence for logs and errors.
func (p *Pause) String() string {
	text := fmt.Sprintf("%s %s is paused", p.Kind, p.Name)
	if !p.Until.IsZero() {
		text += " until " + p.Until.UTC().Format(time.RFC3339)
	}
	if p.By != "" {
		text += " by " + p.By
	}
	return text + ": " + p.Reason
}

// ErrOver says that the end of a pause is over by the database's clock.
var ErrOver = errors.New("is over by the database's clock")

// Begin begins a pause, or replaces one, and sees that the pause is in force: Until may come from
// another clock than the database's. An error that wraps [ErrOver] says that nothing is paused under
// the name.
func (p *Pause) Begin(ctx context.Context, s Store) error {
	if err := s.SetPause(ctx, *p); err != nil {
		return err
	}
	list, err := s.Pauses(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("the pause is written, but not read back: %w", err)
	case slices.ContainsFunc(list, func(o Pause) bool { return o.Kind == p.Kind && o.Name == p.Name }):
		return nil
	case p.Until.IsZero():
		return errors.New("the pause is not in force: somebody has ended it")
	}
	return fmt.Errorf("Until: %s %w", p.Until.UTC().Format(time.RFC3339), ErrOver)
}

// Store keeps pauses and the buckets of rate limits. All methods may be called concurrently. The
// database's clock decides.
type Store interface {
	// Pauses reads the pauses in force, by kind and name. It locks nothing.
	Pauses(ctx context.Context) ([]Pause, error)
	// SetPause begins a pause, or replaces the one of the same kind and name, which keeps its Since
	// if it was in force. SetPause also removes pauses that are over.
	SetPause(ctx context.Context, p Pause) error
	// EndPause ends a pause, and tells whether it was in force.
	EndPause(ctx context.Context, kind Kind, name string) (bool, error)

	// TakeTokens takes up to want tokens, at least 1, from the bucket with the name, at most 255
	// bytes. The bucket gains perSecond tokens a second and holds those of one second, at least one
	// token; a new bucket is full. TakeTokens never waits for tokens: without a whole token, granted
	// is 0, and next is how long from now the bucket will have one.
	TakeTokens(ctx context.Context, name string, perSecond float64, want int) (granted int, next time.Duration, err error)
}

const (
	maxName   = 255
	maxReason = 1 << 10
)

// Validate returns an error that joins all faults of p.
func (p *Pause) Validate() error {
	var errs []error
	text := func(field, value string, least, most int) {
		switch {
		case len(value) < least:
			errs = append(errs, fmt.Errorf("%s: is required", field))
		case len(value) > most:
			errs = append(errs, fmt.Errorf("%s: has %d bytes, at most %d", field, len(value), most))
		case !utf8.ValidString(value), strings.ContainsRune(value, 0):
			errs = append(errs, fmt.Errorf("%s: is not valid UTF-8 without NUL", field))
		}
	}
	if p.Kind != Topic && p.Kind != Downstream && p.Kind != Consumer {
		errs = append(errs, fmt.Errorf("Kind: %q is none of topic, downstream and consumer", p.Kind))
	}
	text("Name", p.Name, 1, maxName)
	text("Reason", p.Reason, 1, maxReason)
	text("By", p.By, 0, maxName)
	return errors.Join(errs...)
}
