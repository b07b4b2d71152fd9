package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/transport"
)

// stamp is the stamp of an event e.
const stamp = `GREATEST(e.created_at, COALESCE(e.due_at, e.created_at))`

// recordColumns are the columns of an event, as scanRecord takes them. The first is NULL
// if the log has no such event.
const recordColumns = `
e.id, e.dispatch_id, e.digest, e.topic, e.event_key, e.type, e.producer, e.source, e.version, e.event_index,
e.schema_version, e.content_type, e.correlation_id, e.traceparent, e.tracestate, e.occurred_at, ` + stamp + `,
e.headers, e.payload, e.resend_seconds`

const maxID = 1<<63 - 1

// Fetch reads the queue rows of ranges with their events, in one statement. An
// event that the log lacks is reported as missing.
func (s *Store) Fetch(ctx context.Context, ranges []producer.Range) ([]producer.Queued, error) {
	if len(ranges) == 0 {
		return nil, nil
	}
	parts := make([]string, len(ranges))
	for i := range ranges {
		parts[i] = rangeQuery(&ranges[i])
	}
	var queued []producer.Queued
	err := s.each(ctx, s.db, func(rows *sql.Rows) error {
		var q producer.Queued
		var shard int
		err := scanQueued(rows, &q, &shard, &q.Seq, &q.Round)
		q.Shard = shard
		queued = append(queued, q)
		return err
	}, `SELECT q.shard, q.id, q.round, `+recordColumns+` FROM (`+strings.Join(parts, ` UNION ALL `)+`) q
		LEFT JOIN {outbox_events} e ON e.id = q.id`)
	if err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	slices.SortStableFunc(queued, func(a, b producer.Queued) int { return cmp.Compare(a.Seq, b.Seq) })
	return queued, nil
}

func rangeQuery(r *producer.Range) string {
	through := r.Through
	if through == 0 {
		through = maxID
	}
	except := ""
	if len(r.Except) > 0 {
		except = " AND id NOT IN " + numbers(r.Except)
	}
	return fmt.Sprintf(`(SELECT shard, id, round FROM {outbox_queue} WHERE shard = %d AND id > %d AND id <= %d%s ORDER BY id LIMIT %d)`,
		r.Shard, r.After, through, except, r.Limit)
}

// FetchKey reads queue rows of one key. It leaves missing events out, since their key is not known.
func (s *Store) FetchKey(ctx context.Context, shard int, key string, from int64, limit int) ([]producer.Queued, error) {
	var queued []producer.Queued
	err := s.each(ctx, s.db, func(rows *sql.Rows) error {
		q := producer.Queued{}
		err := scanQueued(rows, &q, &q.Seq, &q.Round)
		q.Shard = shard
		queued = append(queued, q)
		return err
	}, `SELECT q.id, q.round, `+recordColumns+` FROM {outbox_queue} q STRAIGHT_JOIN {outbox_events} e ON e.id = q.id
		WHERE q.shard = ? AND q.id >= ? AND e.event_key = ? ORDER BY q.id LIMIT ?`, shard, from, []byte(key), limit)
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
	var dispatch, digest, headers, payload sql.RawBytes
	var text [9]sql.RawBytes // topic, key, type, producer, source, content type, correlation ID, trace context
	var version, index, schema, occurred, created, resend sql.NullInt64
	err := rows.Scan(append(first, id, &dispatch, &digest, &text[0], &text[1], &text[2], &text[3], &text[4], &version, &index,
		&schema, &text[5], &text[6], &text[7], &text[8], &occurred, &created, &headers, &payload, &resend)...)
	if err != nil || !id.Valid {
		return err
	}
	if r.ID, err = uuid.FromBytes(dispatch); err != nil {
		return fmt.Errorf("event %d: dispatch ID: %w", id.Int64, err)
	}
	r.Digest = digestOf(digest)
	r.Topic, r.Key, r.Type, r.Producer, r.Source = string(text[0]), string(text[1]), string(text[2]), string(text[3]), string(text[4])
	r.ContentType, r.CorrelationID, r.TraceParent, r.TraceState = string(text[5]), string(text[6]), string(text[7]), string(text[8])
	r.Version, r.Index, r.SchemaVersion = version.Int64, int(index.Int64), int(schema.Int64)
	r.OccurredAt, r.Stamp = instant(occurred.Int64), instant(created.Int64)
	r.ResendFor = time.Duration(resend.Int64) * time.Second
	r.SetResend()
	r.Payload = slices.Clone([]byte(payload))
	if string(headers) != "{}" {
		if err := json.Unmarshal(headers, &r.Headers); err != nil {
			return fmt.Errorf("event %d: headers are not a JSON object of strings", id.Int64)
		}
	}
	return nil
}

func digestOf(b []byte) (d transport.Digest) {
	copy(d[:], b)
	return d
}

// Writers names nobody: the writers of a shard wait for one another, see [Store.Append], so the IDs of a
// shard become visible in their order.
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
	leases := make([]producer.Lease, len(marks))
	for i, m := range marks {
		leases[i] = m.Lease
	}
	var lost []int
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		lost = nil
		owned, err := s.owned(ctx, tx, relay, leases)
		if err != nil {
			return err
		}
		var mine []producer.Mark
		for _, m := range marks {
			if owned[m.Lease] {
				mine = append(mine, m)
			} else {
				lost = append(lost, m.Shard)
			}
		}
		gone, err := s.dequeue(ctx, tx, mine)
		if err != nil {
			return err
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

// dequeue removes queue rows of shards whose rows are locked, and returns which there were, ascending.
func (s *Store) dequeue(ctx context.Context, tx *sql.Tx, marks []producer.Mark) ([]int64, error) {
	type round struct {
		shard int
		round int64
	}
	groups := make(map[round][]int64)
	for _, m := range marks {
		at := round{m.Shard, m.Round}
		groups[at] = append(groups[at], m.Seq)
	}
	if len(groups) == 0 {
		return nil, nil
	}
	terms := make([]string, 0, len(groups))
	for at, ids := range groups {
		terms = append(terms, fmt.Sprintf("shard = %d AND round = %d AND id IN %s", at.shard, at.round, numbers(ids)))
	}
	where := strings.Join(terms, " OR ")
	gone, err := s.ids(ctx, tx, `SELECT id FROM {outbox_queue} WHERE `+where)
	if err != nil || len(gone) == 0 {
		return nil, err
	}
	n, err := s.exec(ctx, tx, `DELETE FROM {outbox_queue} WHERE `+where)
	if err == nil && n != int64(len(gone)) {
		err = errors.New("queue rows have changed under the lock of their shard")
	}
	slices.Sort(gone)
	return gone, err
}

// receipt records that events were delivered now. The IDs ascend.
func (s *Store) receipt(ctx context.Context, tx *sql.Tx, relay string, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	text, err := json.Marshal(ids)
	if err != nil {
		return err
	}
	_, err = s.exec(ctx, tx, `INSERT INTO {outbox_receipts} (delivered_at, relay, first_id, last_id, events, event_ids) VALUES ({now}, ?, ?, ?, ?, ?)`,
		[]byte(relay), ids[0], ids[len(ids)-1], len(ids), string(text))
	if err != nil || !s.allAttempts {
		return err
	}
	return s.logAttempts(ctx, tx, ids, "confirmed", "", relay)
}
