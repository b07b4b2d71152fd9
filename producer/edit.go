package producer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// editor is the consumer in the dispatch IDs of edited events, before the digest of their content.
const editor = "boxpair/edit/"

// Content is the part of an event that [Outbox.Edit] can change.
type Content struct {
	Payload       []byte
	Headers       map[string]string
	ContentType   string
	SchemaVersion int
}

// Edit writes an edited copy of a parked event, and then discards the event. The content of an
// event never changes under its dispatch ID, so the copy is an event of its own: a child of the
// event, with the same topic, key, type, source, version and correlation, a digest of its own, and
// the re-send horizon of this outbox from now on. Edit returns the dispatch ID of the copy.
//
// edit changes the content of the event, which it may keep or modify in place. An error of edit
// ends Edit, and nothing is written. The event is dead, retrying or discarded; otherwise the error
// wraps [ErrNotEditable], as for an unknown ID. A retrying event that is just being sent may be
// delivered besides its copy. The copy takes its place at the end of its key.
//
// The dispatch ID of the copy is computed from the event and the new content. Editing an event
// again to the same content writes no second copy and returns the same ID; so Edit can be repeated
// after any error, also if it wrote the copy and could not discard the event. Other content makes
// another copy, and what was written by an earlier Edit is not changed.
//
// The reason is required. It is kept in the attempts of the event behind the ID of the copy, and
// both have at most 1 KiB. An event that was discarded before keeps the reason of its discard.
func (o *Outbox[TX]) Edit(ctx context.Context, id uuid.UUID, reason string, edit func(c *Content) error) (uuid.UUID, error) {
	copied, err := o.edit(ctx, id, reason, edit)
	if err != nil {
		return copied, fmt.Errorf("edit event %s: %w", id, err)
	}
	return copied, nil
}

func (o *Outbox[TX]) edit(ctx context.Context, id uuid.UUID, reason string, edit func(c *Content) error) (uuid.UUID, error) {
	if err := checkReason(reason); err != nil {
		return uuid.Nil, err
	}
	original, err := o.editable(ctx, id)
	if err != nil {
		return uuid.Nil, err
	}
	record, err := o.edited(original, edit)
	if err != nil {
		return uuid.Nil, err
	}
	noted := "edited as " + record.ID.String() + ": " + reason
	if err := checkReason(noted); err != nil {
		return uuid.Nil, err
	}
	err = o.Transact(ctx, func(ctx context.Context, w *Writer[TX]) error {
		records := []outbox.Record{*record}
		known, err := w.append(ctx, records)
		if err != nil {
			return err
		}
		return w.observe(ctx, records, known)
	})
	if err != nil {
		return uuid.Nil, err
	}
	o.cfg.Logger.InfoContext(ctx, "event edited", "dispatch_id", id, "edited_as", record.ID, "reason", reason)
	if original.State == outbox.Discarded {
		return record.ID, nil
	}
	return record.ID, o.discardEdited(ctx, id, noted)
}

// editable reads an event that can be edited.
func (o *Outbox[TX]) editable(ctx context.Context, id uuid.UUID) (*outbox.Parked, error) {
	list, err := o.store.ListParked(ctx, outbox.Filter{IDs: []uuid.UUID{id}, Limit: 1})
	switch {
	case err != nil:
		return nil, err
	case len(list) == 0:
		return nil, fmt.Errorf("event is unknown or not parked: %w", ErrNotEditable)
	}
	p := &list[0]
	if !slices.Contains([]outbox.State{outbox.Dead, outbox.Retrying, outbox.Discarded}, p.State) {
		return nil, fmt.Errorf("event is %s: %w", p.State, ErrNotEditable)
	}
	// A column that cannot be decoded is left out, and a copy without it would be another event.
	if transport.ContentDigest(&p.Event) != p.Digest {
		return nil, errors.New("content of the event cannot be read, or does not fit its digest")
	}
	return p, nil
}

// edited returns the edited copy of p.
func (o *Outbox[TX]) edited(p *outbox.Parked, edit func(c *Content) error) (*outbox.Record, error) {
	c := Content{Payload: bytes.Clone(p.Payload), Headers: maps.Clone(p.Headers), ContentType: p.ContentType, SchemaVersion: p.SchemaVersion}
	if err := edit(&c); err != nil {
		return nil, err
	}
	r := &outbox.Record{Event: p.Event, OccurredAt: p.OccurredAt, ResendFor: o.cfg.ResendFor.Round(time.Second)}
	r.Payload, r.Headers, r.ContentType, r.SchemaVersion = c.Payload, c.Headers, c.ContentType, c.SchemaVersion
	err := o.cfg.validate(&Event{
		Topic: r.Topic, Key: r.Key, Type: r.Type, Source: r.Source, OccurredAt: r.OccurredAt, CorrelationID: r.CorrelationID,
		TraceParent: r.TraceParent, TraceState: r.TraceState, SchemaVersion: r.SchemaVersion, ContentType: r.ContentType,
		Payload: r.Payload, Headers: r.Headers,
	})
	if err != nil {
		return nil, err
	}
	if r.Digest = transport.ContentDigest(&r.Event); r.Digest == p.Digest {
		return nil, errors.New("content is unchanged: redrive the event instead")
	}
	r.ID = idgen.Child(editor+r.Digest.String(), p.ID, 0)
	r.Stamp, r.ResendUntil = time.Time{}, time.Time{}
	if r.CorrelationID == "" {
		r.CorrelationID = p.ID.String()
	}
	r.Shard = idgen.Shard(r.Key, r.ID)
	return r, nil
}

// discardEdited discards an event whose edited copy is written. Another Edit may have been faster.
func (o *Outbox[TX]) discardEdited(ctx context.Context, id uuid.UUID, reason string) error {
	f := outbox.Filter{IDs: []uuid.UUID{id}, States: []outbox.State{outbox.Dead, outbox.Retrying}, Limit: 1}
	gone, err := o.store.Discard(ctx, f, reason)
	if err != nil {
		return fmt.Errorf("the copy is written, and the event is not discarded: %w", err)
	}
	if len(gone) > 0 {
		o.changed(ctx)
		return nil
	}
	list, err := o.store.ListParked(ctx, outbox.Filter{IDs: f.IDs, Limit: 1})
	switch {
	case err != nil:
		return fmt.Errorf("the copy is written, and the event is not discarded: %w", err)
	case len(list) == 0:
		return fmt.Errorf("the copy is written, and the event was sent or removed meanwhile: %w", ErrNotEditable)
	case list[0].State != outbox.Discarded:
		return fmt.Errorf("the copy is written, and the event is %s now: %w", list[0].State, ErrNotEditable)
	}
	return nil
}
