package consumer

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/transport"
)

// Store keeps inboxes. TX is the type of its transactions. The stores of this
// library are in store/postgres, store/mysql and store/sqlite; package store/storetest holds
// the contract below as tests for any other. No method has the name of one that a producer's store
// has and another signature, so one store can be both.
//
// All methods may be called concurrently. Times that decide anything are the database's.
type Store[TX any] interface {
	ClaimStore[TX]
	ParkedStore[TX]
	WindowStore
	HistoryStore
}

// Isolation is the isolation level of a handler's transaction.
type Isolation uint8

// The isolation levels. SQLite has only [Serializable] and takes every level for it.
const (
	ReadCommitted Isolation = iota
	RepeatableRead
	Serializable
)

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

	// Started tells that a start of the message is recorded. It is forgotten with the commit, if the message is applied, and
	// so are counted attempts: or a copy would be a suspect. A store that looks for them itself need not take notice.
	Started bool

	// Optimistic lets a store run fn before it has asked for the claim, so that both go to the database together. fn is
	// then also run, at most once in vain, for a message with another verdict, or where the database takes nothing of it yet: nothing of that is kept, and what fn
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
	// Apply claims c in a new transaction, runs fn in it and commits. The claim is
	// an insert, and the unique index decides: of several copies one claims, and the
	// others wait for its end. fn is not run unless the claim was made, or c is Optimistic. If fn
	// returns an error, panics or calls Goexit, everything is rolled back; the error
	// is returned as it is, or wrapped with what a store has to say about it. A COMMIT answered with ROLLBACK gives an error that wraps
	// [ErrRolledBack]. ctx bounds the whole.
	Apply(ctx context.Context, c Claim, fn func(ctx context.Context, tx TX) error) (Verdict, error)

	// ApplyGroup is Apply for several messages of one consumer in one transaction. The claims
	// have different IDs, and all but ID, digest, stamp, key and message in common. None is Optimistic. All locks are
	// taken before fn runs, those of keys first, each kind in an order that all transactions share, so
	// groups do not deadlock over them. fn is run once, with the indexes of the claims that
	// were made, ascending; if there are none it is not run. What a message of the group needs besides, as one that
	// follows, is done in the same transaction: either all of the group is committed or nothing, and
	// with an error there are no verdicts. The claim of a message that is too old is
	// not kept.
	ApplyGroup(ctx context.Context, claims []Claim, fn func(ctx context.Context, tx TX, run []int) error) ([]Verdict, error)

	// Savepoint is the same as for a producer's store.
	Savepoint(ctx context.Context, tx TX, fn func(ctx context.Context, tx TX) error) error

	// Classify says what err means. It looks through wrapping.
	Classify(err error) ErrorClass

	// Started records that the handling of messages that may have been started
	// before begins again, and returns for each ID, in the order of ids, how often that was recorded. If starts of a message
	// are recorded and the last change of them was within so long, it records nothing for that one and returns 0: another
	// process may be about to begin it. The IDs differ. All of it is one transaction, committed on return.
	Started(ctx context.Context, consumer int, ids []uuid.UUID, within time.Duration) (starts []int, err error)
	// Unstarted takes one recorded start of each message back, if there is one: the handler came back, or was
	// not begun after all. The IDs differ. All of it is one transaction, committed on return.
	Unstarted(ctx context.Context, consumer int, ids []uuid.UUID) error
	// Failed counts a failed attempt and returns how many have been counted. It
	// forgets the recorded starts, since the handling came back. It is committed on
	// return. lastError is at most 1 KiB, valid UTF-8 without NUL.
	Failed(ctx context.Context, consumer int, id uuid.UUID, lastError string) (attempts int, err error)
}

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

// ParkedMessage is a parked message. Seq is its place among those of its consumer.
type ParkedMessage struct {
	Message
	Seq           int64
	Consumer      string // the consumer's name
	State         State
	Attempts      int
	ParkedAt      time.Time
	NextAttemptAt time.Time // zero unless retrying
	LastError     string
	Reason        string // why it was discarded
	// Unreadable says why Metadata could not be read from the database; they are nil then. Such a message is dead when it is taken up.
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
	// ParkMessage keeps a message. For Retrying and Dead, the claim and the parked row are
	// written in one transaction, which waits for the end of another copy's; if the claim was
	// made before, by a copy that was applied or parked, nothing is written and the verdict is Duplicate. TooOld
	// and altered messages are kept without a claim, once: the verdict on a further copy is
	// Duplicate. Otherwise the verdict is Applied. A message that turns out to be too old or altered
	// when it is to be claimed is kept as that instead, so that it is not lost.
	ParkMessage(ctx context.Context, p Parking) (Verdict, error)

	// DueMessages names messages of consumer that are retrying, due, and the first live ones of their
	// keys, at most limit, and how long from now the next one is due (0: none is).
	DueMessages(ctx context.Context, consumer int, limit int) (seqs []int64, next time.Duration, err error)
	// ApplyParked locks a parked message that is retrying and due and the first
	// live one of its key, runs fn in the same transaction, removes the parked row and
	// commits; the next live message of its key becomes retrying and due. A message that is not
	// such any more, or that another process has locked, gives false and no error.
	// Otherwise it is like [ClaimStore.Apply].
	ApplyParked(ctx context.Context, c Claim, seq int64, fn func(ctx context.Context, tx TX, m *ParkedMessage) error) (bool, error)
	// RetryMessage counts a failed attempt of a parked message: retrying again after
	// retryIn, or dead. A message that is not retrying any more stays as it is. It forgets the recorded starts. The next live message of a
	// dead one's key becomes retrying and due.
	RetryMessage(ctx context.Context, seq int64, attempts int, retryIn time.Duration, dead bool, lastError string) error

	// ListParkedMessages reads parked messages by ascending Seq.
	ListParkedMessages(ctx context.Context, f Filter) ([]ParkedMessage, error)
	// RedriveMessages makes dead, too old and, with Force, altered messages that f selects
	// retrying and due, with no attempts and no starts counted, and returns their dispatch IDs.
	// One that was too old claims its dispatch ID when it runs, and the ID is remembered from
	// then on; if a copy has claimed it meanwhile, it is removed without running. One that was
	// altered runs without a claim. The reason is kept in their history.
	RedriveMessages(ctx context.Context, f Filter, reason string) ([]uuid.UUID, error)
	// DiscardMessages gives up parked messages that f selects, keeps reason with them and in their history, and their
	// claims, and returns their dispatch IDs. A follower that has become the first live message of its key
	// becomes retrying and due.
	DiscardMessages(ctx context.Context, f Filter, reason string) ([]uuid.UUID, error)
}

