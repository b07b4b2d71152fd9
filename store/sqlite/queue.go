package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/producer"
)

// recordColumns are the columns of an event, as scanRecord takes them. The first is NULL
// if the log has no such event.
const recordColumns = `
e.id, e.dispatch_id, e.digest, e.topic, e.key, e.type, e.producer, e.source, e.version, e.event_index,
e.schema_version, e.content_type, e.correlation_id, e.traceparent, e.tracestate, e.occurred_at, e.created_at,
e.headers, e.payload`

// fetchStmt reads through a range of the queue, which is in the order of its
// primary key. The log is joined from the left: a missing event must show.
const fetchStmt = `
SELECT q.id, q.round, ` + recordColumns + `
FROM {outbox_queue} q LEFT JOIN {outbox_events} e ON e.id = q.id
WHERE q.shard = ? AND q.id > ? AND q.id <= ?
ORDER BY q.id LIMIT ?`

// fetchKeyStmt leaves missing events out, since their key is not known.
const fetchKeyStmt = `
SELECT q.id, q.round, ` + recordColumns + `
FROM {outbox_queue} q CROSS JOIN {outbox_events} e ON e.id = q.id
WHERE q.shard = ? AND q.id >= ? AND e.key = ?
ORDER BY q.id LIMIT ?`

const maxID = 1<<63 - 1

