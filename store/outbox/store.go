package outbox

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Store keeps an outbox. TX is the type of its transactions. The stores of this
// library are in store/postgres, store/mysql and store/sqlite; package store/storetest holds
// the contract below as tests for any other.
//
// All methods may be called concurrently, except that one transaction is used by
// one goroutine at a time. Times that decide anything are the database's. Events
// come back in ascending order of their IDs, which is the order in which
// they were appended.
type Store[TX any] interface {
	EventStore[TX]
	RelayStore
	OperatorStore
	JanitorStore
}

// EventStore is what writing events needs of a store.
type EventStore[TX any] interface {
	// Append writes records and their queue rows in tx, in their order, in one statement, and tells
	// for each whether the outbox knew it already. A record whose DeliverAt is later than now, by
	// the database's clock, is deferred: it has no queue row. The stamps of records are not used:
	// the stamp is the time of writing, by the database's clock, or when the event was due if that
	// is later. A known dispatch ID with another digest makes tx unable to commit and gives
	// [ErrConflict], also when a concurrent transaction has just committed it. The first Append in
	// a transaction ties it to writer; another writer's gives [ErrSecondWriter] and writes nothing.
	Append(ctx context.Context, tx TX, writer uuid.UUID, records []Record) (known []bool, err error)

	// Cancel gives up those of the events ids that are deferred: they become cancelled, with
	// reason, and their dispatch IDs are returned. Whatever of them a relay moves at the same time
	// is not. It waits for transactions that have cancelled or moved one of them and are not yet
	// over.
	Cancel(ctx context.Context, tx TX, ids []uuid.UUID, reason string) ([]uuid.UUID, error)
	// Reschedule has those of the events ids that are deferred wait until at, and returns their
	// dispatch IDs. Otherwise it is like Cancel.
	Reschedule(ctx context.Context, tx TX, ids []uuid.UUID, at time.Time) ([]uuid.UUID, error)

	// LockKeys makes concurrent transactions that lock one of keys wait for the
	// end of tx. The caller passes keys sorted and without repetition.
	LockKeys(ctx context.Context, tx TX, keys []string) error

	// Savepoint runs fn within a savepoint of tx, released if fn returns nil and
	// rolled back to otherwise. The transaction given to fn is the one to use
	// meanwhile. A panic or Goexit rolls back too.
	Savepoint(ctx context.Context, tx TX, fn func(ctx context.Context, tx TX) error) error

	// Transact runs fn in a new transaction and commits it if fn returns nil. A
	// panic, Goexit or error rolls back. An error that [EventStore.Retryable] tells
	// about is returned like any other. A COMMIT that the database answered with ROLLBACK is an
	// error; one whose outcome is not known wraps [ErrCommitUnknown].
	Transact(ctx context.Context, fn func(ctx context.Context, tx TX) error) error

	// Retryable tells whether err is a conflict with another transaction
	// (serialization failure, deadlock, busy database) that was rolled back and
	// may succeed when the whole transaction is run again.
	Retryable(err error) bool
}

// CommitStore is a [Store] that can send events together with the COMMIT. It is optional: without
// it, events that were queued are written just before.
type CommitStore[TX any] interface {
	// AppendAtCommit queues what [EventStore.Append] would do, to be done when tx commits, behind
	// all that was done and queued in it before. It does no I/O. Where Append would fail, the
	// commit fails with that error, and nothing is committed: [ErrSecondWriter] included. It
	// returns false, and has queued nothing, if tx is not a transaction of [EventStore.Transact] or
	// of a consumer's handler, or is one within a savepoint.
	AppendAtCommit(tx TX, writer uuid.UUID, records []Record) (queued bool, err error)
}