// Registration is what a store knows of a consumer.
type Registration struct {
	Consumer int
	// ForgottenUntil is the time up to which dispatch IDs are forgotten. Zero: none is.
	ForgottenUntil time.Time
	// Horizon is the longest time after its stamp that a producer may send an event again, as
	// [WindowStore.NoteHorizon] was told, and HorizonUntil until when one with it may come. Zero
	// if that is over, or nobody has said.
	Horizon      time.Duration
	HorizonUntil time.Time
}

// Seen is an applied dispatch ID, for warming a window.
type Seen struct {
	ID     uuid.UUID
	Digest transport.Digest
}

// Forgotten tells what a batch of forgetting has removed.
type Forgotten struct {
	IDs int
	// Through is the latest stamp of what was removed, from which the next batch may look on.
	// Zero if nothing was.
	Through time.Time
}

// WindowStore is what the memory of an inbox needs of a store.
type WindowStore interface {
	// Register makes a consumer known by name, on the first call with nothing forgotten, and
	// keeps its window.
	Register(ctx context.Context, name string, window time.Duration) (Registration, error)
	// NoteHorizon keeps that events of consumer may be sent again for horizon after
	// their stamps, and that such a one may come until then. A longer horizon replaces a shorter one, as does any
	// when the one that is kept is over; an equal one extends its time.
	NoteHorizon(ctx context.Context, consumer int, horizon time.Duration, until time.Time) error
	// Newest reads the dispatch IDs that consumer applied last, newest last, at most limit.
	Newest(ctx context.Context, consumer int, limit int) ([]Seen, error)
	// AdvanceForgotten sets the time up to which consumer forgets to window before now, never
	// back, and commits. A consumer that has been known for less than window has nothing to
	// forget: then nothing changes, so that it may read history of any age. A step beyond
	// maxStep, counted from the last one, is refused with [ErrClockJump]: if the database's clock has
	// gone further than that since the last call, or the first registration. It returns the
	// time that holds now.
	AdvanceForgotten(ctx context.Context, consumer int, window, maxStep time.Duration) (time.Time, error)
	// Forget removes dispatch IDs of consumer with a stamp before the time up to which
	// it forgets, as that was at least grace ago, and not before after, the oldest first, at most
	// limit. IDs of parked messages stay.
	Forget(ctx context.Context, consumer int, grace time.Duration, after time.Time, limit int) (Forgotten, error)
	// ForgetDiscarded removes parked messages of consumer that were discarded longer than age
	// ago, at most limit, and tells how many. Their dispatch IDs stay, to be forgotten like
	// those of applied ones.
	ForgetDiscarded(ctx context.Context, consumer int, age time.Duration, limit int) (int, error)
	// InboxStats reads the state of a consumer's inbox.
	InboxStats(ctx context.Context, consumer int) (Stats, error)
}

// ParkedNamer is a [Store] that tells whose messages are parked, as those of this library do, so that [Inbox.Run] can say which of
// them no handler will take up.
type ParkedNamer interface {
	// ParkedConsumers returns the names of consumers that have messages parked which were not discarded, of a hundred at most.
	ParkedConsumers(ctx context.Context) ([]string, error)
}

// Stats is the state of a consumer's inbox at one moment.
type Stats struct {
	Retrying  int64
	Following int64
	Dead      int64
	TooOld    int64
	Altered   int64
	// OldestParked is the age of the oldest retrying or following message.
	OldestParked time.Duration
	// ForgottenUntil is the time up to which dispatch IDs are forgotten.
	ForgottenUntil time.Time
	// Horizon is the longest time after its stamp that a producer may send an event
	// again, of those that may still come. If it exceeds Config.Window, late copies will be
	// set aside as too old.
	Horizon time.Duration
	// Effects counts the effects outside the database that are not done, for a handler of [HandleEffect].
	Effects EffectStats
}
