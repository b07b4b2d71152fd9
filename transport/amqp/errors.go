package amqp

import (
	"errors"
	"fmt"
	"strings"

	"github.com/boxpair/boxpair/transport"
)

var (
	// ErrClosed is reported by a publisher or subscriber that was closed.
	ErrClosed = errors.New("closed")

	// ErrBlocked is reported while the broker takes no messages from this connection because its
	// memory or disk space runs out.
	ErrBlocked = errors.New("connection is blocked by the broker")

	// ErrUnroutable is reported for a message that no queue took.
	ErrUnroutable = errors.New("no queue took the message: nobody listens to its topic (declare the consumer's queue, or name the topic in the relay's DropUnroutable)")

	// ErrNacked is reported for a message that the broker nacked, for example because a queue is
	// full and has the overflow reject-publish.
	ErrNacked = errors.New("refused by the broker")

	// ErrConfirmTimeout is reported for a message that the broker did not answer in time. If the
	// connection was cut because the broker did not answer any message, it is reported for all
	// unanswered messages.
	ErrConfirmTimeout = errors.New("broker did not confirm in time")

	// ErrPartitions is reported for a topic whose queues at the broker have another number of
	// partitions, or none.
	ErrPartitions = errors.New("another number of partitions")

	// ErrNotDrained is returned by [Repartition] while queues hold messages or have consumers.
	ErrNotDrained = errors.New("not drained")

	errNotConnected = errors.New("not connected to the broker")
)

// PublishError is returned by [Publisher.Publish] when some of its messages were not confirmed. All
// messages that it does not list were confirmed.
type PublishError struct {
	Topic string
	Total int // number of messages in the call of Publish
	// Failed is never empty, and in the order of the messages.
	Failed []FailedMessage
}

// FailedMessage is a message that was not confirmed.
type FailedMessage struct {
	Index  int // among the messages of the call
	UUID   string
	Result transport.Result
}

// Error names the topic, the number of failed messages, and the first reasons.
func (e *PublishError) Error() string {
	const shown = 3
	var b strings.Builder
	fmt.Fprintf(&b, "publish to topic %q: %d of %d messages failed", e.Topic, len(e.Failed), e.Total)
	for i, f := range e.Failed {
		if i == shown {
			b.WriteString("; …")
			break
		}
		fmt.Fprintf(&b, "; message %s is %s: %v", f.UUID, f.Result.Outcome, f.Result.Err)
	}
	return b.String()
}

// Unwrap returns the errors of the failed messages.
func (e *PublishError) Unwrap() []error {
	errs := make([]error, len(e.Failed))
	for i, f := range e.Failed {
		errs[i] = f.Result.Err
	}
	return errs
}
