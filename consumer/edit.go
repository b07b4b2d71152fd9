package consumer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer/internal/field"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

// editor is the consumer in the dispatch IDs of edited messages, before the digest of their
// content.
const editor = "boxpair/edit/"

// Content is the part of a message that [Inbox.Edit] can change.
type Content struct {
	Payload []byte
	// Headers are the metadata of the message without reserved names ([transport.IsReserved]).
	Headers map[string]string
}

// Edit parks an edited copy of a message of consumer, due at once, and then discards the message.
// The content of a message never changes under its dispatch ID, so the copy is a message of its
// own: a child of the message, with the same topic, key and metadata, a digest of its own, and the
// present time as its stamp. Edit returns the dispatch ID of the copy. The consumer's Run handles
// the copy, in any process. Copies of the message that arrive later stay duplicates.
//
// edit changes the content of the message, which it may keep or modify in place. An error of edit
// ends Edit, and nothing is written. The message is retrying, dead, too old, altered or discarded;
// otherwise the error wraps [ErrNotEditable], as for an unknown ID. A retrying message is discarded
// before the copy is parked, so that never both are applied: if its handler is at work, Edit waits for
// the end, and gives ErrNotEditable if the message was applied. Later messages of its key may run
// before the copy. If several messages of the consumer have
// the ID, the error wraps ErrNotEditable unless all but one are discarded. The signature of a
// signed message, which was checked when the message arrived, is left out of the copy; a message
// that was not verified cannot be edited, and gives ErrNotEditable, since the copy would pass for a
// verified message.
//
// The dispatch ID of the copy is computed from the message and the new content. Editing a message
// again to the same content parks no second copy and returns the same ID, as long as the consumer
// remembers it; so Edit can be repeated after any error, also if it did only one of parking the copy
// and discarding the message. Other content makes another copy.
//
// The reason is required. It is kept with the message behind the ID of the copy, and both have at
// most 1 KiB. A message that was discarded before keeps the reason of its discard. Edit needs a
// store that is an [inbox.ConsumerFinder].
func (i *Inbox[TX]) Edit(ctx context.Context, consumer string, id uuid.UUID, reason string, edit func(c *Content) error) (uuid.UUID, error) {
	copied, err := i.edit(ctx, consumer, id, reason, edit)
	if err != nil {
		return copied, fmt.Errorf("edit message %s of consumer %q: %w", id, consumer, err)
	}
	return copied, nil
}

func (i *Inbox[TX]) edit(ctx context.Context, consumer string, id uuid.UUID, reason string, edit func(c *Content) error) (uuid.UUID, error) {
	if err := field.Reason(reason); err != nil {
		return uuid.Nil, err
	}
	finder, ok := i.store.(inbox.ConsumerFinder)
	if !ok {
		return uuid.Nil, errors.New("store is no inbox.ConsumerFinder")
	}
	number, err := finder.FindConsumer(ctx, consumer)
	if err != nil {
		return uuid.Nil, err
	}
	original, err := i.editable(ctx, consumer, id)
	if err != nil {
		return uuid.Nil, err
	}
	m, err := edited(original, edit)
	if err != nil {
		return uuid.Nil, err
	}
	noted := "edited as " + m.ID.String() + ": " + reason
	if err := field.Reason(noted); err != nil {
		return uuid.Nil, fmt.Errorf("with the ID of the copy: %w", err)
	}
	if original.State == inbox.Retrying {
		if err := i.discardEdited(ctx, consumer, original, noted, "no copy is parked"); err != nil {
			return uuid.Nil, err
		}
	}
	// Without order by key, no other message of the key waits for an ordered one.
	_, err = i.store.ParkMessage(ctx, inbox.Parking{Consumer: number, Message: m, State: inbox.Retrying, Ordered: m.Key != ""})
	if err != nil {
		if original.State == inbox.Retrying {
			err = fmt.Errorf("the message is discarded, and no copy is parked yet: edit it again: %w", err)
		}
		return uuid.Nil, err
	}
	i.log.InfoContext(ctx, "message edited", "dispatch_id", id, "consumer", consumer, "edited_as", m.ID, "reason", reason)
	i.Wake()
	if original.State == inbox.Discarded || original.State == inbox.Retrying {
		return m.ID, nil
	}
	return m.ID, i.discardEdited(ctx, consumer, original, noted, "the copy is parked")
}

