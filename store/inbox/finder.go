package inbox

import "context"

// ConsumerFinder is an optional part of a [Store] that finds a consumer by name, for operators whose
// process has no handler of the consumer. The stores of this library have it.
type ConsumerFinder interface {
	// FindConsumer returns the number that [WindowStore.Register] has given to the consumer, and an
	// error that wraps [ErrNoConsumer] if no consumer was registered under the name. It changes
	// nothing.
	FindConsumer(ctx context.Context, name string) (consumer int, err error)
}
