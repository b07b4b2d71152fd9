package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
	"weak"

	"github.com/google/uuid"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/boxpair/boxpair/producer"
)

// appendStmt writes one event. A trigger writes its row in the queue, or among the deferred events.
//
// Equal content changes nothing, since the WHERE of the update is false. Other
// content makes the update set digest to NULL, which it must not be: the
// statement fails, without a SELECT that would have to come first.
const appendStmt = `
INSERT INTO {outbox_events} (
    dispatch_id, digest, shard, topic, key, type, producer, source, version, event_index, schema_version,
    content_type, correlation_id, traceparent, tracestate, occurred_at, created_at, headers, payload, resend_seconds, due_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (dispatch_id) DO UPDATE SET digest = NULL WHERE digest IS NOT excluded.digest`

// Append writes records in tx. It is one prepared statement per record: that
// is no round trip here, and measured faster than one statement for all. What
// makes it one step is that any failure of a statement rolls tx back, so that nobody can
// commit the change without all of its events. Stamps of records are not used.
func (s *Store) Append(ctx context.Context, tx *sql.Tx, writer uuid.UUID, records []producer.Record) ([]bool, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	headers := make([]string, len(records))
	for i := range records {
		var err error
		if headers[i], err = encodeHeaders(records[i].Headers); err != nil {
			return nil, fmt.Errorf("event %d: %w", i, err)
		}
	}
	if !s.writers.tie(tx, writer) {
		return nil, producer.ErrSecondWriter
	}
	// A statement whose context ends may take the whole transaction with it.
	inner := context.WithoutCancel(ctx)
	known := make([]bool, len(records))
	for i := range records {
		inserted, err := s.append(inner, tx, &records[i], headers[i])
		if err != nil {
			return nil, fmt.Errorf("event %s: %w", records[i].ID, errors.Join(err, s.abandon(tx)))
		}
		known[i] = !inserted
	}
	return known, nil
}

func (s *Store) append(ctx context.Context, tx *sql.Tx, r *producer.Record, headers string) (inserted bool, err error) {
	at := now()
	occurred := at
	if !r.OccurredAt.IsZero() {
		occurred = r.OccurredAt.UnixMicro()
	}
	var due sql.NullInt64
	if !r.DeliverAt.IsZero() && r.DeliverAt.UnixMicro() > at {
		due = sql.NullInt64{Int64: r.DeliverAt.UnixMicro(), Valid: true}
	}
	payload := r.Payload
	if payload == nil {
		payload = []byte{}
	}
	n, err := s.exec(ctx, tx, appendStmt,
		r.ID[:], r.Digest[:], r.Shard, r.Topic, r.Key, r.Type, r.Producer, r.Source, r.Version, r.Index, r.SchemaVersion,
		r.ContentType, r.CorrelationID, r.TraceParent, r.TraceState, occurred, at, headers, payload,
		int64(r.ResendFor/time.Second), due)
	if resultCode(err) == sqlite3.SQLITE_CONSTRAINT_NOTNULL && strings.Contains(err.Error(), "outbox_events.digest") {
		return false, producer.ErrConflict
	}
	return n > 0, err
}

// abandon makes tx unable to commit. A failed statement alone does not, in
// SQLite, and a caller could ignore it.
func (s *Store) abandon(tx *sql.Tx) error {
	s.writers.abandon(tx)
	if err := tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("roll back: %w", err)
	}
	return nil
}

// encodeHeaders returns headers as JSON, which can hold valid UTF-8 only.
func encodeHeaders(headers map[string]string) (string, error) {
	if len(headers) == 0 {
		return "{}", nil
	}
	for name, value := range headers {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return "", errors.New("headers are not valid UTF-8")
		}
	}
	text, err := json.Marshal(headers)
	return string(text), err
}

// writers remembers which writer a transaction is tied to, and whether a write has failed in it.
// SQLite has nothing that lives as long as a transaction, so it is kept here, under a weak
// pointer: the entry goes when the transaction is garbage.
type writers struct {
	mu sync.Mutex
	of map[weak.Pointer[sql.Tx]]tied
}

type tied struct {
	writer    uuid.UUID
	abandoned bool
}

// tie ties tx to writer and tells whether it is tied to no other.
func (w *writers) tie(tx *sql.Tx, writer uuid.UUID) bool {
	p := weak.Make(tx)
	w.mu.Lock()
	defer w.mu.Unlock()
	if known, ok := w.of[p]; ok {
		return known.writer == writer
	}
	if w.of == nil {
		w.of = make(map[weak.Pointer[sql.Tx]]tied)
	}
	w.of[p] = tied{writer: writer}
	runtime.AddCleanup(tx, w.forget, p)
	return true
}

// abandon notes that a write in tx has failed.
func (w *writers) abandon(tx *sql.Tx) {
	p := weak.Make(tx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.of[p] = tied{writer: w.of[p].writer, abandoned: true}
}

// abandoned tells whether a write in tx has failed.
func (w *writers) abandoned(tx *sql.Tx) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.of[weak.Make(tx)].abandoned
}

func (w *writers) forget(p weak.Pointer[sql.Tx]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.of, p)
}
