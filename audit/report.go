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
	NotApplied    Kind = "not_applied"    // it left the outbox, and a consumer that should have it has not
	NotCommitted  Kind = "not_committed"  // applied, and committed by no outbox
	DigestDiffers Kind = "digest_differs" // committed and applied, with different content
	Pending       Kind = "pending"        // in the queue for longer than the grace time
	Parked        Kind = "parked"         // retrying, or following one that is
	Dead          Kind = "dead"           // its attempts are used up
	TooOld        Kind = "too_old"        // set aside: from a time that the consumer has forgotten
	Altered       Kind = "altered"        // set aside: its dispatch ID came with other content
	Discarded     Kind = "discarded"      // given up by an operator
	LogMissing    Kind = "log_missing"    // queued or parked, and missing in the log
)

// Kinds returns all kinds of findings, in the order of a report.
func Kinds() []Kind {
	return []Kind{NotApplied, NotCommitted, DigestDiffers, Pending, Parked, Dead, TooOld, Altered, Discarded, LogMissing}
}

// kindOfState returns what it is called that an event or a message is parked in a state. States
// that are not known, as one of a later version, are no findings.
func kindOfState(state string) (Kind, bool) {
	switch state {
	case "retrying", "following":
		return Parked, true
	case Queued, "dead", "too_old", "altered", "discarded":
		return Kind(state), true
	}
	return "", false
}

// Finding is one discrepancy. It has no payload, key or header.
type Finding struct {
	Kind     Kind   `json:"kind"`
	Database string `json:"database"` // where it was seen: the name of an outbox or an inbox
	Consumer string `json:"consumer,omitempty"`
	// DispatchID is zero if an event is missing in the log.
	DispatchID uuid.UUID `json:"dispatch_id"`
	// Seq is the number of the event, or of the parked message, in its database.
	Seq      int64     `json:"seq,omitempty"`
	Topic    string    `json:"topic,omitempty"`
	State    string    `json:"state,omitempty"`
	Attempts int       `json:"attempts,omitempty"`
	Why      string    `json:"why,omitempty"`
	Created  time.Time `json:"created,omitzero"` // when the event was
	// Since is when it came to be in its state, as far as is known.
	Since time.Time `json:"since,omitzero"`
}

// Report is what an audit has found.
type Report struct {
	// Clean tells that there are no findings but of accepted kinds.
	Clean bool `json:"clean"`
	// Findings counts the findings of every kind.
	Findings map[Kind]int `json:"findings"`
	// Accepted are the kinds that do not count against Clean.
	Accepted []Kind `json:"accepted,omitempty"`
	// Examples are the first findings of each kind.
	Examples []Finding `json:"examples"`

	// From and Until bound the creation of the events that were checked; From is zero if there was
	// no bound. Until is earlier than it was asked for where events are still in flight.
	From  time.Time `json:"from,omitzero"`
	Until time.Time `json:"until"`

	Outboxes  []OutboxReport   `json:"outboxes"`
	Consumers []ConsumerReport `json:"consumers"`
	// Unchecked are the consumers of the given inboxes for which there is no expectation.
	Unchecked []string `json:"unchecked_consumers,omitempty"`

	// InFlight counts what was younger than the grace time, or delivered within it, and
	// would have been a finding otherwise.
	InFlight int `json:"in_flight"`
	// Waiting counts what waits and is no finding, by state: events that are deferred.
	Waiting map[string]int `json:"waiting,omitempty"`
	Outside Outside        `json:"outside"`
}

// Outside counts what is outside what is still retained, and could not be compared.
type Outside struct {
	// Forgotten: the consumer has forgotten the time of the event.
	Forgotten int `json:"forgotten"`
	// BeforeConsumer: the event is older than the consumer.
	BeforeConsumer int `json:"before_consumer"`
	// NotRetained: applied, and from a time of which an outbox has removed events.
	NotRetained int `json:"not_retained"`
	// Removed: it was there, and was removed while the audit ran.
	Removed int `json:"removed"`
}

// OutboxReport says what was read of an outbox.
type OutboxReport struct {
	Name   string `json:"name"`
	Events int    `json:"events"` // in the range of time
	// NobodyExpects counts those of Events whose topic no expectation has.
	NobodyExpects int `json:"nobody_expects"`
	// RetainedSince is the time since which no event was removed; zero if none ever was.
	RetainedSince time.Time `json:"retained_since,omitzero"`
}

// ConsumerReport says what was read of a consumer.
type ConsumerReport struct {
	Name     string   `json:"name"`
	Database string   `json:"database"`
	Topics   []string `json:"topics"`
	Expected int      `json:"expected"` // events that it should have
	Claims   int      `json:"claims"`   // dispatch IDs that it has applied or keeps parked, in the range of time
	// ForgottenUntil is the time up to which it has forgotten; zero if it has forgotten nothing.
	ForgottenUntil time.Time `json:"forgotten_until,omitzero"`
}

// tally counts a finding and keeps it if it is one of the first of its kind.
func (r *run) tally(f Finding) {
	n := r.report.Findings[f.Kind]
	r.report.Findings[f.Kind] = n + 1
	if n < r.cfg.Examples {
		f.Why = shorten(f.Why)
		r.report.Examples = append(r.report.Examples, f)
	}
}

// finish sorts the examples and draws the conclusion.
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

// maxWhy is how many bytes of an error or a reason are kept.
const maxWhy = 300

func shorten(text string) string {
	if len(text) <= maxWhy {
		return text
	}
	cut := maxWhy
	for cut > 0 && text[cut]&0xC0 == 0x80 { // not within a character
		cut--
	}
	return text[:cut] + "…"
}
