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

// Backlog counts the messages that wait at the broker for a subscription.
type Backlog interface {
	// Waiting returns how many messages wait at the broker and were not delivered yet. It asks the
	// broker. An error says that the broker did not answer, or that other processes get the messages.
	Waiting(ctx context.Context) (int, error)
}

type backlogKey struct{}

// WithBacklog returns a context for the messages of a subscription whose broker can count what waits.
// The dynamic type of b has to be comparable.
func WithBacklog(ctx context.Context, b Backlog) context.Context {
	return context.WithValue(ctx, backlogKey{}, b)
}

// BacklogOf returns the backlog of the subscription that the message of ctx has come from. It reports
// false if the subscriber does not tell.
func BacklogOf(ctx context.Context) (b Backlog, ok bool) {
	b, ok = ctx.Value(backlogKey{}).(Backlog)
	return b, ok
}