// Fetch reads the queue rows of ranges with their events, all of one moment.
func (s *Store) Fetch(ctx context.Context, ranges []producer.Range) ([]producer.Queued, error) {
	var queued []producer.Queued
	err := s.read(ctx, func(ctx context.Context, tx *sql.Tx) error {
		for _, r := range ranges {
			through := r.Through
			if through == 0 {
				through = maxID
			}
			err := s.each(ctx, tx, func(rows *sql.Rows) error {
				q := producer.Queued{}
				q.Shard = r.Shard
				err := scanQueued(rows, &q, &q.Seq, &q.Round)
				queued = append(queued, q)
				return err
			}, fetchStmt, r.Shard, r.After, through, r.Limit)
			if err != nil {
				return fmt.Errorf("shard %d: %w", r.Shard, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	slices.SortFunc(queued, func(a, b producer.Queued) int { return cmp.Compare(a.Seq, b.Seq) })
	return queued, nil
}

// FetchKey reads queue rows of one key.
func (s *Store) FetchKey(ctx context.Context, shard int, key string, from int64, limit int) ([]producer.Queued, error) {
	var queued []producer.Queued
	err := s.each(ctx, s.db, func(rows *sql.Rows) error {
		q := producer.Queued{}
		q.Shard = shard
		err := scanQueued(rows, &q, &q.Seq, &q.Round)
		queued = append(queued, q)
		return err
	}, fetchKeyStmt, shard, from, key, limit)
	if err != nil {
		return nil, fmt.Errorf("fetch key of shard %d: %w", shard, err)
	}
	return queued, nil
}

// scanQueued reads a row that has recordColumns behind those for first.
func scanQueued(rows *sql.Rows, q *producer.Queued, first ...any) error {
	var id sql.NullInt64
	if err := scanRecord(rows, &q.Record, &id, first...); err != nil {
		return err
	}
	q.Missing = !id.Valid
	return nil
}

func scanRecord(rows *sql.Rows, r *producer.Record, id *sql.NullInt64, first ...any) error {
	var dispatch, digest, payload sql.RawBytes
	var text [9]sql.NullString // topic, key, type, producer, source, content type, correlation ID, trace context
	var version, index, schema, occurred, created sql.NullInt64
	var headers sql.NullString
	err := rows.Scan(append(first, id, &dispatch, &digest, &text[0], &text[1], &text[2], &text[3], &text[4], &version, &index,
		&schema, &text[5], &text[6], &text[7], &text[8], &occurred, &created, &headers, &payload)...)
	if err != nil || !id.Valid {
		return err
	}
	if r.ID, err = uuid.FromBytes(dispatch); err != nil {
		return fmt.Errorf("event %d: dispatch ID: %w", id.Int64, err)
	}
	if len(digest) != len(r.Digest) {
		return fmt.Errorf("event %d: digest has %d bytes", id.Int64, len(digest))
	}
	copy(r.Digest[:], digest)
	r.Topic, r.Key, r.Type, r.Producer, r.Source = text[0].String, text[1].String, text[2].String, text[3].String, text[4].String
	r.ContentType, r.CorrelationID, r.TraceParent, r.TraceState = text[5].String, text[6].String, text[7].String, text[8].String
	r.Version, r.Index, r.SchemaVersion = version.Int64, int(index.Int64), int(schema.Int64)
	r.OccurredAt, r.Stamp = instant(occurred.Int64), instant(created.Int64)
	r.Payload = slices.Clone([]byte(payload))
	if headers.String != "{}" {
		if err := json.Unmarshal([]byte(headers.String), &r.Headers); err != nil {
			return fmt.Errorf("event %d: headers are not a JSON object of strings", id.Int64)
		}
	}
	return nil
}

// Writers names nobody: writes are serialised, so IDs become visible in their order.
func (s *Store) Writers(context.Context) ([]string, error) { return nil, nil }

// Listen returns [producer.ErrNoSignal]: relays in other processes poll, and those
// in this one are woken by their outbox.
func (s *Store) Listen(context.Context, func()) error { return producer.ErrNoSignal }

// Notify returns [producer.ErrNoSignal].
func (s *Store) Notify(context.Context) error { return producer.ErrNoSignal }

// Mark removes the queue rows of delivered events, and writes one receipt for those that
// there were.
func (s *Store) Mark(ctx context.Context, relay string, marks []producer.Mark) ([]int, error) {
	if len(marks) == 0 {
		return nil, nil
	}
	var lost []int
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		lost = nil
		var gone []int64
		for lease, ids := range byLease(marks) {
			owned, err := s.owns(ctx, tx, relay, lease)
			if err != nil {
				return err
			}
			if !owned {
				lost = append(lost, lease.Shard)
				continue
			}
			removed, err := s.dequeue(ctx, tx, lease.Shard, ids)
			if err != nil {
				return err
			}
			gone = append(gone, removed...)
		}
		return s.receipt(ctx, tx, relay, gone)
	})
	if err != nil {
		return nil, fmt.Errorf("mark: %w", err)
	}
	slices.Sort(lost)
	return slices.Compact(lost), nil
}

// byLease groups marks by the lease that they were made under, and within by round.
func byLease(marks []producer.Mark) map[producer.Lease]map[int64][]int64 {
	groups := make(map[producer.Lease]map[int64][]int64)
	for _, m := range marks {
		if groups[m.Lease] == nil {
			groups[m.Lease] = make(map[int64][]int64)
		}
		groups[m.Lease][m.Round] = append(groups[m.Lease][m.Round], m.Seq)
	}
	return groups
}

// dequeue removes queue rows of a shard, given by round, and returns which there were.
func (s *Store) dequeue(ctx context.Context, tx *sql.Tx, shard int, rounds map[int64][]int64) ([]int64, error) {
	var gone []int64
	for round, ids := range rounds {
		err := s.each(ctx, tx, func(rows *sql.Rows) error {
			var id int64
			err := rows.Scan(&id)
			gone = append(gone, id)
			return err
		}, `DELETE FROM {outbox_queue} WHERE shard = ? AND id IN (SELECT value FROM json_each(?)) AND round = ? RETURNING id`,
			shard, numbers(ids), round)
		if err != nil {
			return nil, err
		}
	}
	return gone, nil
}

// receipt records that events were delivered now.
func (s *Store) receipt(ctx context.Context, tx *sql.Tx, relay string, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	slices.Sort(ids)
	_, err := s.exec(ctx, tx, `INSERT INTO {outbox_receipts} (delivered_at, relay, event_ids) VALUES (?, ?, ?)`,
		now(), relay, numbers(ids))
	return err
}