// editable reads a message that can be edited.
func (i *Inbox[TX]) editable(ctx context.Context, consumer string, id uuid.UUID) (*inbox.Parked, error) {
	list, err := i.store.ListParkedMessages(ctx, inbox.Filter{Consumer: consumer, IDs: []uuid.UUID{id}, Limit: defaultFilterLimit})
	if err != nil {
		return nil, err
	}
	if kept := slices.DeleteFunc(slices.Clone(list), func(p inbox.Parked) bool { return p.State == inbox.Discarded }); len(kept) > 0 {
		list = kept
	}
	switch {
	case len(list) == 0:
		return nil, fmt.Errorf("message is unknown or not parked: %w", ErrNotEditable)
	case len(list) > 1:
		return nil, fmt.Errorf("%d messages with different content have the ID: %w", len(list), ErrNotEditable)
	}
	p := &list[0]
	if !slices.Contains([]inbox.State{inbox.Retrying, inbox.Dead, inbox.TooOldState, inbox.AlteredState, inbox.Discarded}, p.State) {
		return nil, fmt.Errorf("message is %s: %w", p.State, ErrNotEditable)
	}
	if _, ok := p.Metadata[MetaNotVerified]; ok {
		return nil, fmt.Errorf("message was not verified: %w", ErrNotEditable)
	}
	return p, p.Unreadable
}

// edited returns the edited copy of p.
func edited(p *inbox.Parked, edit func(c *Content) error) (*inbox.Message, error) {
	before := maps.Clone(p.Metadata)
	maps.DeleteFunc(before, func(name, _ string) bool { return transport.IsReserved(name) })
	c := Content{Payload: bytes.Clone(p.Payload), Headers: maps.Clone(before)}
	if err := edit(&c); err != nil {
		return nil, err
	}
	if bytes.Equal(c.Payload, p.Payload) && maps.Equal(c.Headers, before) {
		return nil, errors.New("content is unchanged: redrive the message instead")
	}
	msg := message.NewMessage(p.ID.String(), c.Payload)
	for name, value := range p.Metadata {
		if transport.IsReserved(name) && name != transport.MetaSignature && name != transport.MetaSigned {
			msg.Metadata[name] = value
		}
	}
	for name, value := range c.Headers {
		if transport.IsReserved(name) {
			return nil, fmt.Errorf("Headers: the name %q is reserved", name)
		}
		msg.Metadata[name] = value
	}
	event, _ := transport.Parse(p.Topic, msg) // a message from elsewhere has no valid metadata
	digest := transport.ContentDigest(&event)
	if _, ok := msg.Metadata[transport.MetaDigest]; ok {
		msg.Metadata[transport.MetaDigest] = digest.String()
	}
	return &inbox.Message{
		ID: idgen.Child(editor+digest.String(), p.ID, 0), Topic: p.Topic, Key: p.Key, Digest: digest, Stamp: time.Now(),
		Metadata: msg.Metadata, Payload: c.Payload,
	}, nil
}

// discardEdited discards an edited message. Another Edit may have been faster. copied says whether the copy
// is parked, for errors.
func (i *Inbox[TX]) discardEdited(ctx context.Context, consumer string, p *inbox.Parked, reason, copied string) error {
	f := inbox.Filter{Consumer: consumer, IDs: []uuid.UUID{p.ID}, States: []inbox.State{p.State}, Limit: 1}
	gone, err := i.store.DiscardMessages(ctx, f, reason)
	if err != nil {
		return fmt.Errorf("%s, and the message is not discarded: %w", copied, err)
	}
	if len(gone) > 0 {
		return nil
	}
	f.States, f.After = nil, p.Seq-1
	list, err := i.store.ListParkedMessages(ctx, f)
	switch {
	case err != nil:
		return fmt.Errorf("%s, and the message is not discarded: %w", copied, err)
	case len(list) == 0 || list[0].Seq != p.Seq:
		return fmt.Errorf("%s, and the message was applied or removed meanwhile: %w", copied, ErrNotEditable)
	case list[0].State != inbox.Discarded:
		return fmt.Errorf("%s, and the message is %s now: %w", copied, list[0].State, ErrNotEditable)
	}
	return nil
}
