package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/producer"
)

// stamp is the stamp of an event e.
const stamp = `max(e.created_at, coalesce(e.due_at, e.created_at))`

// recordColumns are the columns of an event, as scanRecord takes them. The first is NULL
// if the log has no such event.
const recordColumns = `
e.id, e.dispatch_id, e.digest, e.topic, e.key, e.type, e.producer, e.source, e.version, e.event_index,
e.schema_version, e.content_type, e.correlation_id, e.traceparent, e.tracestate, e.occurred_at, ` + stamp + `,
e.headers, e.payload, e.resend_seconds`

// The queue is read in three steps, since a relay asks for all its shards at a
// time, most of them are empty mostly, and a statement with as many columns as an event has costs
// as much as it reads. First, in one statement, which ranges hold anything; then the rows of
// each of those, in the order of the primary key; then their events in one statement.
const (
	filledStmt = `
SELECT r.key FROM json_each(?) r
WHERE EXISTS (SELECT 1 FROM {outbox_queue} q
              WHERE q.shard = r.value ->> 0 AND q.id > r.value ->> 1 AND q.id <= r.value ->> 2)`
	rangeStmt = `
SELECT id, round FROM {outbox_queue} WHERE shard = ? AND id > ? AND id <= ?
  AND id NOT IN (SELECT value FROM json_each(?)) ORDER BY id LIMIT ?`
	eventsStmt = `
SELECT ` + recordColumns + ` FROM {outbox_events} e WHERE e.id IN (SELECT value FROM json_each(?))`
)

// fetchKeyStmt leaves missing events out, since their key is not known.
const fetchKeyStmt = `
SELECT q.id, q.round, ` + recordColumns + `
FROM {outbox_queue} q CROSS JOIN {outbox_events} e ON e.id = q.id
WHERE q.shard = ? AND q.id >= ? AND e.key = ?
ORDER BY q.id LIMIT ?`

const maxID = 1<<63 - 1

// Fetch reads the queue rows of ranges with their events, all of one moment. An
// event that the log lacks is reported as missing.
func (s *Store) Fetch(ctx context.Context, ranges []producer.Range) ([]producer.Queued, error) {
	var queued []producer.Queued
	err := s.read(ctx, func(ctx context.Context, tx *sql.Tx) error {
		filled, err := s.filled(ctx, tx, ranges)
		if err != nil {
			return err
		}
		var ids []int64
		for _, i := range filled {
			r := &ranges[i]
			err := s.each(ctx, tx, func(rows *sql.Rows) error {
				q := producer.Queued{Missing: true}
				q.Shard = r.Shard
				err := rows.Scan(&q.Seq, &q.Round)
				queued, ids = append(queued, q), append(ids, q.Seq)
				return err
			}, rangeStmt, r.Shard, r.After, through(r), numbers(r.Except), r.Limit)
			if err != nil {
				return fmt.Errorf("shard %d: %w", r.Shard, err)
			}
		}
		if len(ids) == 0 {
			return nil
		}
		return s.events(ctx, tx, queued, ids)
	})
	if err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	return queued, nil
}

func through(r *producer.Range) int64 {
	if r.Through == 0 {
		return maxID
	}
	return r.Through
}

// filled returns the indexes of ranges that have rows.
func (s *Store) filled(ctx context.Context, tx *sql.Tx, ranges []producer.Range) ([]int, error) {
	if len(ranges) == 1 {
		return []int{0}, nil
	}
	list := make([][3]int64, len(ranges))
	for i := range ranges {
		list[i] = [3]int64{int64(ranges[i].Shard), ranges[i].After, through(&ranges[i])}
	}
	text, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	var filled []int
	err = s.each(ctx, tx, func(rows *sql.Rows) error {
		var i int
		err := rows.Scan(&i)
		filled = append(filled, i)
		return err
	}, filledStmt, string(text))
	return filled, err
}

// events sorts queued and fills in the events, of which ids are the places in the log.
func (s *Store) events(ctx context.Context, tx *sql.Tx, queued []producer.Queued, ids []int64) error {
	slices.SortFunc(queued, func(a, b producer.Queued) int { return cmp.Compare(a.Seq, b.Seq) })
	return s.each(ctx, tx, func(rows *sql.Rows) error {
		var id sql.NullInt64
		var r producer.Record
		if err := scanRecord(rows, &r, &id); err != nil {
			return err
		}
		i, found := slices.BinarySearchFunc(queued, id.Int64, func(q producer.Queued, id int64) int { return cmp.Compare(q.Seq, id) })
		for ; found && i < len(queued) && queued[i].Seq == id.Int64; i++ { // ranges may overlap
			r.Shard = queued[i].Shard
			queued[i].Record, queued[i].Missing = r, false
		}
		return nil
	}, eventsStmt, numbers(ids))
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
	var version, index, schema, occurred, created, resend sql.NullInt64
	var headers sql.NullString
	err := rows.Scan(append(first, id, &dispatch, &digest, &text[0], &text[1], &text[2], &text[3], &text[4], &version, &index,
		&schema, &text[5], &text[6], &text[7], &text[8], &occurred, &created, &headers, &payload, &resend)...)
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
	r.ResendFor = time.Duration(resend.Int64) * time.Second
	r.SetResend()
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
		owned, err := s.owned(ctx, tx, relay)
		if err != nil {
			return err
		}
		for lease, ids := range byLease(marks) {
			if !owned[lease] {
				lost = append(lost, lease.Shard)
				continue
			}
			removed, err := s.dequeue(ctx, tx, lease.Shard, ids)
			if err != nil {
				return err
			}
			gone = append(gone, removed...)
		}
		if err := s.receipt(ctx, tx, relay, gone); err != nil {
			return err
		}
		return fault.Hit(ctx, fault.R7)
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
	at := now()
	_, err := s.exec(ctx, tx, `INSERT INTO {outbox_receipts} (delivered_at, relay, event_ids) VALUES (?, ?, ?)`, at, relay, numbers(ids))
	if err != nil || !s.allAttempts {
		return err
	}
	for _, id := range ids {
		if err := s.logAttempt(ctx, tx, id, at, "confirmed", "", relay); err != nil {
			return err
		}
	}
	return nil
}
