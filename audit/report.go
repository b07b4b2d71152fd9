package audit

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

// Kind is a kind of finding.
type Kind string

// The kinds of findings.
const (
	NotApplied    Kind = "not_applied"    // an event left the outbox, and an expecting consumer lacks it
	NotCommitted  Kind = "not_committed"  // a message was applied whose event no outbox has committed
	DigestDiffers Kind = "digest_differs" // an event was committed and applied with different content
	Pending       Kind = "pending"        // an event is in the queue for longer than the grace time
	Parked        Kind = "parked"         // an event or message is retried, or follows a retried one
	Dead          Kind = "dead"           // the attempts of an event or message are used up
	TooOld        Kind = "too_old"        // a message was set aside: the consumer has forgotten its time
	Altered       Kind = "altered"        // a message was set aside: its dispatch ID came with other content
	Discarded     Kind = "discarded"      // an operator gave an event or message up
	LogMissing    Kind = "log_missing"    // an event is queued or parked, and missing in the log
)

// Kinds returns all kinds of findings, in the order of a report.
func Kinds() []Kind {
	return []Kind{NotApplied, NotCommitted, DigestDiffers, Pending, Parked, Dead, TooOld, Altered, Discarded, LogMissing}
}

// kindOfState returns the kind of a parked or queued row by its state. Unknown states, such as
// those of a later version, are no findings.
func kindOfState(state string) (Kind, bool) {
	switch state {
	case "retrying", "following":
		return Parked, true
	case Queued, "dead", "too_old", "altered", "discarded":
		return Kind(state), true
	}
	return "", false
}

// Finding is one discrepancy. It holds no payload, key or header.
type Finding struct {
	Kind     Kind   `json:"kind"`
	Database string `json:"database"` // name of the outbox or inbox that shows the discrepancy
	Consumer string `json:"consumer,omitempty"`
	// DispatchID is zero if the event is missing in the log.
	DispatchID uuid.UUID `json:"dispatch_id"`
	// Seq is the number of the event or of the parked message in its database.
	Seq      int64     `json:"seq,omitempty"`
	Topic    string    `json:"topic,omitempty"`
	State    string    `json:"state,omitempty"`
	Attempts int       `json:"attempts,omitempty"`
	Why      string    `json:"why,omitempty"`
	Created  time.Time `json:"created,omitzero"` // creation time of the event
	// Since is when the event or message entered its state, as far as is known.
	Since time.Time `json:"since,omitzero"`
}

// Report is the result of an audit.
type Report struct {
	// Clean tells whether all findings are of accepted kinds.
	Clean bool `json:"clean"`
	// Findings counts the findings of each kind, zeros included.
	Findings map[Kind]int `json:"findings"`
	// Accepted lists the kinds that leave a report clean.
	Accepted []Kind `json:"accepted,omitempty"`
	// Examples are the first findings of each kind.
	Examples []Finding `json:"examples"`

	// From and Until bound the creation of the compared events; From is zero without a bound. Until
	// is earlier than [Config].Until if events before that time are still in flight.
	From  time.Time `json:"from,omitzero"`
	Until time.Time `json:"until"`

	Outboxes  []OutboxReport   `json:"outboxes"`
	Consumers []ConsumerReport `json:"consumers"`
	// Unchecked names the consumers of the given inboxes that have no expectation.
	Unchecked []string `json:"unchecked_consumers,omitempty"`

	// InFlight counts would-be findings that are younger than the grace time, or were delivered
	// within the grace time.
	InFlight int `json:"in_flight"`
	// Waiting counts waiting events that are no findings, by state: deferred events.
	Waiting map[string]int `json:"waiting,omitempty"`
	Outside Outside        `json:"outside"`
}

// Outside counts rows that could not be compared, since their partners are not retained.
type Outside struct {
	// Forgotten counts events of a time that the consumer has forgotten.
	Forgotten int `json:"forgotten"`
	// BeforeConsumer counts events that are older than the registration of the consumer.
	BeforeConsumer int `json:"before_consumer"`
	// NotRetained counts applied messages of a time from which an outbox has removed events.
	NotRetained int `json:"not_retained"`
	// Removed counts events that were removed while the audit ran.
	Removed int `json:"removed"`
}

// OutboxReport is the part of a report about one outbox.
type OutboxReport struct {
	Name   string `json:"name"`
	Events int    `json:"events"` // number of events in the range of time
	// NobodyExpects counts the events whose topic matches no expectation.
	NobodyExpects int `json:"nobody_expects"`
	// RetainedSince is the time since which no event was removed; zero if no event ever was.
	RetainedSince time.Time `json:"retained_since,omitzero"`
}

// ConsumerReport is the part of a report about one consumer.
type ConsumerReport struct {
	Name     string   `json:"name"`
	Database string   `json:"database"`
	Topics   []string `json:"topics"`
	Expected int      `json:"expected"` // events whose topic the consumer expects
	Claims   int      `json:"claims"`   // dispatch IDs applied or parked, in the range of time
	// ForgottenUntil is the time up to which the consumer has forgotten; zero if nothing is
	// forgotten.
	ForgottenUntil time.Time `json:"forgotten_until,omitzero"`
}

// tally counts a finding, and keeps the first of each kind as examples.
func (r *run) tally(f Finding) {
	n := r.report.Findings[f.Kind]
	r.report.Findings[f.Kind] = n + 1
	if n < r.cfg.Examples {
		f.Why = shorten(f.Why)
		r.report.Examples = append(r.report.Examples, f)
	}
}

// finish sorts the examples and sets Clean.
func (r *run) finish() {
	order := make(map[Kind]int)
	for i, kind := range Kinds() {
		order[kind] = i
	}
	slices.SortStableFunc(r.report.Examples, func(a, b Finding) int { return order[a.Kind] - order[b.Kind] })
	r.report.Clean = true
	for kind, n := range r.report.Findings {
		if n > 0 && !slices.Contains(r.cfg.Accept, kind) {
			r.report.Clean = false
		}
	}
}

// maxWhy is how many bytes of an error or a reason a report keeps.
const maxWhy = 300

func shorten(text string) string {
	if len(text) <= maxWhy {
		return text
	}
	cut := maxWhy
	for cut > 0 && text[cut]&0xC0 == 0x80 { // never cut within a character
		cut--
	}
	return text[:cut] + "…"
}
