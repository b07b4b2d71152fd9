package inbox

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/internal/choice"
	"github.com/boxpair/boxpair/transport"
)

// Isolation is the isolation level of a handler's transaction.
type Isolation uint8

// The isolation levels. SQLite has only [Serializable] and uses it for every level.
const (
	ReadCommitted Isolation = iota
	RepeatableRead
	Serializable
)

var isolationWords = []string{ReadCommitted: "read committed", RepeatableRead: "repeatable read", Serializable: "serializable"}

// Claim asks for the right to apply a message.
type Claim struct {
	Consumer int // as returned by [WindowStore.Register]
	ID       uuid.UUID
	Digest   transport.Digest // zero if the message carries none
	Stamp    time.Time        // zero if the message carries none: the time of the claim is used
	// Key is the message's key if the handler keeps order, or "". A claim with a key waits for
	// other transactions of the consumer that hold the key. A message is parked behind live parked
	// messages of its key: see [Followed].
	Key string
	// Message is the whole message, which [Followed] parks.
	Message *Message

	Isolation Isolation
	// IdleTimeout is how long the transaction may be idle before the database ends it: a handler
	// may never return.
	IdleTimeout time.Duration
	// LockTimeout bounds the wait for another transaction with this claim. It does not bound the
	// handler's own statements.
	LockTimeout time.Duration

	// Started tells that a start of the message is recorded. The store removes recorded starts and
	// counted attempts in the transaction of the claim; otherwise a later copy would be a suspect.
	// A store that always removes both may ignore Started.
	Started bool

	// Optimistic lets a store run fn before the claim is made, so that claim and statements go to
	// the database together. fn then runs for messages with another verdict, too, and may run again
	// if the database could not take the statements. The store rolls back a run without a claim and
	// ignores its result. A store may ignore Optimistic.
	Optimistic bool
}

// Verdict is the answer to a claim.
type Verdict uint8

const (
	// None is the verdict beside an error.
	None Verdict = iota
	// Applied: the claim and the effects of the handler are committed.
	Applied
	// Duplicate: the message was claimed before, with an equal digest or with a digest missing.
	Duplicate
	// Altered: the message was claimed before with other content.
	Altered
	// TooOld: the message is from a time that the consumer has forgotten.
	TooOld
	// Followed: earlier messages of the key are parked. This message was claimed and parked behind
	// them.
	Followed
)

// String returns the name of v in lower case.
func (v Verdict) String() string {
	names := [...]string{"none", "applied", "duplicate", "altered", "too_old", "followed"}
	if int(v) < len(names) {
		return names[v]
	}
	return "invalid"
}

// ErrorClass says what an error of a store or a handler means for a message.
type ErrorClass uint8

const (
	// HandlerError is any error of the handler's own.
	HandlerError ErrorClass = iota
	// Conflict is a conflict with another transaction that was rolled back
	// (serialization failure, deadlock, lock timeout, busy database).
	Conflict
	// Infrastructure is an error of the database or of the connection to it.
	Infrastructure
	// CommitUnknown is a COMMIT with an unknown outcome.
	CommitUnknown
)

// ClaimStore claims messages, runs handlers, and counts starts and attempts.
type ClaimStore[TX any] interface {
	// Apply claims c in a new transaction, runs fn in it and commits. The claim is an insert: the
	// unique index lets one copy in, and other copies wait for the end of its transaction. fn runs
	// only if the claim was made, or c is Optimistic. If fn returns an error, panics or calls
	// Goexit, the transaction is rolled back; Apply returns the error, wrapped if the store has
	// something to add. A COMMIT that the database answers with ROLLBACK gives an error that wraps
	// [ErrRolledBack]. ctx bounds the whole call.
	Apply(ctx context.Context, c Claim, fn func(ctx context.Context, tx TX) error) (Verdict, error)

	// ApplyGroup is Apply for several messages of one consumer in one transaction. The claims
	// differ in ID, Digest, Stamp, Key and Message only; none is Optimistic. All locks are taken
	// before fn runs, keys first, in one order for all transactions, so that groups do not
	// deadlock. fn runs once, with the ascending indexes of the claims that were made, and not at
	// all if no claim was made. Messages that follow are parked in the same transaction. The group
	// is committed as a whole or not at all; an error comes without verdicts. The claim of a
	// message that is too old is not kept.
	ApplyGroup(ctx context.Context, claims []Claim, fn func(ctx context.Context, tx TX, run []int) error) ([]Verdict, error)

	// Savepoint is as in outbox.EventStore.
	Savepoint(ctx context.Context, tx TX, fn func(ctx context.Context, tx TX) error) error

	// Classify unwraps err and returns its class.
	Classify(err error) ErrorClass

	// Started records a start of each suspect: a message whose handling may have begun before and
	// killed its process. starts has the number of recorded starts of each ID, in the order of ids.
	// If the starts of a message were changed less than within ago, Started records no start and
	// returns 0 for the message: another process may be about to begin. The IDs differ. Started is
	// one transaction, committed on return.
	Started(ctx context.Context, consumer int, ids []uuid.UUID, within time.Duration) (starts []int, err error)
	// Unstarted removes one recorded start, if any, of each message: the handler returned, or was
	// not begun. The IDs differ. Unstarted is one transaction, committed on return.
	Unstarted(ctx context.Context, consumer int, ids []uuid.UUID) error
	// Failed counts a failed attempt and returns the number of counted attempts. It removes the
	// recorded starts, since the handler returned. Failed is committed on return. lastError has at
	// most 1 KiB of valid UTF-8 without NUL.
	Failed(ctx context.Context, consumer int, id uuid.UUID, lastError string) (attempts int, err error)
}

// MarshalText returns "read committed", "repeatable read" or "serializable", and an error for any
// other value.
func (i Isolation) MarshalText() ([]byte, error) {
	return choice.Text("Isolation", isolationWords, i)
}

// UnmarshalText takes the texts that MarshalText returns, and gives an error for any other text.
func (i *Isolation) UnmarshalText(text []byte) error {
	return choice.Parse("Isolation", isolationWords, text, i)
}
