package consumer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer/internal/field"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/internal/text"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

// MetaForeignID is the metadata name for the original UUID of a message whose UUID was not a
// dispatch ID.
const MetaForeignID = transport.ReservedPrefix + "foreign-id"

// MetaNotVerified is the metadata name that marks a parked message with a missing or wrong
// signature. The value is the reason.
const MetaNotVerified = transport.ReservedPrefix + "not-verified"

// incoming is a delivered or a parked message.
type incoming struct {
	event    transport.Event
	order    string // the key, as a store keeps it
	metadata map[string]string
}

// read reads a message. An error says why the message must not be handled. The dispatch ID of such
// a message is derived from the whole message, so as not to use up the dispatch ID of another
// message.
func (h *Handler[TX]) read(ctx context.Context, msg *message.Message) (*incoming, error) {
	topic := h.cfg.Topic
	if topic == "" {
		topic = message.SubscribeTopicFromCtx(ctx)
	}
	if v := h.inbox.cfg.Verifier; v != nil {
		metadata, err := v.Verify(topic, msg)
		if err != nil {
			return notVerified(topic, msg, err), err
		}
		msg = message.NewMessageWithContext(ctx, msg.UUID, msg.Payload)
		msg.Metadata = metadata
	}
	event, err := transport.Parse(topic, msg)
	in := &incoming{event: event, metadata: msg.Metadata}
	if h.cfg.DeriveID && msg.UUID != "" && onlyForeign(err) {
		in.setID(idgen.OfKey("", topic, msg.UUID, 0), msg.UUID)
		err = nil
	}
	if err == nil {
		err = h.readKey(in, msg)
	}
	in.order = field.Key(in.event.Key)
	if err != nil {
		id := refusedID(topic, msg)
		if msg.UUID == "" && !transport.Redelivered(msg) { // equal messages without an ID are different messages
			id = uuid.New()
		}
		in.setID(id, msg.UUID)
	}
	return in, err
}

// notVerified returns a message without a valid signature. Its dispatch ID, key and stamp may be
// forged and are ignored.
func notVerified(topic string, msg *message.Message, why error) *incoming {
	in := &incoming{event: transport.Event{Topic: topic, Payload: msg.Payload}, metadata: msg.Metadata}
	in.setID(refusedID(topic, msg), msg.UUID)
	in.metadata[MetaNotVerified] = why.Error()
	return in
}

// readKey calls HandlerConfig.Order.Key. After a panic, which would happen again at every attempt, the
// message is refused with an error.
func (h *Handler[TX]) readKey(in *incoming, msg *message.Message) (err error) {
	if h.cfg.Order.Key == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("key of the message: %w", newPanic(v))
		}
	}()
	in.event.Key = h.cfg.Order.Key(msg)
	return nil
}

// setID sets the dispatch ID and keeps the original UUID.
func (in *incoming) setID(id uuid.UUID, foreign string) {
	in.event.ID = id
	in.metadata = maps.Clone(in.metadata)
	if in.metadata == nil {
		in.metadata = make(map[string]string, 1)
	}
	in.metadata[MetaForeignID] = foreign
}

// onlyForeign tells whether the UUID is the only problem.
func onlyForeign(err error) bool {
	joined, ok := err.(interface{ Unwrap() []error })
	return ok && len(joined.Unwrap()) == 1 && errors.Is(err, transport.ErrNotDispatchID)
}

// refusedID derives a dispatch ID, for a message without a valid dispatch ID, from the whole
// message: different messages are all kept, and a redelivered message is kept once.
func refusedID(topic string, msg *message.Message) uuid.UUID {
	h := sha256.New()
	part := func(s string) { fmt.Fprintf(h, "%d:%s,", len(s), s) }
	part(msg.UUID)
	part(string(msg.Payload))
	for _, name := range slices.Sorted(maps.Keys(msg.Metadata)) {
		part(name)
		part(msg.Metadata[name])
	}
	return idgen.OfKey("", topic, hex.EncodeToString(h.Sum(nil)), 1)
}

// fromParked returns a parked message as it arrived.
func (h *Handler[TX]) fromParked(m *inbox.Parked) *incoming {
	msg := message.NewMessage(m.ID.String(), m.Payload)
	msg.Metadata = m.Metadata
	// A message that cannot be read was refused at its arrival, but an operator may redrive it.
	event, _ := transport.Parse(m.Topic, msg)
	event.ID, event.Digest, event.Stamp = m.ID, m.Digest, m.Stamp
	in := &incoming{event: event, order: m.Key, metadata: m.Metadata}
	_ = h.readKey(in, msg) // as above
	return in
}

// message returns a copy of the message, which the handler may change.
func (in *incoming) message(ctx context.Context) *message.Message {
	msg := message.NewMessageWithContext(ctx, in.event.ID.String(), slices.Clone(in.event.Payload))
	for name, value := range in.metadata {
		if !strings.HasPrefix(name, transport.LocalPrefix) { // a note for the process that has sent it
			msg.Metadata[name] = value
		}
	}
	return msg
}

// toStore returns the message as a store keeps it.
func (in *incoming) toStore() *inbox.Message {
	return &inbox.Message{
		ID: in.event.ID, Topic: text.Clean(in.event.Topic, field.MaxKey), Key: in.order,
		Digest: in.event.Digest, Stamp: in.event.Stamp,
		Metadata: in.metadata, Payload: in.event.Payload,
	}
}
