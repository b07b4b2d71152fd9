package transport

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
)

// The metadata names of the wire contract.
const (
	// ReservedPrefix begins every name that belongs to this contract.
	ReservedPrefix = "boxpair-"
	// LocalPrefix begins reserved names of metadata that is for the process alone.
	LocalPrefix = ReservedPrefix + "local-"

	MetaKey           = "boxpair-key"            // partition and ordering key
	MetaType          = "boxpair-type"           // name of the event's type
	MetaProducer      = "boxpair-producer"       // name of the emitting service
	MetaSource        = "boxpair-source"         // with version and index, the input of dispatch IDs
	MetaVersion       = "boxpair-version"        // decimal
	MetaIndex         = "boxpair-index"          // decimal
	MetaSchemaVersion = "boxpair-schema-version" // decimal, absent for 0
	MetaContentType   = "boxpair-content-type"   // media type of the payload
	MetaDigest        = "boxpair-digest"         // hex of the content digest
	MetaStamp         = "boxpair-stamp"          // RFC 3339 with nanoseconds, UTC
	MetaResendUntil   = "boxpair-resend-until"   // RFC 3339 with nanoseconds, UTC
	MetaOccurredAt    = "boxpair-occurred-at"    // as the stamp: when the event happened, if that is a second or more from the stamp

	// MetaEnvelope marks a message whose envelope (metadata in the body) the transport could not
	// open. [Parse] refuses the message.
	MetaEnvelope = "boxpair-envelope"

	// MetaSignature and MetaSigned are the names of a signed message; see package signature.
	MetaSignature = "boxpair-signature" // format; ID of the key; HMAC-SHA-256 in base64
	MetaSigned    = "boxpair-signed"    // names of the additional metadata that is signed

	// MetaCorrelationID is the name that Watermill's CorrelationID middleware uses.
	MetaCorrelationID = "correlation_id"
	// MetaTraceParent and MetaTraceState are the names of W3C Trace Context.
	MetaTraceParent = "traceparent"
	MetaTraceState  = "tracestate"
)

// ErrNotDispatchID is reported for a message whose UUID is no valid dispatch ID. Without one, a
// message cannot be deduplicated.
var ErrNotDispatchID = errors.New("message UUID is not a dispatch ID")

// Event is an event on the wire. The zero value of an optional field means that the sender gave no
// value.
type Event struct {
	ID      uuid.UUID
	Topic   string
	Key     string // events of one key keep their order; "" is no key
	Type    string
	Payload []byte

	Producer string
	Source   string
	Version  int64
	Index    int

	SchemaVersion int
	ContentType   string
	Headers       map[string]string // the user's

	Digest Digest    // of the content; see [ContentDigest]
	Stamp  time.Time // when the event was written, or came due; every copy has the same stamp
	// ResendUntil is the re-send horizon: after this time the producer sends the event again only
	// if an operator forces it. An inbox that must recognize every copy has to remember the event
	// for longer.
	ResendUntil time.Time

	CorrelationID string
	TraceParent   string
	TraceState    string
}

// Message returns e as a Watermill message. The payload is shared, not copied.
func (e *Event) Message() *message.Message {
	msg := message.NewMessage(e.ID.String(), e.Payload)
	maps.Copy(msg.Metadata, e.Headers)
	set := func(name, value string) {
		if value != "" {
			msg.Metadata[name] = value
		}
	}
	set(MetaKey, e.Key)
	set(MetaType, e.Type)
	set(MetaProducer, e.Producer)
	set(MetaSource, e.Source)
	if e.Source != "" {
		msg.Metadata[MetaVersion] = strconv.FormatInt(e.Version, 10)
		msg.Metadata[MetaIndex] = strconv.Itoa(e.Index)
	}
	if e.SchemaVersion != 0 {
		msg.Metadata[MetaSchemaVersion] = strconv.Itoa(e.SchemaVersion)
	}
	set(MetaContentType, e.ContentType)
	if !e.Digest.IsZero() {
		msg.Metadata[MetaDigest] = hex.EncodeToString(e.Digest[:])
	}
	if !e.Stamp.IsZero() {
		msg.Metadata[MetaStamp] = e.Stamp.UTC().Format(time.RFC3339Nano)
	}
	if !e.ResendUntil.IsZero() {
		msg.Metadata[MetaResendUntil] = e.ResendUntil.UTC().Format(time.RFC3339Nano)
	}
	set(MetaCorrelationID, e.CorrelationID)
	set(MetaTraceParent, e.TraceParent)
	set(MetaTraceState, e.TraceState)
	return msg
}

