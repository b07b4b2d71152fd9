package outbox

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Store keeps an outbox. TX is the type of its transactions. The stores of this library are in
// store/postgres, store/mysql and store/sqlite. Package store/storetest tests any store against the
// contract below.
//
// All methods may be called concurrently, but a transaction is used by one goroutine at a time. The
// database's clock decides about leases and due times. Events come back in ascending order of Seq,
// the order in which they were appended.
type Store[TX any] interface {
	EventStore[TX]
	RelayStore
	OperatorStore
	JanitorStore
}

// EventStore writes events in the caller's transaction.
type EventStore[TX any] interface {
	// Append writes records and their queue rows in tx, in the order given, in one statement. known
	// tells for each record whether the outbox had the event already. A record with a DeliverAt in
	// the future, by the database's clock, is deferred and gets no queue row. Append sets the stamp
	// of an event to the later of the time of writing and DeliverAt; Record.Stamp is ignored.
	//
	// A known dispatch ID with another digest makes tx unable to commit and gives [ErrConflict],
	// even when a concurrent transaction has just committed the ID. The first Append in a
	// transaction ties the transaction to writer: an Append of another writer gives
	// [ErrSecondWriter] and writes nothing.
	Append(ctx context.Context, tx TX, writer uuid.UUID, records []Record) (known []bool, err error)

	// Cancel cancels the deferred events among ids, with reason, and returns their dispatch IDs. An
	// event that a relay is moving to the queue is not cancelled. Cancel waits for open
	// transactions that have cancelled or rescheduled one of the events.
	Cancel(ctx context.Context, tx TX, ids []uuid.UUID, reason string) ([]uuid.UUID, error)
	// Reschedule sets the due time of the deferred events among ids, and returns their dispatch
	// IDs. It waits like Cancel.
	Reschedule(ctx context.Context, tx TX, ids []uuid.UUID, at time.Time) ([]uuid.UUID, error)

	// LockKeys locks keys until the end of tx: a concurrent transaction that locks one of the keys
	// waits. The caller passes keys sorted and without repetition.
	LockKeys(ctx context.Context, tx TX, keys []string) error

	// Savepoint runs fn within a savepoint of tx. The savepoint is released if fn returns nil; an
	// error, a panic or Goexit rolls back to the savepoint. fn uses its own argument instead of the
	// outer tx.
	Savepoint(ctx context.Context, tx TX, fn func(ctx context.Context, tx TX) error) error

	// Transact runs fn in a new transaction and commits if fn returns nil. An error, a panic or
	// Goexit rolls back. Transact does not run fn again on an error that [EventStore.Retryable]
	// names. A COMMIT that the database answers with ROLLBACK is an error; a COMMIT with an unknown
	// outcome gives an error that wraps [ErrCommitUnknown].
	Transact(ctx context.Context, fn func(ctx context.Context, tx TX) error) error

	// Retryable tells whether err is a conflict with another transaction (serialization failure,
	// deadlock, busy database): the transaction was rolled back, and may succeed when run again.
	Retryable(err error) bool
}

// CommitStore is an optional part of a [Store] that sends events together with the COMMIT. Without
// CommitStore, events are written at once.
type CommitStore[TX any] interface {
	// WaitForCommit tells whether records may wait in memory until AppendAtCommit queues them for the
	// COMMIT of tx: the caller has no savepoint in tx, as far as the store can know. Before the
	// caller sets one, the store calls flush, which writes the records: they would be rolled back
	// with the savepoint otherwise, or outlive it.
	WaitForCommit(tx TX, flush func(ctx context.Context) error) bool
	// AppendAtCommit queues an [EventStore.Append] for the COMMIT of tx, behind all earlier
	// statements of tx. It does no I/O. Where Append would fail, the commit fails with the error of
	// Append, [ErrSecondWriter] included, and nothing is committed. AppendAtCommit queues nothing
	// and returns false if tx is neither a transaction of [EventStore.Transact] nor of a consumer's
	// handler, or is within a savepoint.
	AppendAtCommit(tx TX, writer uuid.UUID, records []Record) (queued bool, err error)
}
