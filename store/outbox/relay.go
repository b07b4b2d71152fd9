package outbox

import (
	"context"
	"fmt"
	"time"
)

// SequenceError says that the sequence which numbers events has begun anew below numbers that it
// has given out before, as after a fail-over by logical replication, which copies no sequences, or
// TRUNCATE ... RESTART IDENTITY.
type SequenceError struct {
	// Sequence is the name of the sequence, as it is written in SQL.
	Sequence string
	// Last is what the sequence has given out last.
	Last int64
	// Highest is the highest number of an event that is there or was read.
	Highest int64
}

// Error names the remedy.
func (e *SequenceError) Error() string {
	return fmt.Sprintf("the sequence %s is at %d, and there are events up to %d: before anything is written, run SELECT setval('%s', %d)",
		e.Sequence, e.Last, e.Highest, e.Sequence, e.Highest)
}

// Identifier is a store that can tell whether it still is the database that it was. A
// relay asks for it with every heartbeat, if its store is one.
type Identifier interface {
	// Identity names the history of the database: another name after a fail-over to a standby, a
	// restore, or a crash that may have cost commits, the same after a restart. It returns "" if
	// the database does not tell.
	Identity(ctx context.Context) (string, error)
}

// SequenceChecker is a store whose events are numbered by a sequence, which may begin anew. A relay
// asks for it with every heartbeat, if its store is one.
type SequenceChecker interface {
	// CheckSequence returns a [SequenceError] if the sequence has given out less than the highest
	// number of an event that is there, and than read, of an event that was read before; nil if
	// not, or if the database does not tell.
	CheckSequence(ctx context.Context, read int64) error
}

