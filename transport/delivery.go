package transport

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
)

type redeliveredKey struct{}

// WithRedelivered returns a context that says that a message may have been
// started before, by a consumer that did not finish. A subscriber puts it on
// the messages that it hands out; what arrives as metadata is not believed.
func WithRedelivered(ctx context.Context) context.Context {
	return context.WithValue(ctx, redeliveredKey{}, true)
}

// Redelivered tells whether msg may have been started before.
func Redelivered(msg *message.Message) bool {
	v, _ := msg.Context().Value(redeliveredKey{}).(bool)
	return v
}
