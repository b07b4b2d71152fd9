package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/store/outbox"
)

// StampOf is the stamp of an event e.
const StampOf = `{greatest}(e.created_at, COALESCE(e.due_at, e.created_at))`

// RecordColumns are the columns that [ScanRecord] reads. The first column is NULL if the event is
// missing from the log.
const RecordColumns = `
e.id, e.dispatch_id, e.digest, e.topic, e.{event_key}, e.type, e.producer, e.source, e.version, e.event_index,
e.schema_version, e.content_type, e.correlation_id, e.traceparent, e.tracestate, e.occurred_at, ` + StampOf + `,
e.headers, e.payload, e.resend_seconds`

// ScanQueued reads a row of the columns for first, followed by [RecordColumns].
func ScanQueued(rows *sql.Rows, q *outbox.Queued, first ...any) (err error) {
	var id sql.NullInt64
	q.Unreadable, err = ScanRecord(rows, &q.Record, &id, first...)
	q.Missing = !id.Valid
	return err
}

// number scans an integer, and notes any other value as bad: columns of SQLite may hold any value.
type number struct {
	sql.NullInt64
	bad bool
}

// Scan implements [sql.Scanner].
func (n *number) Scan(src any) error {
	n.bad = n.NullInt64.Scan(src) != nil
	return nil
}

// ScanRecord reads a row of the columns for first, followed by [RecordColumns]. It leaves out a
// part of the event that cannot be decoded, and names the part in unreadable.
func ScanRecord(rows *sql.Rows, r *outbox.Record, id *sql.NullInt64, first ...any) (unreadable string, err error) {
	var dispatch, digest, headers, payload sql.RawBytes
	var text [9]sql.NullString // topic, key, type, producer, source, content type, correlation ID, trace context
	var version, index, schema, occurred, created, resend number
	err = rows.Scan(append(first, id, &dispatch, &digest, &text[0], &text[1], &text[2], &text[3], &text[4], &version, &index,
		&schema, &text[5], &text[6], &text[7], &text[8], &occurred, &created, &headers, &payload, &resend)...)
	if err != nil || !id.Valid {
		return "", err
	}
	r.ID, r.Digest = uuid.UUID(Digest(dispatch)), Digest(digest)
	r.Topic, r.Key, r.Type, r.Producer, r.Source = text[0].String, text[1].String, text[2].String, text[3].String, text[4].String
	r.ContentType, r.CorrelationID, r.TraceParent, r.TraceState = text[5].String, text[6].String, text[7].String, text[8].String
	r.Version, r.Index, r.SchemaVersion = version.Int64, int(index.Int64), int(schema.Int64)
	r.OccurredAt, r.Stamp = Instant(occurred.Int64), Instant(created.Int64)
	r.ResendFor = time.Duration(resend.Int64) * time.Second
	r.SetResend()
	r.Payload = slices.Clone([]byte(payload))
	for _, c := range [...]struct {
		bad  bool
		says string
	}{
		{len(dispatch) != len(r.ID), "dispatch_id has not 16 bytes"}, {len(digest) != len(r.Digest), "digest has not 16 bytes"},
		{version.bad, "version is no integer"}, {index.bad, "event_index is no integer"}, {schema.bad, "schema_version is no integer"},
		{occurred.bad, "occurred_at is no integer"}, {created.bad, "the stamp is no integer"}, {resend.bad, "resend_seconds is no integer"},
	} {
		if c.bad {
			unreadable = c.says
		}
	}
	if string(headers) != "{}" && json.Unmarshal(headers, &r.Headers) != nil {
		r.Headers, unreadable = nil, "headers are not a JSON object of strings"
	}
	return unreadable, nil
}

const maxID = 1<<63 - 1

// Through returns the last place of a range.
func Through(r *outbox.Range) int64 {
	if r.Through == 0 {
		return maxID
	}
	return r.Through
}

// BeginAppend prepares an Append, without I/O: it ties tx to writer and encodes the headers of
// records.
func (c *Core) BeginAppend(ctx context.Context, tx *sql.Tx, writer uuid.UUID, records []outbox.Record) (headers []string, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	headers = make([]string, len(records))
	for i := range records {
		if headers[i], err = encodeHeaders(records[i].Headers); err != nil {
			return nil, fmt.Errorf("event %d: %w", i, err)
		}
	}
	if !c.Writers.tie(tx, writer) {
		return nil, outbox.ErrSecondWriter
	}
	return headers, nil
}

