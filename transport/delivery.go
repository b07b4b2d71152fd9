package transport

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
)

type redeliveredKey struct{}

// WithRedelivered returns a context for a message whose handling may have been started before, by a
// consumer that did not finish. Subscribers put the context on redelivered messages. Metadata is no
// substitute: a sender could forge it.
func WithRedelivered(ctx context.Context) context.Context {
	return context.WithValue(ctx, redeliveredKey{}, true)
}

// Redelivered tells whether the handling of msg may have been started before.
func Redelivered(msg *message.Message) bool {
	v, _ := msg.Context().Value(redeliveredKey{}).(bool)
	return v
}

type orderingKey struct{}

// WithOrderingKey returns a context with the key by which a subscriber keeps a message in order; ""
// means no order. Subscribers put the context on the messages that they hand out, whatever key the
// metadata has.
func WithOrderingKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, orderingKey{}, key)
}

// OrderingKey returns the key by which the subscriber keeps the message of ctx in order. It reports
// false if the subscriber does not tell the key, as subscribers of other libraries.
func OrderingKey(ctx context.Context) (key string, ok bool) {
	key, ok = ctx.Value(orderingKey{}).(string)
	return key, ok
}
