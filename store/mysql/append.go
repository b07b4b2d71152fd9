package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/internal/sqlstore"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// maxRows and maxBytes bound the events of one statement, so that the statement stays far below the
// default max_allowed_packet.
const (
	maxRows  = 200
	maxBytes = 1 << 20
)

const (
	insertEvents = `
INSERT INTO {outbox_events} (
    dispatch_id, digest, shard, topic, event_key, type, producer, source, version, event_index, schema_version,
    content_type, correlation_id, traceparent, tracestate, occurred_at, created_at, headers, payload, resend_seconds, due_at
) VALUES `
	eventRow = `(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, COALESCE(?, {now}), {now}, ?, ?, ?, CASE WHEN ? > {now} THEN ? END)`
	// The upsert changes a row that exists already: with a change, the number of affected rows
	// tells an existing row from a new row, however the connection counts.
	eventAgain = ` ON DUPLICATE KEY UPDATE rewrites = rewrites + 1`
)

// Append implements [outbox.EventStore]. It waits for the end of all other transactions that have
// written to the shards of records, and gets IDs only then, so that the events of a shard become
// visible in the order of their IDs. Any failure rolls tx back, so that the caller cannot commit a
// change without all of its events.
func (s *Store) Append(ctx context.Context, tx *sql.Tx, writer uuid.UUID, records []outbox.Record) ([]bool, error) {
	headers, err := s.core.BeginAppend(ctx, tx, writer, records)
	if err != nil {
		return nil, err
	}
	known, err := s.append(ctx, tx, records, headers)
	if err != nil {
		return nil, fmt.Errorf("append events: %w", errors.Join(err, s.core.Abandon(tx)))
	}
	return known, nil
}

func (s *Store) append(ctx context.Context, tx *sql.Tx, records []outbox.Record, headers []string) ([]bool, error) {
	if len(records) == 0 {
		return nil, nil
	}
	if err := s.lockWriters(ctx, tx, records); err != nil {
		return nil, err
	}
	known := make([]bool, len(records))
	first := make(map[uuid.UUID]int, len(records)) // the index of an ID's first record
	var batch []int
	size := 0
	for i := range records {
		r := &records[i]
		if at, again := first[r.ID]; again {
			if known[i] = true; records[at].Digest != r.Digest {
				return nil, &outbox.ConflictError{ID: r.ID}
			}
			continue
		}
		first[r.ID] = i
		n := len(r.Payload) + len(headers[i])
		if len(batch) == maxRows || len(batch) > 0 && size+n > maxBytes {
			if err := s.insert(ctx, tx, records, headers, batch, known); err != nil {
				return nil, err
			}
			batch, size = batch[:0], 0
		}
		batch, size = append(batch, i), size+n
	}
	return known, s.insert(ctx, tx, records, headers, batch, known)
}

// lockWriters waits for other writers of the shards of records.
func (s *Store) lockWriters(ctx context.Context, tx *sql.Tx, records []outbox.Record) error {
	shards := make([]int, len(records))
	for i := range records {
		shards[i] = records[i].Shard
	}
	slices.Sort(shards)
	_, err := s.core.IDs(ctx, tx, `SELECT shard FROM {outbox_writers} FORCE INDEX (PRIMARY) WHERE shard IN `+numbers(slices.Compact(shards))+
		` ORDER BY shard FOR UPDATE`)
	return err
}

// insert writes the events of batch in order, and queues or defers the new events.
func (s *Store) insert(ctx context.Context, tx *sql.Tx, records []outbox.Record, headers []string, batch []int, known []bool) error {
	var values strings.Builder
	var args []any
	var fresh []uuid.UUID
	for n, i := range batch {
		if n > 0 {
			values.WriteString(", ")
		}
		values.WriteString(eventRow)
		args = appendEvent(args, &records[i], headers[i])
		fresh = append(fresh, records[i].ID)
	}
	changed, err := s.core.Exec(ctx, tx, insertEvents+values.String()+eventAgain, args...)
	if err != nil {
		return err
	}
	if changed != int64(len(batch)) { // an existing row counts twice
		if fresh, err = s.compareEvents(ctx, tx, records, batch, known); err != nil || len(fresh) == 0 {
			return err
		}
	}
	deferred := slices.ContainsFunc(batch, func(i int) bool { return !records[i].DeliverAt.IsZero() })
	return s.enqueue(ctx, tx, fresh, deferred)
}

// enqueue writes the queue rows of new events and, with deferred, the rows of deferred events.
func (s *Store) enqueue(ctx context.Context, tx *sql.Tx, fresh []uuid.UUID, deferred bool) error {
	const among = ` FROM {outbox_events} e FORCE INDEX (dispatch_id) WHERE e.dispatch_id IN `
	_, err := s.core.Exec(ctx, tx, `INSERT INTO {outbox_queue} (shard, id) SELECT e.shard, e.id`+among+numbers(fresh)+` AND e.due_at IS NULL`)
	if err != nil || !deferred {
		return err
	}
	_, err = s.core.Exec(ctx, tx, `INSERT INTO {outbox_deferred} (id, shard, due_at, event_key)
		SELECT e.id, e.shard, e.due_at, e.event_key`+among+numbers(fresh)+` AND e.due_at IS NOT NULL`)
	return err
}

// appendEvent appends the values of an [eventRow].
func appendEvent(args []any, r *outbox.Record, headers string) []any {
	return append(args, r.ID[:], r.Digest[:], r.Shard, []byte(r.Topic), []byte(r.Key), []byte(r.Type), []byte(r.Producer),
		[]byte(r.Source), r.Version, r.Index, r.SchemaVersion, []byte(r.ContentType), []byte(r.CorrelationID), []byte(r.TraceParent),
		[]byte(r.TraceState), sqlstore.Stamp(r.OccurredAt), []byte(headers), sqlstore.Bytes(r.Payload), int64(r.ResendFor/time.Second),
		sqlstore.Stamp(r.DeliverAt), sqlstore.Stamp(r.DeliverAt))
}

// compareEvents sets known for the events of batch that existed already, and returns the IDs of the
// new events. The rows are locked, so their contents are current.
func (s *Store) compareEvents(ctx context.Context, tx *sql.Tx, records []outbox.Record, batch []int, known []bool) (fresh []uuid.UUID, err error) {
	ids := make([]uuid.UUID, len(batch))
	places := make(map[uuid.UUID]int, len(batch))
	for n, i := range batch {
		ids[n] = records[i].ID
		places[records[i].ID] = i
	}
	err = s.core.Each(ctx, tx, func(rows *sql.Rows) error {
		var id, digest sql.RawBytes
		var rewrites int64
		if err := rows.Scan(&id, &digest, &rewrites); err != nil {
			return err
		}
		i, ok := places[uuid.UUID(id)]
		switch {
		case !ok:
			return errors.New("the database has returned an unexpected event")
		case rewrites == 0:
			fresh = append(fresh, records[i].ID)
		case records[i].Digest != transport.Digest(digest):
			return &outbox.ConflictError{ID: records[i].ID}
		default:
			known[i] = true
		}
		return nil
	}, `SELECT dispatch_id, digest, rewrites FROM {outbox_events} FORCE INDEX (dispatch_id) WHERE dispatch_id IN `+numbers(ids)+` FOR UPDATE`)
	return fresh, err
}
