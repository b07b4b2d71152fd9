package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/schema"
)

// ErrOtherType is wrapped by the error of a message whose type is not the one that a
// typed handler is for.
var ErrOtherType = errors.New("message is of another type")

// Typed returns the handler that decodes a message as t says and calls fn with the
// value. A message that never can be read, or that is of another type, is dead at
// once; one of a later schema version fails like any other, and so is tried again,
// since the consumer may be about to be brought up to date. Messages without a type are
// taken to be of t.
func Typed[TX, T any](t *schema.Type[T], fn func(ctx context.Context, w *Work[TX], value T) error) HandlerFunc[TX] {
	return func(ctx context.Context, w *Work[TX], msg *message.Message) error {
		event, err := transport.Parse("", msg)
		if err != nil {
			return Reject(err)
		}
		if event.Type != "" && event.Type != t.Name() {
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
