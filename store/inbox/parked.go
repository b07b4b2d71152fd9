package inbox

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/transport"
)

// State is the state of a parked message.
type State string

const (
	// Retrying messages are handled again after a backoff.
	Retrying State = "retrying"
	// Following messages wait for an earlier message of their key.
	Following State = "following"
	// Dead messages have used up their attempts, or were rejected.
	Dead State = "dead"
	// TooOldState messages are from a time that the consumer has forgotten, and were never claimed.
	TooOldState State = "too_old"
	// AlteredState messages have a dispatch ID that was claimed with other content.
	AlteredState State = "altered"
	// Discarded messages were given up by an operator, and are kept with the reason. RedriveMessages
	// undoes the discard.
	Discarded State = "discarded"
)

// Message is a whole message as a store keeps it. Topic and Key are valid UTF-8 without NUL;
// metadata and payload may hold any bytes, and come back unchanged.
type Message struct {
	ID       uuid.UUID
	Topic    string
	Key      string
	Digest   transport.Digest
	Stamp    time.Time
	Metadata map[string]string
	Payload  []byte
}

// Parking is a request to park a message.
type Parking struct {
	Consumer int
	Message  *Message
	State    State // Retrying, Dead, TooOldState or AlteredState
	// Ordered makes later messages of the key follow.
	Ordered bool
	// Fresh tells that the message is Retrying, is due at once and was never handled: its consumer
	// stores messages first. See [ParkedStore.ParkMessage].
	Fresh bool
	// Isolation is the level at which handlers of the consumer run. It matters with Fresh only.
	Isolation Isolation
	Attempts  int
	RetryIn   time.Duration // for Retrying
	LastError string        // at most 1 KiB, valid UTF-8
}

// Parked is a parked message. Seq ascends in the order in which messages are parked.
type Parked struct {
	Message
	Seq           int64
	Consumer      string // the consumer's name
	State         State
	Attempts      int
	ParkedAt      time.Time
	NextAttemptAt time.Time // zero unless retrying
	LastError     string
	Reason        string // why it was discarded
	// Unreadable says why Metadata could not be read from the database; Metadata is nil then. An
	// unreadable message becomes dead instead of being handled.
	Unreadable error
}

// Filter selects parked messages. Zero fields select all.
type Filter struct {
	Consumer string
	IDs      []uuid.UUID
	States   []State
	Topic    string
	Key      string
	// Error is a part of the last error, compared case-sensitively and without wildcards.
	Error string
	// Since and Until bound the time of parking: Since ≤ time < Until.
	Since, Until time.Time
	// After continues a listing behind the message with this Seq.
	After int64
	// Limit bounds the number of returned or changed messages. Defaults to 100.
	Limit int
	// Force lets altered messages be redriven, also those that were discarded.
	Force bool
}

// ParkedStore keeps waiting and dead messages. No method needs a broker.
type ParkedStore[TX any] interface {
	// ParkMessage keeps a message. For Retrying and Dead, the claim and the parked row are written
	// in one transaction, which waits for the end of another copy's transaction. If a copy was
	// applied or parked before, nothing is written and the verdict is Duplicate. Too old and
	// altered messages are kept once, without a claim: the verdict on a further copy is Duplicate.
	// Otherwise the verdict is Applied. If the claim finds the message too old or altered, the
	// message is kept in the state TooOldState or AlteredState instead, so that it is not lost.
	//
	// A Fresh message does not wait for the lock of its key, which is held while the handler of
	// another message of the key runs (a database with one writer waits all the same). Behind live
	// messages of its key the message may be kept as Following, and no message is kept as Following
	// without a live one before it. If the claim finds a Fresh message too old or altered, nothing
	// is written and the verdict is TooOld or Altered.
	ParkMessage(ctx context.Context, p Parking) (Verdict, error)

	// DueMessages names at most limit messages of consumer that are retrying, due, and the first
	// live message of their key. next is how long from now the next message is due, or 0 without
	// any.
	DueMessages(ctx context.Context, consumer int, limit int) (seqs []int64, next time.Duration, err error)
	// ApplyParked locks a message that DueMessages named, runs fn in the same transaction, removes
	// the parked row and commits; the next live message of the key becomes retrying and due. If the
	// message is no longer due, no longer first, or locked by another process, ApplyParked returns
	// false and no error. Otherwise it is like [ClaimStore.Apply].
	ApplyParked(ctx context.Context, c Claim, seq int64, fn func(ctx context.Context, tx TX, m *Parked) error) (bool, error)
	// RetryMessage counts a failed attempt of a parked message: retrying again after retryIn, or
	// dead. A message that is no longer retrying is unchanged. RetryMessage removes the recorded
	// starts. Behind a message that becomes dead, the next live message of the key becomes retrying
	// and due.
	RetryMessage(ctx context.Context, seq int64, attempts int, retryIn time.Duration, dead bool, lastError string) error

	// ListParkedMessages reads parked messages by ascending Seq.
	ListParkedMessages(ctx context.Context, f Filter) ([]Parked, error)
	// RedriveMessages makes dead, too old and, with Force, altered messages that f selects retrying
	// and due, with no attempts and no starts counted, and returns their dispatch IDs. It takes
	// retrying messages too if f has IDs or f.States names them, and discarded messages if f.States
	// names them; the reason of their discard stays in their history only. A concurrent
	// [WindowStore.ForgetDiscarded] either removes a discarded message or leaves it as it is. Behind
	// an earlier live message of its key, a redriven message follows. A too old message claims its
	// dispatch ID when it runs, and the ID is remembered from then on; if a copy has claimed the ID
	// meanwhile, the message is removed without running. An altered message runs without a claim. A
	// message that was altered before it was discarded runs only with Force, and is set aside as
	// altered again otherwise. The reason is kept in the history of each message.
	RedriveMessages(ctx context.Context, f Filter, reason string) ([]uuid.UUID, error)
	// DiscardMessages gives up parked messages that f selects, keeps reason with the messages and
	// in their history, keeps their claims, and returns their dispatch IDs. A follower that has
	// become the first live message of its key becomes retrying and due.
	DiscardMessages(ctx context.Context, f Filter, reason string) ([]uuid.UUID, error)
}

// ParkedNamer is an optional part of a [Store] that names the consumers of parked messages, so that
// a running inbox can report parked messages without a handler. The stores of this library have it.
type ParkedNamer interface {
	// ParkedConsumers returns at most a hundred names of consumers with parked messages that are
	// not discarded.
	ParkedConsumers(ctx context.Context) ([]string, error)
}
