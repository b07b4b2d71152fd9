package outbox

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// StalledRoute is a topic that a relay cannot send to at the moment. The relay only probes the
// route.
type StalledRoute struct {
	// Relay is the name of the relay. [RelayStore.ReportRelay] ignores the field.
	Relay string
	// Topic is the topic, and Route the name of its route, as of [transport.Sender].
	Topic, Route string
	// State tells whether the transport refuses messages, does not answer, or is paused.
	State RouteState
	// For is how long ago the first failure after the last success was.
	For time.Duration
	// LastError is the last failure, in at most 1 KiB of valid UTF-8.
	LastError string
}

// RouteState is the state of a route.
type RouteState string

const (
	// RouteWorking routes take messages, as far as the relay knows. No [StalledRoute] has this state.
	RouteWorking RouteState = "working"
	// RouteRefusing routes refuse or return messages.
	RouteRefusing RouteState = "refusing"
	// RoutePaused routes are paused by an operator; LastError says until when, by whom and why.
	RoutePaused RouteState = "paused"
	// RouteUnavailable routes do not answer, or the outcome of their messages is unknown.
	RouteUnavailable RouteState = "unavailable"
)

// State is the state of a parked event.
type State string

const (
	// Retrying events have failed and are sent again after a backoff.
	Retrying State = "retrying"
	// Following events wait for an earlier event of their key.
	Following State = "following"
	// Dead events have used up their attempts and wait for an operator.
	Dead State = "dead"
	// Discarded events were given up by an operator, and are kept with the reason. Redrive undoes the
	// discard.
	Discarded State = "discarded"
	// Cancelled events were deferred and given up before they were due. They are kept like
	// discarded events.
	Cancelled State = "cancelled"
)

// Filter selects parked events. Zero fields select all.
type Filter struct {
	IDs    []uuid.UUID
	States []State
	Topic  string
	Key    string
	// Error is a part of the last error, compared case-sensitively and without wildcards.
	Error string
	// Since and Until bound the time of parking: Since ≤ time < Until.
	Since, Until time.Time
	// After continues a listing behind the event with this Seq.
	After int64
	// Limit bounds the number of returned or changed events. Defaults to 100.
	Limit int
	// Force redrives dead and discarded events even after their ResendUntil.
	Force bool
}

// DeferredFilter selects deferred events. Zero fields select all.
type DeferredFilter struct {
	IDs   []uuid.UUID
	Topic string
	Key   string
	// From and To bound the due time: From ≤ time < To.
	From, To time.Time
	// After continues a listing behind the event with this Seq.
	After int64
	// Limit bounds the number of returned events. Defaults to 100.
	Limit int
}

// Deferred is a deferred event as an operator sees it. Its stamp is its due time.
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

// Attempt is one failed attempt to send an event, or one change by an operator. Stores may keep
// successful attempts as well.
type Attempt struct {
	At      time.Time
	Outcome string // the outcome's name, or "redriven", "discarded", "cancelled" or "replayed"
	Error   string // or an operator's reason
	Relay   string
}

// Stats is the state of an outbox at one moment.
type Stats struct {
	// Pending is the number of events in the queue. A store may stop counting at its own limit;
	// PendingCapped is then true. The limit may apply to the counts of parked events, too.
	Pending       int64
	PendingCapped bool
	// OldestPending is the age of the oldest undelivered event, retrying and following ones
	// included. Replayed events and deferred events that are not due do not count. 0 means that no
	// event is undelivered.
	OldestPending time.Duration
	// Deferred is the number of events that are not due yet, up to a limit of the store.
	Deferred  int64
	Retrying  int64
	Following int64
	Dead      int64
	// Owned is the number of shards with a running lease, Relays the number of visible relays.
	Owned  int
	Relays int
}

// OperatorStore lists and changes events for operators. An operator owns no shard: every change
// locks the shard rows, regardless of their owners, and asks for a rewind.
type OperatorStore interface {
	// ListParked reads parked events by ascending Seq.
	ListParked(ctx context.Context, f Filter) ([]Parked, error)
	// ListDeferred reads deferred events by ascending Seq.
	ListDeferred(ctx context.Context, f DeferredFilter) ([]Deferred, error)
	// Attempts reads the attempts of an event, oldest first, at most limit.
	Attempts(ctx context.Context, id uuid.UUID, limit int) ([]Attempt, error)
	// Deliveries reads when an event was delivered, oldest first, as far as receipts are retained.
	Deliveries(ctx context.Context, id uuid.UUID) ([]Delivery, error)
	// Redrive makes dead events that f selects retrying and due, with no attempts counted, keeps
	// reason in their attempts, and returns their dispatch IDs. Redrive takes retrying events too if
	// f has IDs or f.States names them, and discarded events if f.States names them; the reason of
	// their discard stays in their attempts only. A concurrent [JanitorStore.RemoveDiscarded] either
	// removes a discarded event as a whole, or leaves it as a whole. Without f.Force, dead and
	// discarded events after their ResendUntil do not change, do not count towards f.Limit, and are
	// counted in refused by the call that redrives fewer than f.Limit events: a count with each of
	// many calls would read them all again and again. If a retrying event is being sent and fails, the failure changes nothing.
	Redrive(ctx context.Context, f Filter, reason string) (ids []uuid.UUID, refused int, err error)
	// Discard gives up parked events that f selects, keeps reason with them and in their attempts,
	// and returns their dispatch IDs. The next live event of their keys becomes retrying and due.
	Discard(ctx context.Context, f Filter, reason string) ([]uuid.UUID, error)
	// ListRoutes reads the stalled routes of visible relays ([RelayStore.ReportRelay]), by topic and
	// relay.
	ListRoutes(ctx context.Context) ([]StalledRoute, error)
	// ListRelays reads the visible relays with their latest reports ([RelayStore.ReportRelay]), by
	// name.
	ListRelays(ctx context.Context) ([]Relay, error)
	// Stats reads the state of the outbox. It stays cheap on large tables.
	Stats(ctx context.Context) (Stats, error)

	// Place returns a place in the log: every event with a stamp of at or later is behind the
	// place, and every event if at is zero. Stamps ascend with places, except between concurrent
	// transactions and for deferred events.
	Place(ctx context.Context, at time.Time) (after int64, err error)
	// Retained scans the next scan events of the log behind after. It returns at most limit events,
	// selected by s and neither deferred, queued nor parked. It locks nothing.
	Retained(ctx context.Context, s Selection, after int64, scan, limit int) (Page, error)
	// Requeue queues events of the log again, with new rounds (see [Queued]) and a note with
	// reason, which may be empty, in their attempts, asks the owners of their shards for a rewind, and returns the queued events. Events
	// that are deferred, queued, parked, or no longer in the log are skipped.
	Requeue(ctx context.Context, seqs []int64, reason string) ([]Requeued, error)
	// StillQueued counts the given queue rows that still exist.
	StillQueued(ctx context.Context, rows []Requeued) (int, error)
}
