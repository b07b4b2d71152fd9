package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/schema"
)

// ErrOtherType is wrapped by the error of a message whose type differs from the type of a typed
// handler.
var ErrOtherType = errors.New("message is of another type")

// Typed returns a handler that decodes a message with t and calls fn with the value. A message that
// cannot be decoded, or is of another type, is dead at once. A message of a later schema version
// fails and is tried again: a newer version of the consumer may be able to decode the message.
// Messages without a type count as messages of t.
func Typed[TX, T any](t *schema.Type[T], fn func(ctx context.Context, w *Work[TX], value T) error) HandlerFunc[TX] {
	return TypedOr(t, fn, nil)
}

// TypedOr is [Typed] with a handler for messages of other types, as on a topic of several types:
// another typed handler, or [Ignore].
func TypedOr[TX, T any](
	t *schema.Type[T], fn func(ctx context.Context, w *Work[TX], value T) error, others HandlerFunc[TX],
) HandlerFunc[TX] {
	return func(ctx context.Context, w *Work[TX], msg *message.Message) error {
		event, err := transport.Parse("", msg)
		if err != nil {
			return Reject(err)
		}
		if event.Type != "" && event.Type != t.Name() {
			if others != nil {
				return others(ctx, w, msg)
			}
			return Reject(fmt.Errorf("%w: not %s", ErrOtherType, t.Name()))
		}
		value, err := t.Decode(msg.Payload, event.SchemaVersion, event.ContentType)
		switch {
		case errors.Is(err, schema.ErrUnreadable):
			return Reject(err)
		case err != nil:
			return err
		}
		return fn(ctx, w, value)
	}
}

// Ignore is a handler without effects: its messages are applied.
func Ignore[TX any](context.Context, *Work[TX], *message.Message) error { return nil }