// Writers implements [outbox.RelayStore] and returns no names: the writers of a shard wait for each
// other, so that the IDs of a shard become visible in ascending order.
func (s *Store) Writers(context.Context) ([]string, error) { return nil, nil }

// Listen returns [outbox.ErrNoSignal]. Relays in other processes poll; an outbox wakes the relays
// of its own process.
func (s *Store) Listen(context.Context, func(string)) error { return outbox.ErrNoSignal }

// Notify returns [outbox.ErrNoSignal].
func (s *Store) Notify(context.Context, string) error { return outbox.ErrNoSignal }

// FetchKey implements [outbox.RelayStore]. It leaves missing events out, since their keys are
// unknown.
func (s *Store) FetchKey(ctx context.Context, shard int, key string, from int64, limit int) ([]outbox.Queued, error) {
	queued, err := collect(ctx, s.c, s.c.DB, func(rows *sql.Rows) (q outbox.Queued, err error) {
		err = ScanQueued(rows, &q, &q.Seq, &q.Round)
		q.Shard = shard
		return q, err
	}, `SELECT q.id, q.round, `+RecordColumns+` FROM {outbox_queue} q {then_join} {outbox_events} e ON e.id = q.id
		WHERE q.shard = ? AND q.id >= ? AND e.{event_key} = ? ORDER BY q.id LIMIT ?`, shard, from, Text(key), limit)
	if err != nil {
		return nil, fmt.Errorf("fetch key of shard %d: %w", shard, err)
	}
	return queued, nil
}

// Mark implements [outbox.RelayStore]. It writes one receipt for all events whose rows it removes.
func (s *Store) Mark(ctx context.Context, relay string, marks []outbox.Mark) ([]int, error) {
	if len(marks) == 0 {
		return nil, nil
	}
	leases := make([]outbox.Lease, len(marks))
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
		var mine []outbox.Mark
		for _, m := range marks {
			if owned[m.Lease] {
				mine = append(mine, m)
			} else {
				lost = append(lost, m.Shard)
			}
		}
		gone, err := s.c.d.Dequeue(ctx, tx, mine)
		if err != nil {
			return err
		}
		if err := s.receipt(ctx, tx, relay, gone); err != nil {
			return err
		}
		return fault.Hit(ctx, fault.MarkSent)
	})
	if err != nil {
		return nil, fmt.Errorf("mark: %w", err)
	}
	slices.Sort(lost)
	return slices.Compact(lost), nil
}

// ByRound groups the places of marks by shard and round.
func ByRound(marks []outbox.Mark) map[Round][]int64 {
	groups := make(map[Round][]int64)
	for _, m := range marks {
		at := Round{Shard: m.Shard, Round: m.Round}
		groups[at] = append(groups[at], m.Seq)
	}
	return groups
}

// Round is a round of a shard's queue.
type Round struct {
	// Shard is the number of the shard.
	Shard int
	// Round is 0, except for replayed events.
	Round int64
}

// receipt records the delivery of events, now. The IDs ascend.
func (s *Store) receipt(ctx context.Context, tx *sql.Tx, relay string, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	if err := s.c.d.Receipt(ctx, tx, relay, ids); err != nil || !s.c.AllAttempts {
		return err
	}
	return s.logAttempts(ctx, tx, ids, "confirmed", "", relay)
}

// logAttempts adds an attempt to the history of each event, in the order of ids.
func (s *Store) logAttempts(ctx context.Context, tx *sql.Tx, ids []int64, outcome, text, relay string) error {
	for part := range slices.Chunk(ids, maxListed) {
		_, err := s.c.Exec(ctx, tx, `INSERT INTO {outbox_attempts} (event_id, at, outcome, error, relay)
			SELECT l.value, {now}, ?, ?, ? FROM ? l WHERE true`, outcome, Text(text), Text(relay), Rows(part))
		if err != nil {
			return err
		}
	}
	return nil
}
