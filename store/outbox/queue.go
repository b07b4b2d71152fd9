package outbox

import (
	"time"

	"github.com/boxpair/boxpair/transport"
)

// RoundChance is how many bits of the round of an event that was queued again are chance: a
// database that has lost commits gives tickets out again, and the mark of a replay that is lost
// would remove the row of the next one.
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
	// Round tells a queue row from an earlier one of the same event, and from that of another event
	// that had this Seq in a database that has lost it since. For an event that was queued again,
	// Round >> [RoundChance] is above all tickets that its shard had before, and not above that of
	// the rewind which is asked for with it. It is 0 or below for others: by chance, where a
	// database may lose commits that were seen.
	Round int64
	// Missing tells that the queue row has no event in the log, which nothing
	// in this library brings about. Of Record, only Shard is set then.
	Missing bool
	// Unreadable says what of the event cannot be read, as headers that are no JSON object of
	// strings, and never shows it; "" if all can. It is not an error of the call, which would keep
	// all other events from being sent: a relay buries the event.
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
