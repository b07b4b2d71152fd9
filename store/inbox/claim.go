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

// The isolation levels. SQLite has only [Serializable] and takes every level for it.
const (
	ReadCommitted Isolation = iota
	RepeatableRead
	Serializable
)

var isolationWords = []string{ReadCommitted: "read committed", RepeatableRead: "repeatable read", Serializable: "serializable"}

// Claim asks to be the one that applies a message.
type Claim struct {
	Consumer int // as returned by [WindowStore.Register]
	ID       uuid.UUID
	Digest   transport.Digest // zero if the message carries none
	Stamp    time.Time        // zero if the message carries none: then the time of the claim
	// Key is the message's key if the handler wants order, or "". A claim
	// with a key waits for the end of every other transaction of the consumer that
	// holds the same key, and follows if live parked messages of the key exist.
	Key string
	// Message is what is parked if the claim has to follow.
	Message *Message

	Isolation Isolation
	// IdleTimeout bounds how long the transaction may be idle before the database
	// ends it, for handlers that do not come back.
	IdleTimeout time.Duration
	// LockTimeout bounds the wait for another transaction with the same claim. It
	// does not apply to the handler's own statements.
	LockTimeout time.Duration

	// Started tells that a start of the message is recorded. It is forgotten with the commit, if
	// the message is applied, and so are counted attempts: or a copy would be a suspect. A store
	// that looks for them itself need not take notice.
	Started bool

	// Optimistic lets a store run fn before it has asked for the claim, so that both go to the
	// database together. fn is then also run, at most once in vain, for a message with another
	// verdict, or where the database takes nothing of it yet: nothing of that is kept, and what fn
	// returned does not matter. A store need not take notice of it.
	Optimistic bool
}

// Verdict is the answer to a claim.
type Verdict uint8

const (
	// None is the verdict when there is an error.
	None Verdict = iota
	// Applied: the claim and the effects of the handler are committed.
	Applied
	// Duplicate: the message was claimed before, with equal content or with no
	// digest on either side.
	Duplicate
	// Altered: the message was claimed before with other content.
	Altered
	// TooOld: the message is from a time that the consumer has forgotten.
	TooOld
	// Followed: earlier messages of the key are parked, and this one was parked
	// behind them, with its claim.
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
	// HandlerError is any error that the database is not to blame for.
	HandlerError ErrorClass = iota
	// Conflict is a conflict with another transaction that was rolled back
	// (serialization failure, deadlock, lock timeout, busy database).
	Conflict
	// Infrastructure is an error of the database or of the way to it.
	Infrastructure
	// CommitUnknown is a COMMIT whose outcome is not known.
	CommitUnknown
)

// ClaimStore is what handling a message needs of a store.
type ClaimStore[TX any] interface {
	// Apply claims c in a new transaction, runs fn in it and commits. The claim is an insert, and
	// the unique index decides: of several copies one claims, and the others wait for its end. fn
	// is not run unless the claim was made, or c is Optimistic. If fn returns an error, panics or
	// calls Goexit, everything is rolled back; the error is returned as it is, or wrapped with what
	// a store has to say about it. A COMMIT answered with ROLLBACK gives an error that wraps
	// [ErrRolledBack]. ctx bounds the whole.
	Apply(ctx context.Context, c Claim, fn func(ctx context.Context, tx TX) error) (Verdict, error)

	// ApplyGroup is Apply for several messages of one consumer in one transaction. The claims have
	// different IDs, and all but ID, digest, stamp, key and message in common. None is Optimistic.
	// All locks are taken before fn runs, those of keys first, each kind in an order that all
	// transactions share, so groups do not deadlock over them. fn is run once, with the indexes of
	// the claims that were made, ascending; if there are none it is not run. What a message of the
	// group needs besides, as one that follows, is done in the same transaction: either all of the
	// group is committed or nothing, and with an error there are no verdicts. The claim of a
	// message that is too old is not kept.
	ApplyGroup(ctx context.Context, claims []Claim, fn func(ctx context.Context, tx TX, run []int) error) ([]Verdict, error)

	// Savepoint is the same as for a producer's store.
	Savepoint(ctx context.Context, tx TX, fn func(ctx context.Context, tx TX) error) error

	// Classify says what err means. It looks through wrapping.
	Classify(err error) ErrorClass

	// Started records that the handling of messages that may have been started before begins again,
	// and returns for each ID, in the order of ids, how often that was recorded. If starts of a
	// message are recorded and the last change of them was within so long, it records nothing for
	// that one and returns 0: another process may be about to begin it. The IDs differ. All of it
	// is one transaction, committed on return.
	Started(ctx context.Context, consumer int, ids []uuid.UUID, within time.Duration) (starts []int, err error)
	// Unstarted takes one recorded start of each message back, if there is one: the handler came
	// back, or was not begun after all. The IDs differ. All of it is one transaction, committed on
	// return.
	Unstarted(ctx context.Context, consumer int, ids []uuid.UUID) error
	// Failed counts a failed attempt and returns how many have been counted. It
	// forgets the recorded starts, since the handling came back. It is committed on
	// return. lastError is at most 1 KiB, valid UTF-8 without NUL.
	Failed(ctx context.Context, consumer int, id uuid.UUID, lastError string) (attempts int, err error)
}

// MarshalText returns "read committed", "repeatable read" or "serializable", and an error for any
// other value.
func (i Isolation) MarshalText() ([]byte, error) {
	return choice.Text("Isolation", isolationWords, i)
}

// UnmarshalText takes what MarshalText returns, and nothing else.
func (i *Isolation) UnmarshalText(text []byte) error {
	return choice.Parse("Isolation", isolationWords, text, i)
}
