package producer

import (
	"fmt"
	"reflect"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/transport"
)

// Identity is what the dispatch ID of an event is computed from; see [Event]. The zero Identity
// stands for none.
type Identity struct {
	Source         string // such as "order/42"
	Version        int64  // counted from 1, or 0 with an IdempotencyKey
	IdempotencyKey string
}

// Keyed is a type of events that know their key; see [Describe].
type Keyed interface {
	// EventKey returns the key of the event, which may be empty for an event without order.
	EventKey() string
}

// Identified is a type of events that know their identity; see [Describe].
type Identified interface {
	// EventIdentity returns the identity of the event, or the zero Identity for none.
	EventIdentity() Identity
}

// Names of metadata on the way from Describe to a publisher, which are in one process: what another
// process has noted, on a message that is passed on, is nothing to this one.
var (
	noted = transport.LocalPrefix + uuid.NewString()

	describedKey            = noted + "-key"
	describedSource         = noted + "-source"
	describedVersion        = noted + "-version"
	describedIdempotencyKey = noted + "-idempotency-key"
)

// Describe notes on msg the key and the identity of event, if event is [Keyed] or [Identified], for
// [Outbox.Publisher]. It is a DecorateFunc for Watermill's cqrs.CommandEventMarshalerDecorator. The
// notes are metadata with names that begin with [transport.LocalPrefix], which an outbox does not
// send and a consumer does not take over. Describe fails if event is a value of
// a type whose pointers are Keyed or Identified.
func Describe(event any, msg *message.Message) error {
	keyed, isKeyed := event.(Keyed)
	identified, isIdentified := event.(Identified)
	if t := reflect.TypeOf(event); t != nil && t.Kind() != reflect.Pointer {
		p := reflect.PointerTo(t)
		if !isKeyed && p.Implements(reflect.TypeFor[Keyed]()) || !isIdentified && p.Implements(reflect.TypeFor[Identified]()) {
			return fmt.Errorf("describe event: methods EventKey and EventIdentity of %T have pointer receivers: publish a pointer", event)
		}
	}
	if msg.Metadata == nil {
		msg.Metadata = make(message.Metadata)
	}
	if isKeyed {
		msg.Metadata.Set(describedKey, keyed.EventKey())
	}
	if isIdentified {
		id := identified.EventIdentity()
		msg.Metadata.Set(describedSource, id.Source)
		msg.Metadata.Set(describedVersion, strconv.FormatInt(id.Version, 10))
		msg.Metadata.Set(describedIdempotencyKey, id.IdempotencyKey)
	}
	return nil
}

// describedIdentity returns the identity that Describe has noted, or the zero Identity.
func describedIdentity(msg *message.Message) (Identity, error) {
	version, ok := msg.Metadata[describedVersion]
	if !ok {
		return Identity{}, nil
	}
	v, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		return Identity{}, fmt.Errorf("metadata %s: %w", describedVersion, err)
	}
	return Identity{Source: msg.Metadata[describedSource], Version: v, IdempotencyKey: msg.Metadata[describedIdempotencyKey]}, nil
}
