package producer

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/transport"
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

// EventStore is what a [Writer] and [Outbox.Transact] need of a store.
type EventStore[TX any] interface {
	// Append writes records and their queue rows in tx, in their order, in one
	// statement, and tells for each whether the outbox knew it already. A record whose DeliverAt is later than now, by
	// the database's clock, is deferred: it has no queue row. The stamps of
	// records are not used: the stamp is the time of writing, by the database's clock, or when the event was due if that
	// is later. A known dispatch ID
	// with another digest makes tx unable to commit and gives [ErrConflict], also
	// when a concurrent transaction has just committed it. The first Append in a
	// transaction ties it to writer; another writer's gives [ErrSecondWriter] and
	// writes nothing.
	Append(ctx context.Context, tx TX, writer uuid.UUID, records []Record) (known []bool, err error)

	// Cancel gives up those of the events ids that are deferred: they become cancelled, with reason, and their
	// dispatch IDs are returned. Whatever of them a relay moves at the same time is not. It waits
	// for transactions that have cancelled or moved one of them and are not yet over.
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

// CommitStore is a [Store] that can send events together with the COMMIT. It is optional: without it,
// events that were queued are written just before.
type CommitStore[TX any] interface {
	// AppendAtCommit queues what [EventStore.Append] would do, to be done when tx commits, behind all that was done
	// and queued in it before. It does no I/O. Where Append would fail, the commit fails with that error, and nothing is
	// committed: [ErrSecondWriter] included. It returns false, and has queued nothing, if tx is not a transaction of
	// [EventStore.Transact] or of a consumer's handler, or is one within a savepoint.
	AppendAtCommit(tx TX, writer uuid.UUID, records []Record) (queued bool, err error)
}

// Lease is a relay's ownership of a shard for a time. Epoch grows with every
// change of owner and fences off whoever owned the shard before.
type Lease struct {
	Shard int
	Epoch int64
}

// Grant is a lease that was just acquired.
type Grant struct {
	Lease
	// Abrupt tells that the former owner did not give the shard back: what it had
	// in flight may have been started by consumers.
	Abrupt bool
	// Low, Tail and History are what [RelayStore.KeepLow] has kept of the shard: empty if nothing is, if an owner since then does not
	// know of it, or if the log has no event at or above Low and Tail, as after numbers began anew.
	Low     int64
	Tail    Tail
	History string
	// Ticket is the last one that the shard had, as in [Renewal], 0 if it had none. Low and Tail are below the rewind that it
	// asks for, unless an owner has done that.
	Ticket int64
}

// Low tells that the queue of a shard has no row with an ID up to Seq, and that no writer can commit one there any more. 0: it
// is not known to be so of any.
type Low struct {
	Lease
	Seq int64
	// Tail is kept besides. nil leaves the one that is kept.
	Tail *Tail
}

// Tail tells which events a relay has read and left in the queue of a shard: each queue row with an ID up to Seq is of an event without
// a key, or of a key that Passed names. No writer can commit one there any more. A Seq of 0 says nothing.
type Tail struct {
	Seq int64
	// Passed is opaque to stores. It may take a megabyte.
	Passed []byte
}

// Renewal is a lease that was renewed.
type Renewal struct {
	Lease
	// Rewind tells that an operator has changed what is to be sent from this
	// shard: the shard is to be healed, its blocked keys loaded anew and the queue read from
	// the event RewindTo on. Ticket names the request for [RelayStore.ClearRewind]. Tickets of a shard ascend.
	Rewind   bool
	RewindTo int64
	Ticket   int64
}

// RoundChance is how many bits of the round of an event that was queued again are chance: a database that has lost commits gives tickets
// out again, and the mark of a replay that is lost would remove the row of the next one.
const RoundChance = 20

// Range asks for queue rows of a shard with After < id ≤ Through, at most Limit.
// A Through of 0 means no upper bound. Rows whose id is in Except, which is sorted,
// are left out and do not count towards Limit.
type Range struct {
	Shard   int
	After   int64
	Through int64
	Limit   int
	Except  []int64
}

// Queued is an event in the queue, or parked.
type Queued struct {
	Record
	// Seq is the event's place in the log, in the order of writing.
	Seq int64
	// Round tells a queue row from an earlier one of the same event, and from that of another event that had this Seq
	// in a database that has lost it since. For an event that was queued again, Round >> [RoundChance] is above all tickets that its shard had
	// before, and not above that of the rewind which is asked for with it. It is 0 or below for others: by chance, where a
	// database may lose commits that were seen.
	Round int64
	// Missing tells that the queue row has no event in the log, which nothing
	// in this library brings about. Of Record, only Shard is set then.
	Missing bool
	// Unreadable says what of the event cannot be read, as headers that are no JSON object of strings, and never shows it;
	// "" if all can. It is not an error of the call, which would keep all other events from being sent: a relay buries the event.
	Unreadable string
	// Attempts and State are set for parked events, DueAt for those that Due returns.
	Attempts int
	State    State
	DueAt    time.Time
}

// DuePoint is a place in the order in which parked events are due: by time, of the
// database's clock, and by Seq among equals.
type DuePoint struct {
	At  time.Time
	Seq int64
}

// State is the state of a parked event.
type State string

const (
	// Retrying events have failed and are sent again after a backoff.
	Retrying State = "retrying"
	// Following events wait for an earlier event of their key.
	Following State = "following"
	// Dead events have used up their attempts and wait for an operator.
	Dead State = "dead"
	// Discarded events were given up by an operator. They are kept with the reason.
	Discarded State = "discarded"
	// Cancelled events were deferred and given up before they were due. They are kept like discarded ones.
	Cancelled State = "cancelled"
)

// Mark names a queue row whose event was confirmed, or is to be parked.
type Mark struct {
	Lease
	Seq   int64
	Round int64
}

// Undeferred tells what a call of [RelayStore.Undefer] has done.
type Undeferred struct {
	// Moved are the events that have a queue row now.
	Moved []Moved
	// Next is how long from now the next deferred event is due; 0: there is none.
	Next time.Duration
	// Lost are the shards that relay does not own any more, among those where something was due.
	Lost []int
}

// Moved names an event that was deferred and is queued.
type Moved struct {
	Shard int
	Seq   int64
}

// Failure tells what became of a failed attempt to send an event.
type Failure struct {
	Seq   int64
	Round int64 // of the queue row; not used for events that are parked already
	// Attempts is how many attempts have been counted, this one included.
	Attempts int
	// RetryIn is how long from now the event is not to be sent. Unused if Dead.
	RetryIn time.Duration
	// Dead buries the event.
	Dead bool
	// Outcome and Error describe the failure. Error is at most 1 KiB, valid UTF-8.
	Outcome transport.Outcome
	Error   string
}

// BlockedKey is a key of which nothing may be taken from the queue.
type BlockedKey struct {
	Shard int
	Key   string
}

// Identifier is a store that can tell whether it still is the database that it was. A
// relay asks for it with every heartbeat, if its store is one.
type Identifier interface {
	// Identity names the history of the database: another name after a fail-over to a standby,
	// a restore, or a crash that may have cost commits, the same after a restart. It returns "" if the database does not tell.
	Identity(ctx context.Context) (string, error)
}

// SequenceChecker is a store whose events are numbered by a sequence, which may begin anew. A relay asks for it with
// every heartbeat, if its store is one.
type SequenceChecker interface {
	// CheckSequence returns a [SequenceError] if the sequence has given out less than the highest number of an event that is there,
	// and than read, of an event that was read before; nil if not, or if the database does not tell.
	CheckSequence(ctx context.Context, read int64) error
}

// RelayStore is what a [Relay] needs of a store.
//
// Every method that takes leases and changes what they own is fenced: it locks the shard
// row for owner and epoch within its one statement, changes nothing of a shard that relay does
// not own at that epoch any more, and reports that shard as lost. No method
// leaves a transaction open.
type RelayStore interface {
	// Heartbeat makes relay visible for ttl and tells how many relays are, this
	// one included.
	Heartbeat(ctx context.Context, relay string, ttl time.Duration) (live int, err error)
	// Acquire leases up to n shards that are free, whose lease has expired, or whose
	// lease is of before the database's clock was set back by more than it lasts. How long the lease of another relay
	// lasts, that relay has asked for, which may be more or less than ttl. Shards that others hold locked are passed over.
	Acquire(ctx context.Context, relay string, ttl time.Duration, n int) ([]Grant, error)
	// Renew extends leases by ttl from now. Those not returned are lost.
	Renew(ctx context.Context, relay string, ttl time.Duration, leases []Lease) ([]Renewal, error)
	// Release gives leases back, so that others need not wait for their end, and
	// with forget takes relay off the list of visible ones.
	Release(ctx context.Context, relay string, leases []Lease, forget bool) error
	// ReportRoutes keeps which topics relay cannot send to, in place of all that it has reported before, for
	// [OperatorStore.ListRoutes]. What relays that are not visible have reported is removed. It is not fenced.
	ReportRoutes(ctx context.Context, relay string, routes []StalledRoute) error
	// ClearRewind clears the rewind of a shard if ticket still names it.
	ClearRewind(ctx context.Context, relay string, lease Lease, ticket int64) error
	// KeepLow keeps lows for the next owners of the shards, with the [Identifier.Identity] of the database of which they were true. Those of leases
	// that are lost are passed over. Whatever puts rows of events below it that were written before, as [RelayStore.Undefer] and
	// [OperatorStore.Requeue] do, lowers what is kept, both Seqs of it; while a rewind is asked for, what is kept is below that.
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
	// Due reads events that are heads of their keys, retrying and due, of shards, at most
	// limit, in the order of their [DuePoint] and behind after (the zero value begins), and
	// how long from now the next one is due (0: none is). With hold, an event with a dead one before it in its key is no
	// head. An event that is to wait for more than longest was parked by a clock that was ahead, and is due.
	Due(ctx context.Context, shards []int, hold bool, after DuePoint, longest time.Duration, limit int) (due []Queued, next time.Duration, err error)
	// FetchParked reads the live (retrying or following) events of one key, at most limit, all in one snapshot. With hold,
	// which says that dead events hold their keys, the first dead one is among them.
	FetchParked(ctx context.Context, shard int, key string, hold bool, limit int) ([]Queued, error)
	// Retry records further failures of live parked events, followers included: retrying
	// again, or dead. An event of which one attempt less than Attempts is not what is recorded
	// is left alone: the call is repeated when its answer is lost, and an operator may
	// have redriven the event in between. The next live event of a key whose head died
	// becomes retrying and due, unless hold.
	Retry(ctx context.Context, relay string, lease Lease, failures []Failure, hold bool) (lost bool, err error)
	// Sent removes parked events that were delivered and keeps a receipt. The next
	// live event of their keys becomes retrying and due; with hold, unless a dead event is before it.
	Sent(ctx context.Context, relay string, lease Lease, seqs []int64, hold bool) (lost bool, err error)

	// Listen blocks until ctx ends and calls woken for each wake-up sent by
	// [RelayStore.Notify], from any process, with what that was told; woken does not block. It returns
	// [ErrNoSignal] at once if the store has no such signal, and any other error
	// when the connection is gone; the caller listens again then.
	Listen(ctx context.Context, woken func(text string)) error
	// Notify wakes the relays that listen, in any process. text says who has committed, and in which
	// shards, in at most 255 bytes; relays read it, the store does not. It is called after commits, never
	// within a transaction of the user's.
	Notify(ctx context.Context, text string) error
}

// Filter selects parked events. Zero fields select all.
type Filter struct {
	IDs    []uuid.UUID
	States []State
	Topic  string
	Key    string
	// Error is a part of the last error, as it is written.
	Error string
	// Since and Until bound when they were parked: Since ≤ time < Until.
	Since, Until time.Time
	// After continues a listing behind the event with this Seq.
	After int64
	// Limit is at most how many events are returned or changed. Defaults to 100.
	Limit int
	// Force redrives events also after the time until which they may be sent again.
	Force bool
}

// DeferredFilter selects deferred events. Zero fields select all.
type DeferredFilter struct {
	IDs   []uuid.UUID
	Topic string
	Key   string
	// From and To bound when they are due: From ≤ time < To.
	From, To time.Time
	// After continues a listing behind the event with this Seq.
	After int64
	// Limit is at most how many events are returned. Defaults to 100.
	Limit int
}

// Deferred is a deferred event as an operator sees it. Its stamp is the time at which it is due.
type Deferred struct {
	Record
	Seq   int64
	DueAt time.Time
}

// Parked is a parked event as an operator sees it.
type Parked struct {
	Record
	Seq           int64
	State         State
	Attempts      int
	ParkedAt      time.Time
	NextAttemptAt time.Time // zero unless retrying
	LastError     string
	Reason        string // why it was discarded or cancelled
}

// Delivery is one copy of an event that the transport has confirmed.
type Delivery struct {
	At    time.Time
	Relay string
}

// Attempt is one failed attempt to send an event, or what an operator did to it. Stores can
// keep confirmed ones as well.
type Attempt struct {
	At      time.Time
	Outcome string // the outcome's name, or "redriven", "discarded", "cancelled" or "replayed"
	Error   string // or an operator's reason
	Relay   string
}

// Stats is the state of an outbox at one moment.
type Stats struct {
	// Pending is how many events wait in the queue. A store stops counting at
	// a number of its own; PendingCapped tells that it did. It may stop counting
	// parked events there as well.
	Pending       int64
	PendingCapped bool
	// OldestPending is the age of the oldest event that is not delivered, parked
	// ones that are retrying or following included, replayed ones in the queue not. A deferred event has no age until it is due.
	// 0 if there is none.
	OldestPending time.Duration
	// Deferred is how many events wait for their time. A store may stop counting there as well.
	Deferred  int64
	Retrying  int64
	Following int64
	Dead      int64
	// Owned is how many shards have an owner whose lease runs; Relays how many relays are visible.
	Owned  int
	Relays int
}

// OperatorStore is what operators need of a store. An operator owns no shard:
// every change locks the shard rows, whoever owns them, and asks for a rewind.
type OperatorStore interface {
	// ListParked reads parked events by ascending Seq.
	ListParked(ctx context.Context, f Filter) ([]Parked, error)
	// ListDeferred reads deferred events by ascending Seq.
	ListDeferred(ctx context.Context, f DeferredFilter) ([]Deferred, error)
	// Attempts reads the attempts of an event, oldest first, at most limit.
	Attempts(ctx context.Context, id uuid.UUID, limit int) ([]Attempt, error)
	// Deliveries reads when an event was delivered, oldest first, as far as receipts are retained.
	Deliveries(ctx context.Context, id uuid.UUID) ([]Delivery, error)
	// Redrive makes dead events that f selects retrying and due, with no attempts
	// counted, keeps reason in their attempts, and returns their dispatch IDs. Unless f.Force, events whose ResendUntil is
	// over stay dead, do not count towards f.Limit, and are counted in refused.
	Redrive(ctx context.Context, f Filter, reason string) (ids []uuid.UUID, refused int, err error)
	// Discard gives up parked events that f selects, keeps reason with them and in their attempts, and returns
	// their dispatch IDs. The next live event of their keys becomes retrying and due.
	Discard(ctx context.Context, f Filter, reason string) ([]uuid.UUID, error)
	// ListRoutes reads what the relays that are visible have reported with [RelayStore.ReportRoutes], by topic and relay.
	ListRoutes(ctx context.Context) ([]StalledRoute, error)
	// Stats reads the state of the outbox. It stays cheap on large tables.
	Stats(ctx context.Context) (Stats, error)

	// Place returns a place in the log before which no event has a stamp of at or later; all
	// events if at is zero. Stamps ascend with places but for those of transactions at the same time, and of events that were deferred.
	Place(ctx context.Context, at time.Time) (after int64, err error)
	// Retained looks at the next scan events of the log behind after, and returns those of them that s
	// selects and that are neither deferred, queued nor parked, at most limit. It locks nothing.
	Retained(ctx context.Context, s Selection, after int64, scan, limit int) (Page, error)
	// Requeue queues events of the log again, under rounds as [Queued] wants them,
	// with a note in their attempts, and asks the owners of their shards for a rewind. Events that are deferred, queued or parked, or not
	// in the log any more, are passed over. It returns what was queued.
	Requeue(ctx context.Context, seqs []int64) ([]Requeued, error)
	// StillQueued tells how many of these queue rows are still there.
	StillQueued(ctx context.Context, rows []Requeued) (int, error)
}