// SetOccurredAt says in msg when its event happened, if that is a second or more from the event's
// stamp, and known.
func SetOccurredAt(msg *message.Message, occurredAt, stamp time.Time) {
	if apart := stamp.Sub(occurredAt).Abs(); apart >= time.Second && occurredAt.Unix() > 0 {
		msg.Metadata[MetaOccurredAt] = occurredAt.UTC().Format(time.RFC3339Nano)
	}
}

// Parse reads the event in msg. It also reads messages of publishers that do not know this
// contract: fields without metadata stay zero. If the UUID is no dispatch ID, the error wraps
// [ErrNotDispatchID]; if other metadata cannot be read, the error names it. On an error the event
// holds the readable fields. The payload is shared, not copied.
func Parse(topic string, msg *message.Message) (Event, error) {
	e := Event{Topic: topic, Payload: msg.Payload}
	var errs []error
	id, err := uuid.Parse(msg.UUID)
	if err != nil || len(msg.UUID) != 36 || id == uuid.Nil {
		errs = append(errs, ErrNotDispatchID)
		id = uuid.Nil
	}
	e.ID = id
	for name, value := range msg.Metadata {
		if err := e.setMeta(name, value); err != nil {
			errs = append(errs, fmt.Errorf("metadata %s: %w", name, err))
		}
	}
	return e, errors.Join(errs...)
}

// setMeta sets the field for one metadata entry. Its errors show no value, since metadata may come
// from a stranger.
func (e *Event) setMeta(name, value string) (err error) {
	switch name {
	case MetaKey:
		e.Key = value
	case MetaType:
		e.Type = value
	case MetaProducer:
		e.Producer = value
	case MetaSource:
		e.Source = value
	case MetaVersion:
		e.Version, err = parseInt[int64](value)
	case MetaIndex:
		e.Index, err = parseInt[int](value)
	case MetaSchemaVersion:
		e.SchemaVersion, err = parseInt[int](value)
	case MetaContentType:
		e.ContentType = value
	case MetaDigest:
		err = e.Digest.UnmarshalText([]byte(value))
	case MetaStamp:
		e.Stamp, err = parseStamp(value)
	case MetaResendUntil:
		e.ResendUntil, err = parseStamp(value)
	case MetaCorrelationID:
		e.CorrelationID = value
	case MetaTraceParent:
		e.TraceParent = value
	case MetaTraceState:
		e.TraceState = value
	case MetaEnvelope:
		err = errors.New("the body is an envelope that could not be opened")
	default:
		if strings.HasPrefix(name, ReservedPrefix) {
			return nil // of a later version of this contract
		}
		if e.Headers == nil {
			e.Headers = make(map[string]string)
		}
		e.Headers[name] = value
	}
	return err
}

// parseInt returns zero with every error; strconv returns the nearest number if the value is out of
// range.
func parseInt[T int | int64](value string) (T, error) {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || int64(T(n)) != n {
		return 0, errors.New("not a decimal number in range")
	}
	return T(n), nil
}

// parseStamp returns the time in UTC. The year in UTC must have four digits, or the time could not
// be formatted again.
func parseStamp(value string) (time.Time, error) {
	if stamp, ok := parseUTC(value); ok {
		return stamp, nil
	}
	stamp, err := time.Parse(time.RFC3339Nano, value)
	stamp = stamp.UTC()
	if err != nil || stamp.Year() < 0 || stamp.Year() > 9999 {
		return time.Time{}, errors.New("not a time in RFC 3339")
	}
	return stamp, nil
}

// IsReserved tells whether name is reserved, and so refused as a user header.
func IsReserved(name string) bool {
	switch name {
	case MetaCorrelationID, MetaTraceParent, MetaTraceState:
		return true
	}
	return strings.HasPrefix(name, ReservedPrefix) || strings.HasPrefix(name, "_watermill_")
}