// RelayStore is what a relay needs of a store.
//
// Every method that takes leases and changes what they own is fenced: it locks the shard
// row for owner and epoch within its one statement, changes nothing of a shard that relay does
// not own at that epoch any more, and reports that shard as lost. No method
// leaves a transaction open.
type RelayStore interface {
	// Heartbeat makes relay visible for ttl and tells how many relays are, this
	// one included.
	Heartbeat(ctx context.Context, relay string, ttl time.Duration) (live int, err error)
	// Acquire leases up to n shards that are free, whose lease has expired, or whose lease is of
	// before the database's clock was set back by more than it lasts. How long the lease of another
	// relay lasts, that relay has asked for, which may be more or less than ttl. Shards that others
	// hold locked are passed over.
	Acquire(ctx context.Context, relay string, ttl time.Duration, n int) ([]Grant, error)
	// Renew extends leases by ttl from now. Those not returned are lost.
	Renew(ctx context.Context, relay string, ttl time.Duration, leases []Lease) ([]Renewal, error)
	// Release gives leases back, so that others need not wait for their end, and
	// with forget takes relay off the list of visible ones.
	Release(ctx context.Context, relay string, leases []Lease, forget bool) error
	// ReportRoutes keeps which topics relay cannot send to, in place of all that it has reported
	// before, for [OperatorStore.ListRoutes]. What relays that are not visible have reported is
	// removed. It is not fenced.
	ReportRoutes(ctx context.Context, relay string, routes []StalledRoute) error
	// ClearRewind clears the rewind of a shard if ticket still names it.
	ClearRewind(ctx context.Context, relay string, lease Lease, ticket int64) error
	// KeepLow keeps lows for the next owners of the shards, with the [Identifier.Identity] of the
	// database of which they were true. Those of leases that are lost are passed over. Whatever
	// puts rows of events below it that were written before, as [RelayStore.Undefer] and
	// [OperatorStore.Requeue] do, lowers what is kept, both Seqs of it; while a rewind is asked
	// for, what is kept is below that.
	KeepLow(ctx context.Context, relay string, lows []Low, history string) error

	// Fetch reads the queue rows of ranges with their events, all in one snapshot. It
	// locks nothing.
	Fetch(ctx context.Context, ranges []Range) ([]Queued, error)
	// FetchKey reads queue rows of one key with from ≤ id, at most limit, all in one snapshot.
	FetchKey(ctx context.Context, shard int, key string, from int64, limit int) ([]Queued, error)
	// Writers names the transactions that may still commit events with IDs lower than some
	// that are visible already. A transaction keeps its name while it lives, and a
	// later one never gets the name of an earlier one that was returned. One transaction may have
	// several names. If preparing it for a two-phase commit changes them, one of the new ones
	// begins with "p ".
	Writers(ctx context.Context) ([]string, error)
	// Mark removes the queue rows of delivered events and keeps a receipt. It
	// returns the shards of marks that are lost. Rows of another round stay.
	Mark(ctx context.Context, relay string, marks []Mark) (lost []int, err error)

	// Undefer moves the deferred events of leases that are due, by the database's clock, to the
	// queue, at most limit of each shard, those that were due first first. An event that a
	// transaction is cancelling or moving is passed over: nobody waits for that. What it moved is
	// durable on return, so that an event that is sent cannot be cancelled.
	Undefer(ctx context.Context, relay string, leases []Lease, limit int) (Undeferred, error)

	// Blocked reads the blocked keys of shards, at most limit, that come after
	// the given one (the zero value begins): those with a retrying or following event, or,
	// with hold, a dead one.
	Blocked(ctx context.Context, shards []int, hold bool, after BlockedKey, limit int) ([]BlockedKey, error)
	// Heal makes the first live event of every key of shards retrying and due if
	// it is following; with hold, unless a dead event is before it. A relay
	// calls it when it has acquired shards and when it is told to rewind: what an operator
	// did may have left followers without a head.
	Heal(ctx context.Context, relay string, leases []Lease, hold bool) error
	// Park moves events from the queue to the parked events: retrying, or dead.
	Park(ctx context.Context, relay string, lease Lease, failures []Failure) (lost bool, err error)
	// Follow moves events from the queue to the parked events: following.
	Follow(ctx context.Context, relay string, lease Lease, marks []Mark) (lost bool, err error)
	// Due reads events that are heads of their keys, retrying and due, of shards, at most limit, in
	// the order of their [DuePoint] and behind after (the zero value begins), and how long from now
	// the next one is due (0: none is). With hold, an event with a dead one before it in its key is
	// no head. An event that is to wait for more than longest was parked by a clock that was ahead,
	// and is due.
	Due(ctx context.Context, shards []int, hold bool, after DuePoint, longest time.Duration, limit int) (due []Queued, next time.Duration, err error)
	// FetchParked reads the live (retrying or following) events of one key, at most limit, all in
	// one snapshot. With hold, which says that dead events hold their keys, the first dead one is
	// among them.
	FetchParked(ctx context.Context, shard int, key string, hold bool, limit int) ([]Queued, error)
	// Retry records further failures of live parked events, followers included: retrying
	// again, or dead. An event of which one attempt less than Attempts is not what is recorded
	// is left alone: the call is repeated when its answer is lost, and an operator may
	// have redriven the event in between. The next live event of a key whose head died
	// becomes retrying and due, unless hold.
	Retry(ctx context.Context, relay string, lease Lease, failures []Failure, hold bool) (lost bool, err error)
	// Sent removes parked events that were delivered and keeps a receipt. The next live event of
	// their keys becomes retrying and due; with hold, unless a dead event is before it.
	Sent(ctx context.Context, relay string, lease Lease, seqs []int64, hold bool) (lost bool, err error)

	// Listen blocks until ctx ends and calls woken for each wake-up sent by [RelayStore.Notify],
	// from any process, with what that was told; woken does not block. It returns [ErrNoSignal] at
	// once if the store has no such signal, and any other error when the connection is gone; the
	// caller listens again then.
	Listen(ctx context.Context, woken func(text string)) error
	// Notify wakes the relays that listen, in any process. text says who has committed, and in
	// which shards, in at most 255 bytes; relays read it, the store does not. It is called after
	// commits, never within a transaction of the user's.
	Notify(ctx context.Context, text string) error
}
