package fault

import (
	"errors"
	"slices"
)

// Point is a place between two steps.
type Point string

// The producer's points.
const (
	BeforeBegin  Point = "before-begin"  // before BEGIN
	BeforeEvent  Point = "before-event"  // after the business write, before the event's
	BeforeCommit Point = "before-commit" // after the event's write, before COMMIT
	Committed    Point = "committed"     // committed, but unknown to the producer; an error makes the outcome unknown
	BeforeWakeup Point = "before-wakeup" // committed, relays not told
)

// The relay's points.
const (
	BeforeLease   Point = "before-lease"   // before a lease is requested
	Leased        Point = "leased"         // leased, nothing sent; an error loses the answer
	BeforePublish Point = "before-publish" // before one message of a batch is published
	Published     Point = "published"      // one message is published, not confirmed
	OutcomeKnown  Point = "outcome-known"  // the outcome of one message is known, not yet recorded
	BeforeMark    Point = "before-mark"    // confirmed, before the mark
	MarkSent      Point = "mark-sent"      // the mark is sent, its answer not read
	Marked        Point = "marked"         // the mark is committed; an error loses the answer
	AfterMark     Point = "after-mark"     // after the mark
	BeforePark    Point = "before-park"    // before a statement that parks, or changes parked rows
	Parked        Point = "parked"         // the parking is committed; an error loses the answer
)

// The points of the RabbitMQ transport.
const (
	BrokerGiven     Point = "broker-given"     // a message is written to the broker
	BrokerConfirmed Point = "broker-confirmed" // the confirm of a message has arrived; an error loses it
	BrokerReturned  Point = "broker-returned"  // the broker has returned a message
	BrokerBlocked   Point = "broker-blocked"   // the broker has blocked the connection
	BrokerDelivered Point = "broker-delivered" // a message was delivered and handed out, not acknowledged
)

// The consumer's points.
const (
	Received            Point = "received"              // a message has arrived
	IDRead              Point = "id-read"               // its dispatch ID is read
	WindowAsked         Point = "window-asked"          // the window does not know the ID
	Claimed             Point = "claimed"               // the dispatch ID is claimed
	BeforeHandler       Point = "before-handler"        // its handler is about to be called, with its writer
	BeforeClaimCommit   Point = "before-claim-commit"   // the effect is written, before COMMIT
	ClaimCommitted      Point = "claim-committed"       // committed; an error makes the outcome unknown
	BeforeWindow        Point = "before-window"         // committed, the window not yet filled
	WindowFilled        Point = "window-filled"         // the window is filled, the message not acknowledged
	BeforeAck           Point = "before-ack"            // before the acknowledgement is written; an error loses it
	BeforeMessageParked Point = "before-message-parked" // before a message is parked
	MessageParked       Point = "message-parked"        // the message is parked; an error loses the answer
)

// The points of an effect outside the database.
const (
	BeforeEffect       Point = "before-effect"        // before the ledger leases effects
	EffectTaken        Point = "effect-taken"         // an effect is leased, the other side not called
	EffectAnswered     Point = "effect-answered"      // the other side has answered; an error loses the answer
	BeforeEffectCommit Point = "before-effect-commit" // the result and its events are written, before COMMIT
	EffectCommitted    Point = "effect-committed"     // committed; an error makes the outcome unknown
)

// The janitor's points.
const (
	BeforeDelete Point = "before-delete" // before a deletion
	WithinDelete Point = "within-delete" // between two steps of a deletion
)

// The points of each part, in the order of the chain.
var (
	producer = []Point{BeforeBegin, BeforeEvent, BeforeCommit, Committed, BeforeWakeup}
	relay    = []Point{
		BeforeLease, Leased, BeforePublish, Published, OutcomeKnown, BeforeMark, MarkSent, Marked, AfterMark, BeforePark, Parked,
	}
	broker   = []Point{BrokerGiven, BrokerConfirmed, BrokerReturned, BrokerBlocked, BrokerDelivered}
	consumer = []Point{
		Received, IDRead, WindowAsked, Claimed, BeforeHandler, BeforeClaimCommit, ClaimCommitted, BeforeWindow, WindowFilled, BeforeAck,
		BeforeMessageParked, MessageParked,
	}
	effects = []Point{BeforeEffect, EffectTaken, EffectAnswered, BeforeEffectCommit, EffectCommitted}
	janitor = []Point{BeforeDelete, WithinDelete}
)

// Points returns all points, in the order of the chain.
func Points() []Point { return slices.Concat(producer, relay, broker, consumer, effects, janitor) }

// OfProducer tells whether p is a point of the producer.
func (p Point) OfProducer() bool { return slices.Contains(producer, p) }

// OfConsumer tells whether p is a point of the consumer, without the points of effects outside the
// database.
func (p Point) OfConsumer() bool { return slices.Contains(consumer, p) }

// Variable is the environment variable with the plan of faults.
const Variable = "BOXPAIR_FAULT"

// ErrInjected is wrapped by the errors that Hit returns on request.
var ErrInjected = errors.New("injected fault")
