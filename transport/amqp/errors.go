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

	// ErrBlocked is reported while the broker takes no messages from this
	// connection, as it does when memory or disk run out.
	ErrBlocked = errors.New("connection is blocked by the broker")

	// ErrUnroutable is reported for a message that no queue took.
	ErrUnroutable = errors.New("no queue took the message")

	// ErrNacked is reported for a message that the broker refused to take, as
	// when a queue is full and rejects.
	ErrNacked = errors.New("refused by the broker")

	// ErrConfirmTimeout is reported for a message that the broker left unanswered
	// for too long, and for all that were unanswered on a connection which was cut
	// since the broker answered nothing.
	ErrConfirmTimeout = errors.New("broker did not confirm in time")

	// ErrPartitions is reported for a topic whose queues at the broker are laid out in
	// another number of partitions, or in none.
	ErrPartitions = errors.New("another number of partitions")

	// ErrNotDrained is returned by [Repartition] while queues hold messages, or are
	// consumed.
	ErrNotDrained = errors.New("not drained")

	errNotConnected = errors.New("not connected to the broker")
)

// PublishError is returned by [Publisher.Publish] when some of its messages were
// not confirmed. All that are not listed were.
type PublishError struct {
	Topic string
	Total int // messages that Publish was given
	// Failed is never empty and in the order of the messages.
	Failed []FailedMessage
}

// FailedMessage is a message that was not confirmed.
type FailedMessage struct {
	Index  int // among the messages given to Publish
	UUID   string
	Result transport.Result
}

// Error names the topic, how many messages failed, and the first reasons.
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
