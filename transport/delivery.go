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

type orderingKey struct{}

// WithOrderingKey returns a context that says by which key a subscriber keeps a message in order;
// "" is a message that it keeps in none. A subscriber puts it on the messages that it hands out,
// whatever key their metadata has.
func WithOrderingKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, orderingKey{}, key)
}

// OrderingKey returns the key by which the subscriber keeps the message of ctx in order. It reports
// false for a message of a subscriber that does not say, as those of other libraries.
func OrderingKey(ctx context.Context) (key string, ok bool) {
	key, ok = ctx.Value(orderingKey{}).(string)
	return key, ok
}
