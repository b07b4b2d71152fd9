package postgres

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/boxpair/boxpair/store/outbox"
)

// columns are records as the arrays of one statement.
type columns struct {
	id                                          []pgtype.UUID
	digest, payload                             [][]byte
	shard                                       []int16
	version                                     []int64
	index, schemaVersion, resend                []int32
	topic, key, kind, producer, source, headers []string
	contentType, correlation                    []string
	traceParent, traceState                     []string
	occurred                                    []pgtype.Timestamptz
	due                                         []pgtype.Timestamptz // nil without a deferred event
}

func newColumns(records []outbox.Record) (*columns, error) {
	n := len(records)
	c := &columns{
		id: make([]pgtype.UUID, n), digest: make([][]byte, n), payload: make([][]byte, n),
		shard: make([]int16, n), version: make([]int64, n), index: make([]int32, n), schemaVersion: make([]int32, n),
		resend:   make([]int32, n),
		occurred: make([]pgtype.Timestamptz, n),
	}
	texts := make([]string, 10*n) // one allocation for all columns of text
	for _, column := range []*[]string{&c.topic, &c.key, &c.kind, &c.producer, &c.source, &c.headers,
		&c.contentType, &c.correlation, &c.traceParent, &c.traceState} {
		*column, texts = slices.Clip(texts[:n]), texts[n:]
	}
	for i := range records {
		if err := c.set(i, &records[i]); err != nil {
			return nil, fmt.Errorf("record %d: %w", i, err)
		}
	}
	return c, nil
}

// share reduces a column with one value for all events to one element. It leaves alone the columns
// that differ in nearly every write.
func (c *columns) share() {
	for _, column := range []*[]string{&c.kind, &c.producer, &c.contentType, &c.headers, &c.correlation, &c.traceParent, &c.traceState} {
		*column = common(*column)
	}
	c.schemaVersion, c.occurred, c.resend = common(c.schemaVersion), common(c.occurred), common(c.resend)
}

// common returns the first value alone if all values are equal, or else all values.
func common[T comparable](values []T) []T {
	for i := range values {
		if values[i] != values[0] {
			return values
		}
	}
	return values[:1]
}

// single appends the values of a single record.
func (c *columns) single(args []any) []any {
	return append(args, c.id[0], c.digest[0], c.shard[0], c.topic[0], c.key[0], c.source[0], c.version[0], c.index[0],
		c.payload[0], c.kind[0], c.producer[0], c.schemaVersion[0], c.contentType[0], c.headers[0],
		c.correlation[0], c.traceParent[0], c.traceState[0], c.occurred[0], c.resend[0])
}

// arrays appends the columns. Lean columns need no allocation per value, but pgx cannot encode lean
// columns in every mode.
func (c *columns) arrays(args []any, lean bool) []any {
	if !lean {
		return append(args, c.id, c.digest, c.shard, c.topic, c.key, c.source, c.version, c.index,
			c.payload, c.kind, c.producer, c.schemaVersion, c.contentType, c.headers,
			c.correlation, c.traceParent, c.traceState, c.occurred, c.resend)
	}
	return append(args, leanValues(c.id), leanByteas(c.digest), c.shard, leanTexts(c.topic), leanTexts(c.key),
		leanTexts(c.source), leanInts(c.version), c.index,
		leanByteas(c.payload), leanTexts(c.kind), leanTexts(c.producer), c.schemaVersion, leanTexts(c.contentType), leanTexts(c.headers),
		leanTexts(c.correlation), leanTexts(c.traceParent), leanTexts(c.traceState), leanValues(c.occurred), c.resend)
}

func (c *columns) set(i int, r *outbox.Record) error {
	c.id[i] = pgtype.UUID{Bytes: r.ID, Valid: true}
	c.digest[i], c.payload[i] = r.Digest[:], r.Payload
	if r.Payload == nil {
		c.payload[i] = []byte{} // nil would be NULL
	}
	c.shard[i], c.version[i] = int16(r.Shard), r.Version
	c.index[i], c.schemaVersion[i] = int32(r.Index), int32(r.SchemaVersion)
	c.topic[i], c.key[i], c.kind[i] = r.Topic, r.Key, r.Type
	c.producer[i], c.source[i], c.contentType[i] = r.Producer, r.Source, r.ContentType
	c.correlation[i], c.traceParent[i], c.traceState[i] = r.CorrelationID, r.TraceParent, r.TraceState
	c.occurred[i] = sinceOf(r.OccurredAt) // -infinity stands for the clock of the database
	c.resend[i] = int32(r.ResendFor / time.Second)
	if !r.DeliverAt.IsZero() {
		if c.due == nil {
			c.due = make([]pgtype.Timestamptz, len(c.id))
		}
		c.due[i] = pgtype.Timestamptz{Time: r.DeliverAt, Valid: true}
	}
	c.headers[i] = "{}"
	if len(r.Headers) > 0 {
		text, err := json.Marshal(r.Headers)
		if err != nil {
			return fmt.Errorf("headers: %w", err)
		}
		c.headers[i] = string(text)
	}
	return nil
}
