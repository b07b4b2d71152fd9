package outbox

import (
	"time"

	"github.com/boxpair/boxpair/transport"
)

// RoundChance is the number of random bits in the round of a replayed event. A database that has
// lost commits hands out tickets again. Without random bits, a late mark of the lost replay would
// remove the queue row of the next replay.
const RoundChance = 20

// Range asks for at most Limit queue rows of a shard with After < id ≤ Through. Through 0 means no
// upper bound. Rows with an id in Except are left out and not counted; Except is sorted.
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
	// Round distinguishes the queue row from an earlier row of the event, and from the row of
	// another event that had this Seq before the database lost commits. For a replayed event, Round
	// >> [RoundChance] is above all earlier tickets of the shard, and not above the ticket of the
	// rewind that the replay asks for. For other events Round is 0, or negative and random in a
	// database that may lose visible commits.
	Round int64
	// Missing tells that the queue row has no event in the log; only Record.Shard is set then. No
	// part of this library leaves such a row.
	Missing bool
	// Unreadable names the part of the event that cannot be decoded, such as headers that are not a
	// JSON object of strings, without the content. It is "" for a readable event. The relay makes
	// an unreadable event dead. An error of the call would stop all other events, too.
	Unreadable string
	// Attempts and State are set for parked events, DueAt for events that Due returns.
	Attempts int
	State    State
	DueAt    time.Time
}

// DuePoint is a place in the order of due parked events: by time, then by Seq.
type DuePoint struct {
	At  time.Time
	Seq int64
}

// Mark names an event that was confirmed, or is to be parked. Round is that of its queue row.
type Mark struct {
	Lease
	Seq   int64
	Round int64
}

// Undeferred tells what a call of [RelayStore.Undefer] has done.
type Undeferred struct {
	// Moved are the events that have a queue row now.
	Moved []Moved
	// Next is how long from now the next deferred event is due, or 0 without any.
	Next time.Duration
	// Lost are the shards with due events that relay no longer owns.
	Lost []int
}

// Moved names a formerly deferred event that is now queued.
type Moved struct {
	Shard int
	Seq   int64
}

// Failure is the result of a failed attempt to send an event.
type Failure struct {
	Seq   int64
	Round int64 // of the queue row; not used for events that are parked already
	// Attempts is the number of counted attempts, including this attempt.
	Attempts int
	// RetryIn is the backoff, from now on. Unused if Dead.
	RetryIn time.Duration
	// Dead makes the event dead.
	Dead bool
	// Outcome and Error describe the failure. Error is at most 1 KiB, valid UTF-8.
	Outcome transport.Outcome
	Error   string
}

// BlockedKey is a key with parked events: its events in the queue have to wait.
type BlockedKey struct {
	Shard int
	Key   string
}
