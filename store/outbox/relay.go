package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/boxpair/boxpair/store/control"
)

// SequenceError says that the sequence of event numbers was reset below numbers in use. Logical
// replication does so at a fail-over, since it copies no sequences, and so does TRUNCATE ...
// RESTART IDENTITY.
type SequenceError struct {
	// Sequence is the name of the sequence, as it is written in SQL.
	Sequence string
	// Last is the last number that the sequence has given out.
	Last int64
	// Highest is the highest number of an event in the log, or of an event that was read before.
	Highest int64
}

// Error names the remedy.
func (e *SequenceError) Error() string {
	return fmt.Sprintf("the sequence %s is at %d, and there are events up to %d: before anything is written, run SELECT setval('%s', %d)",
		e.Sequence, e.Last, e.Highest, e.Sequence, e.Highest)
}

// Identifier is an optional part of a store that tells a fail-over or a restore from a restart. A
// relay calls Identity with every heartbeat.
type Identifier interface {
	// Identity names the history of the database. The name changes with a fail-over to a standby, a
	// restore, and a crash that may have cost commits. A restart keeps the name. The name is "" if
	// the database does not tell.
	Identity(ctx context.Context) (string, error)
}

// SequenceChecker is an optional part of a store that numbers events by a sequence, which an
// operator or a fail-over may reset. A relay calls CheckSequence with every heartbeat.
type SequenceChecker interface {
	// CheckSequence returns a [SequenceError] if the sequence is below the highest number in the
	// log or below read, the highest number that the relay has read. CheckSequence also returns nil
	// if the database does not tell.
	CheckSequence(ctx context.Context, read int64) error
}

// Pulser is an optional part of a store that does in one transaction what a relay does with every
// renewal.
type Pulser interface {
	// Pulse is [RelayStore.Renew], [RelayStore.Heartbeat], [Identifier.Identity] and
	// [SequenceChecker.CheckSequence]; unless poll is nil, then also [Looker.FetchAndLook]. The error
	// wraps [errors.ErrUnsupported], and nothing is changed, if the database needs the methods one by
	// one.
	Pulse(ctx context.Context, relay string, ttl time.Duration, leases []Lease, read int64, poll *Poll) (Pulse, error)
}

// Poll is what a relay reads with a renewal.
type Poll struct {
	Ranges []Range
	Look   []int // shards; none: deferred events are not looked for
}

// Pulse is the answer of [Pulser].
type Pulse struct {
	Renewals []Renewal
	Live     int    // visible relays
	Identity string // "" if the database does not tell
	Sequence error  // of CheckSequence

	Rows []Queued      // of the poll
	Next time.Duration // of the poll, as of FetchAndLook
}

// Looker is an optional part of a store that polls in one transaction.
type Looker interface {
	// FetchAndLook is [RelayStore.Fetch], and returns how long from now the first deferred event of
	// shards is due: 0 if it is due, and -1 if there is none.
	FetchAndLook(ctx context.Context, ranges []Range, shards []int) (rows []Queued, next time.Duration, err error)
}

// Witnesser is an optional part of a store whose sessions end with their process. A witness is the
// number of such a session, and lasts as long as the session. A number is never given to another
// session. A relay records its witness with its leases: if the witness has ended, the relay has died
// or will stop sending at once, and other relays need not wait for the end of its leases.
//
// Witnesses only shorten the wait. A relay without a witness, as behind a pooler, has its leases.
type Witnesser interface {
	// ListenWitnessed is [RelayStore.Listen] in a session with a witness. It calls witnessed with
	// the witness, and with 0 as soon as the session has ended. It calls witnessed with neither if
	// the session may end without this process being told. witnessed does not block.
	ListenWitnessed(ctx context.Context, witnessed func(witness int64), woken func(text string)) error
	// Attest records witness with leases in place of an earlier witness; 0 records that there is none.
	// A witness that has ended is recorded as none, and lost leases are skipped. The witness of a
	// lease is forgotten when the epoch of its shard grows.
	Attest(ctx context.Context, relay string, leases []Lease, witness int64) error
	// EndedWitnesses returns the witnesses recorded with leases that were not given back, as far as
	// the witnesses have ended.
	EndedWitnesses(ctx context.Context) ([]int64, error)
	// Expire ends the leases with which one of witnesses is recorded, and makes their owners
	// invisible. The owners stay: such leases can be renewed, and whoever acquires them is told that
	// they were not given back.
	Expire(ctx context.Context, witnesses []int64) error
}

