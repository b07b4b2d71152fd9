package sqlstore

import (
	"context"
	"database/sql"

	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// Transaction runs fn in a transaction, and commits the transaction if fn returns nil.
type Transaction func(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error

// Dialect has the differences between the databases.
type Dialect struct {
	// Names are the names of the tables.
	Names migrations.Names
	// Words are the texts for words in braces. The text behind a word's first space replaces every
	// $. Values may hold words and arguments themselves.
	Words map[string]string
	// Clock is the clock of a database that runs in this process. A statement gets the time as an
	// argument for {now}. If Clock is nil, {now} is one of Words.
	Clock func() int64
	// Fixed tells that the text of a statement does not depend on the contents of its lists, so
	// that the text is built once. List then returns exactly one argument.
	Fixed bool
	// List returns the text and the arguments for a list, one of the types that [Core] names.
	List func(list any) (text string, args []any)
	// Text returns the argument for a [Text]. With Fixed, Text is nil, and a [Text] is passed as a
	// string.
	Text func(s string) any
	// DeleteLimit tells that DELETE has ORDER BY and LIMIT.
	DeleteLimit bool

	// RowLocks tells that the database locks single rows. Rows selected for a change are then
	// locked, and read again.
	RowLocks bool
	// Write is a short transaction of the store's own. Read is a read-only transaction on one
	// snapshot.
	Write, Read Transaction
	// Claiming is the transaction of a handler, with the isolation and the timeouts of c.
	Claiming func(ctx context.Context, c *inbox.Claim, fn func(ctx context.Context, tx *sql.Tx) error) error
	// EndLockTimeout ends the lock timeout of c, after all locks for the handler are taken.
	EndLockTimeout func(ctx context.Context, tx *sql.Tx, c *inbox.Claim) error
	// Missing tells whether err reports a table or a column that does not exist. It may be nil.
	Missing func(err error) bool
	// Lost is the error of all statements of a lost transaction.
	Lost error
	// StatementContext returns the context for the store's statements in a caller's transaction.
	// Where an interrupted statement would end the transaction, it does not end with ctx.
	StatementContext func(ctx context.Context) context.Context
	// TakeWriteLock makes a caller's transaction the only writer, on a database with one writer.
	TakeWriteLock func(ctx context.Context, tx *sql.Tx) error
	// LockKeys locks keys of a consumer's messages until the end of tx.
	LockKeys func(ctx context.Context, tx *sql.Tx, consumerID int, keys ...string) error

	// Stats selects pending, retrying, following, dead, owned, relays, deferred, and the age of the
	// oldest event in microseconds, or NULL. Its five arguments are the limits of the counts.
	Stats string
	// Dequeue removes queue rows of shards that the caller has fenced, and returns the IDs of the
	// removed rows, ascending.
	Dequeue func(ctx context.Context, tx *sql.Tx, marks []outbox.Mark) ([]int64, error)
	// Receipt records the delivery of at least one event, now. The IDs ascend.
	Receipt func(ctx context.Context, tx *sql.Tx, relay string, ids []int64) error
	// Heal makes followers of a shard that are the heads of their keys retrying; with hold, unless
	// a dead event is before them.
	Heal func(ctx context.Context, tx *sql.Tx, shard int, hold bool) error
	// RemoveEvents removes the events among ids that are neither queued, deferred nor parked, and
	// were not replayed since before, in microseconds since 1970. It returns the removed IDs.
	RemoveEvents func(ctx context.Context, tx *sql.Tx, ids []int64, before int64) ([]int64, error)
	// ClaimToPark claims a message that is about to be parked. The claim is not marked as applied,
	// and the verdict is never Followed.
	ClaimToPark func(ctx context.Context, tx *sql.Tx, c *inbox.Claim) (inbox.Verdict, error)
	// ForgetIDs removes at most limit dispatch IDs with from ≤ stamp < until, except IDs of parked
	// messages.
	ForgetIDs func(ctx context.Context, tx *sql.Tx, consumerID int, from, until int64, limit int, f *inbox.Forgotten) error
}

// Store has the methods of a store that are the same on every database. The zero value is not
// usable.
type Store struct {
	c *Core
}

// New returns the methods over c.
func New(c *Core) Store { return Store{c: c} }

// write runs fn in a short transaction of the store's own.
func (s *Store) write(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	return s.c.d.Write(ctx, fn)
}
