package transport

import (
	"context"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Outcome tells how one publish ended.
type Outcome uint8

const (
	// Unavailable: the transport could not be reached, did not answer in time or was closed.
	// Whether it has the message is unknown. The message itself is not to blame, so no attempt is
	// counted.
	Unavailable Outcome = iota
	// Confirmed: the transport has taken over the message, as durably as it stores any message, for
	// every route that it knew of.
	Confirmed
	// Returned: the transport had no route for the message and did not keep it.
	Returned
	// Refused: the transport answered that it does not take the message now, as RabbitMQ does with
	// basic.nack when a queue is full.
	Refused
	// Invalid: the message can never be sent, for example because it cannot be encoded or exceeds a
	// limit of the transport. Sending it again would fail again.
	Invalid
)

// String returns the name of o in lower case.
func (o Outcome) String() string {
	switch o {
	case Unavailable:
		return "unavailable"
	case Confirmed:
		return "confirmed"
	case Returned:
		return "returned"
	case Refused:
		return "refused"
	case Invalid:
		return "invalid"
	default:
		return "outcome(" + strconv.Itoa(int(o)) + ")"
	}
}

// Result is the outcome of one published message. Err is nil if and only if the outcome is
// [Confirmed]. Err contains no payload and no credentials.
type Result struct {
	Outcome Outcome
	Err     error
}

// Sender is a Watermill publisher that reports an outcome for each message and lets many messages
// be under way at once. All transports of this library implement Sender.
type Sender interface {
	message.Publisher

	// Send starts to publish msg and returns. It calls done once, with the outcome, possibly before
	// Send returns and on any goroutine; done must not block. Send itself may block while the
	// transport's window of unanswered messages is full, until ctx ends. ctx also bounds the wait
	// for the outcome, which is Unavailable then. Several goroutines may call Send at once. The
	// messages of one goroutine and one route reach the transport in the order of its calls. msg
	// must not be changed before done is called.
	Send(ctx context.Context, topic string, msg *message.Message, done func(Result))

	// Route names the path that messages of topic share, so that one failure predicts the next: for
	// RabbitMQ, exchange and routing key. Topics with equal routes are paused and probed together.
	Route(topic string) string
}

// BatchSender is a Sender that can hand over several messages as one. A relay with a BatchSender
// sends the next events of a key without waiting for outcomes between them.
type BatchSender interface {
	Sender

	// SendBatch is Send for messages of one route. Whatever fails, the transport takes over all
	// messages or none, and hands them out in order. The messages share one outcome; it is Invalid
	// if any message is.
	SendBatch(ctx context.Context, topic string, msgs []*message.Message, done func(Result))

	// BatchLimit returns how many messages one call of SendBatch may have, and how many bytes their
	// payloads should have together at most. Fewer than two messages mean that the sender is not
	// configured for batches. The result is constant for the life of the sender.
	BatchLimit() (messages, bytes int)
}
