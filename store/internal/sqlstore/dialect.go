package sqlstore

import (
	"context"
	"database/sql"

	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// Transaction runs a function in a transaction, and commits it if that returns nil.
type Transaction func(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error

// Dialect is what differs between the databases.
type Dialect struct {
	// Names are those of the tables.
	Names migrations.Names
	// Words are what words in braces stand for. What follows a word's first space takes the place
	// of every $ in it. The values may hold words and arguments themselves.
	Words map[string]string
	// Clock is the clock of a database that runs in this process. A statement gets it as an
	// argument for {now}. Nil: {now} is one of Words.
	Clock func() int64
	// Fixed tells that the text of a statement does not depend on what is in its lists, so that it
	// is put together once. Then List gives one argument.
	Fixed bool
	// List writes a list: one of the types that [Core] names.
	List func(list any) (text string, args []any)
	// Text returns the argument for a [Text]. It is not asked if the texts are Fixed: then a Text
	// is taken as the string it is.
	Text func(s string) any
	// Limited tells that DELETE has ORDER BY and LIMIT.
	Limited bool

	// Locks tells that rows are locked one by one. What was selected for a change is then locked,
	// and read again.
	Locks bool
	// Write is a short transaction of the store's own, and Read one in which all that is read is of
	// one moment.
	Write, Read Transaction
	// Claiming is the transaction of a handler, with the isolation and the timeouts of c.
	Claiming func(ctx context.Context, c *inbox.Claim, fn func(ctx context.Context, tx *sql.Tx) error) error
	// Claimed ends the lock timeout of c, once all is locked that the handler has to have.
	Claimed func(ctx context.Context, tx *sql.Tx, c *inbox.Claim) error
	// Missing tells that an error is of a table or a column that is not there. Nil: none is known.
	Missing func(err error) bool
	// Lost is the error of all statements of a transaction that is gone.
	Lost error
	// Whole returns the context for statements in a caller's transaction, which may have to go on
	// when ctx ends.
	Whole func(ctx context.Context) context.Context
	// Alone makes a caller's transaction the only one that writes, where there can be only one.
	Alone func(ctx context.Context, tx *sql.Tx) error
	// LockKeys locks keys of a consumer's messages to the end of tx.
	LockKeys func(ctx context.Context, tx *sql.Tx, consumerID int, keys ...string) error

	// Stats reads pending, retrying, following, dead, owned, relays, deferred and in how many
	// microseconds the oldest event has become so old, or NULL. Its arguments are five times where
	// counting stops.
	Stats string
	// Dequeue removes queue rows of shards that the caller has fenced, and returns which there
	// were, ascending.
	Dequeue func(ctx context.Context, tx *sql.Tx, marks []outbox.Mark) ([]int64, error)
	// Receipt writes that events, at least one, were delivered now. The IDs ascend.
	Receipt func(ctx context.Context, tx *sql.Tx, relay string, ids []int64) error
	// Heal makes followers of a shard that are the heads of their keys retrying; with hold, unless
	// a dead event is before them.
	Heal func(ctx context.Context, tx *sql.Tx, shard int, hold bool) error
	// RemoveEvents removes those of some events that are neither queued, deferred nor parked, and
	// were not replayed since a time in microseconds since 1970. It returns them.
	RemoveEvents func(ctx context.Context, tx *sql.Tx, ids []int64, before int64) ([]int64, error)
	// ClaimToPark claims a message that is about to be parked, so that it is not taken for applied.
	// The verdict is not Followed.
	ClaimToPark func(ctx context.Context, tx *sql.Tx, c *inbox.Claim) (inbox.Verdict, error)
	// ForgetIDs removes dispatch IDs with stamps from a time to before another, without those that
	// are parked.
	ForgetIDs func(ctx context.Context, tx *sql.Tx, consumerID int, from, until int64, limit int, f *inbox.Forgotten) error
}

// Store has the methods of a store that are the same on every database. The zero value is of no
// use.
type Store struct {
	c *Core
}

// New returns the methods over c.
func New(c *Core) Store { return Store{c: c} }

// write runs fn in a short transaction of the store's own.
func (s *Store) write(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	return s.c.d.Write(ctx, fn)
}
