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
	// TooOldState messages are from a time that the consumer has forgotten. They
	// were never claimed.
	TooOldState State = "too_old"
	// AlteredState messages have a dispatch ID that was claimed with other content.
	AlteredState State = "altered"
	// Discarded messages were given up by an operator. They are kept with the reason.
	Discarded State = "discarded"
)

// Message is a whole message as a store keeps it. Topic and Key are valid UTF-8
// without NUL; metadata and payload may hold any bytes, and come back as they were.
type Message struct {
	ID       uuid.UUID
	Topic    string
	Key      string
	Digest   transport.Digest
	Stamp    time.Time
	Metadata map[string]string
	Payload  []byte
}

// Parking says how a message is to be parked.
type Parking struct {
	Consumer int
	Message  *Message
	State    State // Retrying, Dead, TooOldState or AlteredState
	// Ordered makes later messages of the key follow.
	Ordered   bool
	Attempts  int
	RetryIn   time.Duration // for Retrying
	LastError string        // at most 1 KiB, valid UTF-8
}

// Parked is a parked message. Seq is its place among those of its consumer.
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
	// Unreadable says why Metadata could not be read from the database; they are nil then. Such a
	// message is dead when it is taken up.
	Unreadable error
}

// Filter selects parked messages. Zero fields select all.
type Filter struct {
	Consumer string
	IDs      []uuid.UUID
	States   []State
	Topic    string
	Key      string
	// Error is a part of the last error, as it is written.
	Error string
	// Since and Until bound when they were parked: Since ≤ time < Until.
	Since, Until time.Time
	// After continues a listing behind the message with this Seq.
	After int64
	// Limit is at most how many are returned or changed. Defaults to 100.
	Limit int
	// Force lets altered messages be redriven.
	Force bool
}

// ParkedStore is what waiting and dead messages need of a store. Nothing here needs a broker.
type ParkedStore[TX any] interface {
	// ParkMessage keeps a message. For Retrying and Dead, the claim and the parked row are written
	// in one transaction, which waits for the end of another copy's; if the claim was made before,
	// by a copy that was applied or parked, nothing is written and the verdict is Duplicate. TooOld
	// and altered messages are kept without a claim, once: the verdict on a further copy is
	// Duplicate. Otherwise the verdict is Applied. A message that turns out to be too old or
	// altered when it is to be claimed is kept as that instead, so that it is not lost.
	ParkMessage(ctx context.Context, p Parking) (Verdict, error)

	// DueMessages names messages of consumer that are retrying, due, and the first live ones of
	// their keys, at most limit, and how long from now the next one is due (0: none is).
	DueMessages(ctx context.Context, consumer int, limit int) (seqs []int64, next time.Duration, err error)
	// ApplyParked locks a parked message that is retrying and due and the first
	// live one of its key, runs fn in the same transaction, removes the parked row and
	// commits; the next live message of its key becomes retrying and due. A message that is not
	// such any more, or that another process has locked, gives false and no error.
	// Otherwise it is like [ClaimStore.Apply].
	ApplyParked(ctx context.Context, c Claim, seq int64, fn func(ctx context.Context, tx TX, m *Parked) error) (bool, error)
	// RetryMessage counts a failed attempt of a parked message: retrying again after retryIn, or
	// dead. A message that is not retrying any more stays as it is. It forgets the recorded starts.
	// The next live message of a dead one's key becomes retrying and due.
	RetryMessage(ctx context.Context, seq int64, attempts int, retryIn time.Duration, dead bool, lastError string) error

	// ListParkedMessages reads parked messages by ascending Seq.
	ListParkedMessages(ctx context.Context, f Filter) ([]Parked, error)
	// RedriveMessages makes dead, too old and, with Force, altered messages that f selects
	// retrying and due, with no attempts and no starts counted, and returns their dispatch IDs.
	// One that was too old claims its dispatch ID when it runs, and the ID is remembered from
	// then on; if a copy has claimed it meanwhile, it is removed without running. One that was
	// altered runs without a claim. The reason is kept in their history.
	RedriveMessages(ctx context.Context, f Filter, reason string) ([]uuid.UUID, error)
	// DiscardMessages gives up parked messages that f selects, keeps reason with them and in their
	// history, and their claims, and returns their dispatch IDs. A follower that has become the
	// first live message of its key becomes retrying and due.
	DiscardMessages(ctx context.Context, f Filter, reason string) ([]uuid.UUID, error)
}

// ParkedNamer is a [Store] that tells whose messages are parked, as those of this library do, so
// that a running inbox can say which of them no handler will take up.
type ParkedNamer interface {
	// ParkedConsumers returns the names of consumers that have messages parked which were not
	// discarded, of a hundred at most.
	ParkedConsumers(ctx context.Context) ([]string, error)
}
