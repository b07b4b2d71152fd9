package transport

import (
	"context"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Outcome says what became of one published message.
type Outcome uint8

const (
	// Unavailable: the transport could not be reached, did not answer in time or
	// was closed. Whether it has the message is unknown. It says nothing about the
	// message itself, so it counts no attempt.
	Unavailable Outcome = iota
	// Confirmed: the transport has taken the message over, durably as far as it
	// is durable at all, and for every route that it knew of.
	Confirmed
	// Returned: the transport had no route for the message and did not keep it.
	Returned
	// Refused: the transport answered that it does not take the message now, as
	// RabbitMQ does with basic.nack when a queue is full.
	Refused
	// Invalid: the message can never be sent, as when it cannot be encoded or is
	// beyond a limit of the transport. Sending it again would fail alike.
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

// Result is the outcome of one published message. Err is nil if and only if
// the outcome is [Confirmed]. It carries no payload and no credentials.
type Result struct {
	Outcome Outcome
	Err     error
}

// Sender is a Watermill publisher that reports an outcome per message and lets
// many messages be under way at once. Both transports of this library are one.
type Sender interface {
	message.Publisher

	// Send starts to publish msg and returns; done is called once, with
	// its outcome, possibly before Send returns, on any goroutine, and must not
	// block. Send itself may block while the transport's window of unanswered
	// messages is full, until ctx ends; ctx also bounds the wait for the outcome,
	// which is then Unavailable. Several goroutines may call Send at once. The
	// messages of one goroutine and one route reach the transport in the order of its calls.
	// msg must not be changed until done was called.
	Send(ctx context.Context, topic string, msg *message.Message, done func(Result))

	// Route names what messages of topic share on their way, so that a failure
	// of one tells something about the next: for RabbitMQ, exchange and routing
	// key. Topics with equal routes are paused and probed together.
	Route(topic string) string
}

// BatchSender is a Sender that can have several messages taken over as one. A relay then need not
// wait for the outcome of a key's event before it sends the key's next one.
type BatchSender interface {
	Sender

	// SendBatch is Send for messages of one route that the transport takes over together or not at
	// all, whatever fails, and hands out in their order. They have one outcome; one that is Invalid
	// may be so for any of them.
	SendBatch(ctx context.Context, topic string, msgs []*message.Message, done func(Result))

	// BatchLimit returns how many messages one call of SendBatch may have, and how many bytes their
	// payloads should have together at most. Below two messages, the sender is not set up for
	// batches. It is the same for the life of the sender.
	BatchLimit() (messages, bytes int)
}
