package invariant

import (
	"time"

	"github.com/google/uuid"
)

// State is everything that was found when a system had come to rest.
type State struct {
	// Orders are the business rows, in any order.
	Orders []Order
	// Events are the rows of the outbox's log, by ascending place.
	Events []Event
	// Pending are the events in the queue, Live those that are parked and will be sent
	// again, and Dead those that an operator has to see to.
	Pending, Live, Dead []uuid.UUID
	// Consumers are the services.
	Consumers []Consumer
	// Wire is what the broker was given, copies included, in its order. Nil if nobody
	// recorded it.
	Wire []Arrival
	// Queued is how many messages the broker still has for the consumers, handed out or not.
	Queued int
	// DrainedIn is how long it took until all was at rest after the last fault, and DrainLimit how
	// long it may take. Drained tells whether it was.
	Drained               bool
	DrainedIn, DrainLimit time.Duration

	// Processes are the reports of the services that ended in good order.
	Processes []Process
	// Texts are what was logged and what errors were stored, by where they stand.
	Texts map[string]string
	// Secrets must be in none of Texts.
	Secrets []string

	// Unordered tells that consumers keep no order, so that none is expected of their
	// effects.
	Unordered bool
	// Forgets tells that consumers have forgotten claims, so that none is expected.
	Forgets bool
	// Reordered tells that the wire was not in order for a reason that the documents name, as past
	// a dead letter.
	Reordered bool

	// Did is what happened, and Needed the least that must have.
	Did, Needed Work
}

// Order is a business row.
type Order struct {
	Dispatch uuid.UUID // that its event must have
	Key      string
	N        int64 // its place among the orders of its key
	Amount   int64
}

// Event is a row of the outbox's log.
type Event struct {
	Dispatch uuid.UUID
	Key      string
	N        int64
	Amount   int64
}

// Arrival is a message that the broker was given.
type Arrival struct {
	Dispatch uuid.UUID
	Key      string
}

// Effect is what a consumer did for one message.
type Effect struct {
	Dispatch uuid.UUID
	Key      string
	N        int64
	Amount   int64
}

// Total is what a consumer has summed up for a key.
type Total struct{ Count, Sum, Least, Most int64 }

// Consumer is what one service has done.
type Consumer struct {
	Name string
	// Effects are in the order in which they happened.
	Effects []Effect
	Totals  map[string]Total
	// Claims are the dispatch IDs in the inbox.
	Claims []uuid.UUID
	// Live are the parked messages that will be handled again; Aside those that an operator
	// has to see to.
	Live, Aside []uuid.UUID
	// Receipts are the events that its handler wrote, and Receipt computes which ID one must have.
	Receipts []uuid.UUID
	Receipt  func(dispatch uuid.UUID) uuid.UUID
}

// Process is what a service reported at its end.
type Process struct {
	Name                 string
	Leaked               string
	PeakHeap, MostHeap   uint64
	PeakInFlight, Window int
	PeakInMemory         int
	MostInMemory         int
}

// Work is what happened in a run.
type Work struct {
	Orders int // that were placed
	Faults int // that were injected for certain
	Copies int // on the wire, or suppressed by a consumer
}

// Violation is something that must not be.
type Violation struct {
	// Check is the name of the check that found it.
	Check string
	// What says what was found.
	What string
}

// String is the check's name and what it found.
func (v Violation) String() string { return v.Check + ": " + v.What }