// RelayStore keeps the leases, the queue and the parked events for relays.
//
// Every method that takes leases and changes events is fenced: it locks the shard row for owner and
// epoch in the statement or transaction that makes the change. If relay no longer owns a shard at
// the epoch, the method changes nothing in the shard and reports the shard as lost. No method
// leaves a transaction open.
type RelayStore interface {
	control.Store

	// Heartbeat makes relay visible for ttl, and returns the number of visible relays.
	Heartbeat(ctx context.Context, relay string, ttl time.Duration) (live int, err error)
	// Acquire leases up to n shards for ttl: free shards, shards with an expired lease, and shards
	// whose lease ends so far ahead that the database's clock must have been set back. Relays may
	// use different ttls. Locked shards are skipped.
	Acquire(ctx context.Context, relay string, ttl time.Duration, n int) ([]Grant, error)
	// Renew extends leases to ttl from now. Leases missing from the result are lost.
	Renew(ctx context.Context, relay string, ttl time.Duration, leases []Lease) ([]Renewal, error)
	// Release gives leases back before they end. With forget, relay is no longer visible.
	Release(ctx context.Context, relay string, leases []Lease, forget bool) error
	// ReportRelay keeps r for [OperatorStore.ListRelays] if relay is visible. With r.StalledChanged,
	// r.Stalled replaces relay's list of topics that relay cannot send to, for
	// [OperatorStore.ListRoutes], and the lists of invisible relays are removed. ReportRelay is not
	// fenced.
	ReportRelay(ctx context.Context, relay string, r Report) error
	// ClearRewind clears the rewind of a shard if ticket still names it.
	ClearRewind(ctx context.Context, relay string, lease Lease, ticket int64) error
	// KeepLow keeps lows for the next owners of the shards, together with history, the
	// [Identifier.Identity] of the database in which lows are true. Lost leases are skipped.
	// [RelayStore.Undefer] and [OperatorStore.Requeue], which put rows of older events into the
	// queue, lower both kept Seqs below those rows. While a rewind is asked for, both kept Seqs are
	// below RewindTo.
	KeepLow(ctx context.Context, relay string, lows []Low, history string) error

	// Fetch reads the queue rows of ranges with their events, in one snapshot. It locks nothing.
	Fetch(ctx context.Context, ranges []Range) ([]Queued, error)
	// FetchKey reads queue rows of one key with from ≤ id, at most limit, in one snapshot.
	FetchKey(ctx context.Context, shard int, key string, from int64, limit int) ([]Queued, error)
	// Writers names the open transactions that may still commit events below visible IDs. A
	// transaction keeps its name while it is open, and a name that was returned is never given to a
	// later transaction. A transaction may have several names. If PREPARE TRANSACTION changes the
	// names, a new name begins with "p ".
	Writers(ctx context.Context) ([]string, error)
	// Mark removes the queue rows of delivered events, keeps a receipt of each event, and returns
	// the lost shards. Rows of another round stay.
	Mark(ctx context.Context, relay string, marks []Mark) (lost []int, err error)

	// Undefer moves due deferred events of leases to the queue, at most limit of each shard, the
	// longest due first. An event that an open transaction cancels or reschedules is skipped. The
	// move is durable on return, so a sent event cannot be cancelled.
	Undefer(ctx context.Context, relay string, leases []Lease, limit int) (Undeferred, error)

	// Blocked reads at most limit blocked keys of shards behind after; a zero after begins. A
	// retrying or following event blocks its key and, with hold, so does a dead event.
	Blocked(ctx context.Context, shards []int, hold bool, after BlockedKey, limit int) ([]BlockedKey, error)
	// Heal makes the first live event of each key retrying and due if the event is following; with
	// hold, not behind a dead event. A relay calls it for acquired shards and at a rewind: an
	// operator may have left followers without a head.
	Heal(ctx context.Context, relay string, leases []Lease, hold bool) error
	// Park moves events from the queue to the parked events: retrying, or dead.
	Park(ctx context.Context, relay string, lease Lease, failures []Failure) (lost bool, err error)
	// Follow moves events from the queue to the parked events: following.
	Follow(ctx context.Context, relay string, lease Lease, marks []Mark) (lost bool, err error)
	// Due reads at most limit due retrying events that are the heads of their keys, in the order of
	// [DuePoint] behind after; a zero after begins. next is how long from now the next head is due,
	// or 0 without any. With hold, an event behind a dead event of its key is not a head. An event
	// whose backoff is longer than longest was parked by a clock that was ahead, and is due.
	Due(ctx context.Context, shards []int, hold bool, after DuePoint, longest time.Duration, limit int) (due []Queued, next time.Duration, err error)
	// FetchParked reads at most limit live (retrying or following) events of each of different keys,
	// the events of a key in one snapshot. With hold, the first dead event of a key is included. The
	// result has an element for each key, by position.
	FetchParked(ctx context.Context, keys []BlockedKey, hold bool, limit int) ([][]Queued, error)
	// Retry records further failures of live parked events, followers included: retrying again, or
	// dead. Retry skips an event whose recorded attempts are not Attempts - 1: a relay repeats the
	// call when the answer is lost, and an operator may have redriven the event in between. When a
	// head becomes dead, the next live event of its key becomes retrying and due, unless hold.
	Retry(ctx context.Context, relay string, lease Lease, failures []Failure, hold bool) (lost bool, err error)
	// Sent removes delivered parked events, keeps a receipt of each event, and returns the lost
	// shards, whose events stay. The next live event of each key becomes retrying and due; with hold,
	// not behind a dead event. Rounds of the marks are not used.
	Sent(ctx context.Context, relay string, marks []Mark, hold bool) (lost []int, err error)

	// Listen blocks until ctx ends, and calls woken with the text of each [RelayStore.Notify] from
	// any process; woken does not block. Listen returns [ErrNoSignal] at once if the store has no
	// signal. Any other error means that the connection is gone and the caller listens again.
	Listen(ctx context.Context, woken func(text string)) error
	// Notify wakes the listening relays of all processes. text, of at most 255 bytes, is opaque to
	// the store: it names the outbox that has committed, and the shards. Notify is called after a
	// commit, never within a user's transaction.
	Notify(ctx context.Context, text string) error
}
