package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/boxpair/boxpair/store/internal/sqlstore"
	"github.com/boxpair/boxpair/store/outbox"
)

// appendStmt writes one event. A trigger writes its row in the queue, or among the deferred events.
//
// Equal content changes nothing, since the WHERE of the update is false. Different content makes
// the update set digest to NULL, which violates NOT NULL: the statement fails, and needs no SELECT
// before.
const appendStmt = `
INSERT INTO {outbox_events} (
    dispatch_id, digest, shard, topic, key, type, producer, source, version, event_index, schema_version,
    content_type, correlation_id, traceparent, tracestate, occurred_at, created_at, headers, payload, resend_seconds, due_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (dispatch_id) DO UPDATE SET digest = NULL WHERE digest IS NOT excluded.digest`

// Append implements [outbox.EventStore] with one prepared statement per record: SQLite has no round
// trips, and one statement for all records was measured to be slower. Any failure rolls tx back, so
// that the caller cannot commit a change without all of its events.
func (s *Store) Append(ctx context.Context, tx *sql.Tx, writer uuid.UUID, records []outbox.Record) ([]bool, error) {
	headers, err := s.core.BeginAppend(ctx, tx, writer, records)
	if err != nil {
		return nil, err
	}
	// A statement whose context ends may end the whole transaction.
	inner := context.WithoutCancel(ctx)
	known := make([]bool, len(records))
	for i := range records {
		inserted, err := s.append(inner, tx, &records[i], headers[i])
		if err != nil {
			return nil, fmt.Errorf("event %s: %w", records[i].ID, errors.Join(err, s.core.Abandon(tx)))
		}
		known[i] = !inserted
	}
	return known, nil
}

func (s *Store) append(ctx context.Context, tx *sql.Tx, r *outbox.Record, headers string) (inserted bool, err error) {
	at := now()
	occurred := at
	if !r.OccurredAt.IsZero() {
		occurred = r.OccurredAt.UnixMicro()
	}
	var due sql.NullInt64
	if !r.DeliverAt.IsZero() && r.DeliverAt.UnixMicro() > at {
		due = sql.NullInt64{Int64: r.DeliverAt.UnixMicro(), Valid: true}
	}
	n, err := s.core.Exec(ctx, tx, appendStmt,
		r.ID[:], r.Digest[:], r.Shard, r.Topic, r.Key, r.Type, r.Producer, r.Source, r.Version, r.Index, r.SchemaVersion,
		r.ContentType, r.CorrelationID, r.TraceParent, r.TraceState, occurred, at, headers, sqlstore.Bytes(r.Payload),
		int64(r.ResendFor/time.Second), due)
	if resultCode(err) == sqlite3.SQLITE_CONSTRAINT_NOTNULL && strings.Contains(err.Error(), "outbox_events.digest") {
		return false, &outbox.ConflictError{ID: r.ID}
	}
	return n > 0, err
}
