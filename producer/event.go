package producer

import (
	"time"

	"github.com/google/uuid"
)

// Event is an event for a [Writer].
//
// The identity of an event, which determines its dispatch ID, is one of:
//   - Source and Version, for an aggregate or a process
//   - Source and IdempotencyKey, for a request
//   - no field, in a handler's writer: the dispatch being handled is the identity
//   - Random, for an event that is never written again
type Event struct {
	// Topic is where consumers find the event. Required; at most 255 bytes.
	Topic string
	// Key groups events that keep their order; at most 255 bytes. Events without a
	// key have no order.
	Key string
	// Type names the kind of event, for consumers; at most 255 bytes.
	Type string

	// Source names the aggregate, process or request that emits the event; at most 255 bytes.
	Source string
	// Version is the version of Source to which the event belongs, at least 1: each change of an
	// aggregate makes a new version. The writer counts the events of one version, from 0, in the
	// order of writing.
	Version int64
	// IdempotencyKey identifies the event by a request instead of a version; at most 255 bytes.
	IdempotencyKey string
	// Random gives the event a random dispatch ID. Writing the event again makes a second event:
	// neither outbox nor inbox can recognize the copy.
	Random bool

	// SchemaVersion is the version of the payload's schema, at most 2³¹ − 1. 0 means no version.
	SchemaVersion int
	// ContentType is the media type of Payload; at most 255 bytes.
	ContentType string
	// Payload is the event's content; at most Config.MaxPayload bytes. Payload is not copied before
	// it is written.
	Payload []byte
	// Headers travel with the event under their own names. At most 1024; names at most 255
	// bytes; names and values together at most Config.MaxHeaders bytes.
	Headers map[string]string

	// OccurredAt is when the event happened, in the years 1 to 9999. Defaults to the time of
	// writing.
	OccurredAt time.Time
	// CorrelationID groups the events of one conversation; at most 255 bytes. In a handler, the
	// default is the correlation ID of the message being handled, or else its dispatch ID.
	CorrelationID string
	// DeliverAt defers the event: the event is not sent before DeliverAt, by the database's clock,
	// and can be cancelled or rescheduled until then ([Writer.Cancel], [Writer.Reschedule]). A
	// deferred event takes its place in its key when the event is due: later events do not wait. In
	// the years 1 to 9999. DeliverAt is not part of the content: writing the event again with a
	// different time changes nothing. Defaults to at once, as does a past time.
	DeliverAt time.Time
	// TraceParent and TraceState are the W3C trace context of the writer; at most 255 and
	// 512 bytes.
	TraceParent string
	TraceState  string

	// single means that the identity belongs to one event, which is not counted.
	single bool
}

// Written is the result of writing one event.
type Written struct {
	// ID is the event's dispatch ID.
	ID uuid.UUID
	// Known means that the outbox already had the event, with equal content, and was not changed.
	Known bool
}
