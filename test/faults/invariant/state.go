package invariant

import (
	"time"

	"github.com/google/uuid"
)

// State is the observed state of a system that has come to rest.
type State struct {
	// Orders are the business rows, in any order.
	Orders []Order
	// Events are the rows of the outbox's log, by ascending place.
	Events []Event
	// Pending are the events in the queue, Live the parked events that will be sent again, and Dead
	// the events that wait for an operator.
	Pending, Live, Dead []uuid.UUID
	// Consumers are the services.
	Consumers []Consumer
	// Wire are the messages given to the broker, copies included, in the broker's order. Nil if
	// they were not recorded.
	Wire []Arrival
	// Queued is the number of messages at the broker for the consumers, delivered or not.
	Queued int
	// DrainedIn is the time from the last fault until all was at rest, and DrainLimit its bound.
	// Drained tells whether all came to rest.
	Drained               bool
	DrainedIn, DrainLimit time.Duration

	// Processes are the reports of services at their orderly end.
	Processes []Process
	// Texts are logs and stored errors, by their location.
	Texts map[string]string
	// Secrets must be in none of Texts.
	Secrets []string

	// Unordered means that consumers keep no order, so that the order of effects is not checked.
	Unordered bool
	// Forgets means that consumers have forgotten claims, so that claims are not expected.
	Forgets bool
	// Reordered means that the wire was out of order for a documented reason, such as a dead
	// letter.
	Reordered bool

	// Did is the work that was done, and Needed the required minimum.
	Did, Needed Work
}

// Order is a business row.
type Order struct {
	Dispatch uuid.UUID // required of its event
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

// Arrival is a message given to the broker.
type Arrival struct {
	Dispatch uuid.UUID
	Key      string
}

// Effect is a consumer's effect of one message.
type Effect struct {
	Dispatch uuid.UUID
	Key      string
	N        int64
	Amount   int64
}

// Total is a consumer's total for a key.
type Total struct{ Count, Sum, Least, Most int64 }

// Consumer is the work of one service.
type Consumer struct {
	Name string
	// Effects are in the order in which they happened.
	Effects []Effect
	Totals  map[string]Total
	// Claims are the dispatch IDs in the inbox.
	Claims []uuid.UUID
	// Live are the parked messages that will be handled again; Aside are the messages that wait for
	// an operator.
	Live, Aside []uuid.UUID
	// Receipts are the IDs of the events that its handler wrote, and Receipt computes the required
	// ID.
	Receipts []uuid.UUID
	Receipt  func(dispatch uuid.UUID) uuid.UUID
}

// Process is the report of a service at its end.
type Process struct {
	Name                 string
	Leaked               string
	PeakHeap, MostHeap   uint64
	PeakInFlight, Window int
	PeakInMemory         int
	MostInMemory         int
}

// Work is the amount of work in a run.
type Work struct {
	Orders int // placed
	Faults int // certainly injected
	Copies int // on the wire, or suppressed by a consumer
}

// Violation is a broken invariant.
type Violation struct {
	// Check is the name of the check that found the violation.
	Check string
	// What describes the violation.
	What string
}

// String returns the check's name and the description.
func (v Violation) String() string { return v.Check + ": " + v.What }
