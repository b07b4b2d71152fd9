package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

const (
	defaultScan = 20_000
	// clockSlack is how far times of writing may be out of the order of the log.
	clockSlack = time.Minute
	// aheadOf is how many of the first events of a shard's queue are looked at for those that others
	// wait for.
	aheadOf = 200
)

var (
	_ outbox.Searcher = (*Store)(nil)
	_ inbox.Searcher  = (*Store)(nil)
)

// Search implements [outbox.Searcher]. Dispatch IDs from a range that has more than q.Scan of them
// are compared event by event.
func (s *Store) Search(ctx context.Context, q outbox.Query) (outbox.Results, error) {
	search := eventSearch{c: s.c, q: &q}
	if q.Limit <= 0 {
		q.Limit = defaultLimit
	}
	if q.Scan <= 0 {
		q.Scan = defaultScan
	}
	if q.Before <= 0 {
		q.Before = math.MaxInt64
	}
	if q.Error != "" { // only parked events have one
		q.States = wanted(q.States, []outbox.State{outbox.Retrying, outbox.Following, outbox.Dead, outbox.Discarded, outbox.Cancelled})
		if len(q.States) == 0 {
			return outbox.Results{}, nil
		}
	}
	err := s.between(ctx, &search)
	if err == nil {
		err = s.c.d.Read(ctx, search.run)
	}
	if err != nil {
		return outbox.Results{}, fmt.Errorf("search events: %w", err)
	}
	return search.results, nil
}

// wanted returns the asked states among the allowed states. Without asked states it returns all
// allowed states.
func wanted[S comparable](asked, allowed []S) []S {
	if len(asked) == 0 {
		return allowed
	}
	return slices.DeleteFunc(slices.Clone(allowed), func(state S) bool { return !slices.Contains(asked, state) })
}

// eventSearch is one search.
type eventSearch struct {
	c     *Core
	q     *outbox.Query
	after int64 // no event up to this place fits

	ids     []int64 // of events that may fit
	horizon int64   // below it, more events may fit
	results outbox.Results
}

// between narrows a search to the part of the log in which q.Since and q.Until are. Times of writing
// ascend with places, except between concurrent transactions.
func (s *Store) between(ctx context.Context, search *eventSearch) (err error) {
	if !search.q.Since.IsZero() {
		search.after, err = s.writtenBefore(ctx, search.q.Since.Add(-clockSlack))
	}
	if err == nil && !search.q.Until.IsZero() {
		var last int64
		last, err = s.writtenBefore(ctx, search.q.Until.Add(clockSlack))
		search.q.Before = min(search.q.Before, last+1)
	}
	return err
}

func (s *eventSearch) run(ctx context.Context, tx *sql.Tx) error {
	if err := s.look(ctx, tx); err != nil {
		return err
	}
	slices.SortFunc(s.ids, func(a, b int64) int { return int(max(-1, min(1, b-a))) })
	s.ids = slices.DeleteFunc(s.ids, func(id int64) bool { return id < s.horizon })
	s.results.Before = s.horizon
	f := facts{eventSearch: s, tx: tx}
	for ids := range slices.Chunk(s.ids, max(defaultLimit, min(maxListed, s.q.Limit+1))) {
		if err := f.read(ctx, ids); err != nil {
			return err
		}
		if len(s.results.Events) > s.q.Limit {
			s.results.Events = s.results.Events[:s.q.Limit]
			s.results.Before = s.results.Events[s.q.Limit-1].Seq
			break
		}
	}
	return f.explain(ctx)
}

// conditions returns what q demands of an event e in the log.
func (s *eventSearch) conditions() *where {
	w := &where{}
	w.text("e.topic", s.q.Topic)
	w.text("e.{event_key}", s.q.Key)
	w.text("e.correlation_id", s.q.CorrelationID)
	w.text("e.source", s.q.Source)
	if named := s.q.Named; named != "" {
		w.add("(e.{event_key} = ? OR e.source = ? OR e.correlation_id = ?)", named, named, named)
	}
	if part := strings.ToLower(s.q.Part); part != "" {
		w.add("(INSTR(LOWER(e.{event_key}), ?) > 0 OR INSTR(LOWER(e.source), ?) > 0 OR INSTR(LOWER(e.correlation_id), ?) > 0)", Text(part), Text(part), Text(part))
	}
	w.during("e.created_at", s.q.Since, s.q.Until)
	if s.q.To != uuid.Nil {
		w.add("e.dispatch_id >= ? AND e.dispatch_id <= ?", s.q.From[:], s.q.To[:])
	}
	return w
}

// look reads the places of events that may fit.
func (s *eventSearch) look(ctx context.Context, tx *sql.Tx) error {
	q := s.q
	if given := len(q.IDs)+len(q.Seqs) > 0; given || q.To != uuid.Nil {
		done, err := s.given(ctx, tx, given)
		if err != nil || done {
			return err
		}
	}
	look := q.Scan
	delivered := len(q.States) == 0 || slices.Contains(q.States, outbox.DeliveredState)
	if all := len(q.States) == 0 || !delivered; all && q.Error == "" && len(s.conditions().terms) == 0 {
		look = min(look, q.Limit+1) // every event that is looked at fits
	}
	if !delivered {
		return s.states(ctx, tx, look)
	}
	var n int
	var low sql.NullInt64
	err := s.c.One(ctx, tx, []any{&n, &low}, `SELECT COUNT(*), MIN(e.id) FROM (
		SELECT id FROM {outbox_events} WHERE id < ? AND id > ? ORDER BY id DESC LIMIT ?) e`, q.Before, s.after, look)
	if err != nil || n == 0 {
		return err
	}
	if n == look {
		s.horizon = low.Int64
	}
	w := s.conditions()
	w.add("e.id < ? AND e.id >= ?", q.Before, low.Int64)
	s.ids, err = s.c.IDs(ctx, tx, `SELECT e.id FROM {outbox_events} e WHERE `+w.String(), w.args...)
	return err
}

// given finds events by dispatch ID and by place. done is false if there are too many.
func (s *eventSearch) given(ctx context.Context, tx *sql.Tx, given bool) (done bool, err error) {
	w := s.conditions()
	w.add("e.id < ?", s.q.Before)
	w.ids("e.dispatch_id", s.q.IDs)
	if len(s.q.Seqs) > 0 {
		w.add("e.id IN ?", s.q.Seqs)
	}
	most := math.MaxInt64
	if !given {
		most = s.q.Scan + 1
	}
	ids, err := s.c.IDs(ctx, tx, `SELECT e.id FROM {outbox_events} e WHERE `+w.String()+` LIMIT ?`, w.and(most)...)
	if err != nil || len(ids) == most {
		return false, err
	}
	s.ids = ids
	return true, nil
}

// states finds events that are not delivered by the tables of their states. The queue has its order
// by shard.
func (s *eventSearch) states(ctx context.Context, tx *sql.Tx, look int) error {
	q := s.q
	source := func(most int, query string, args ...any) error {
		ids, err := s.c.IDs(ctx, tx, query+` ORDER BY id DESC LIMIT ?`, append(args, most)...)
		if len(ids) == most {
			s.horizon = max(s.horizon, ids[most-1])
		}
		s.ids = append(s.ids, ids...)
		return err
	}
	if slices.Contains(q.States, outbox.PendingState) {
		shards, err := s.c.IDs(ctx, tx, `SELECT shard FROM {outbox_shards}`)
		if err != nil {
			return err
		}
		each := max(min(look, q.Limit+1), look/max(1, len(shards)))
		for _, shard := range shards {
			if err := source(each, `SELECT id FROM {outbox_queue} WHERE shard = ? AND id < ?`, shard, q.Before); err != nil {
				return err
			}
		}
	}
	if slices.Contains(q.States, outbox.DeferredState) {
		if err := source(look, `SELECT id FROM {outbox_deferred} WHERE id < ?`, q.Before); err != nil {
			return err
		}
	}
	w := &where{}
	w.add("p.id < ?", q.Before)
	w.parked(names(q.States), q.Error, time.Time{}, time.Time{})
	w.text("p.{event_key}", q.Key)
	return source(look, `SELECT p.id FROM {outbox_parked} p WHERE `+w.String(), w.args...)
}

// facts reads what became of events.
type facts struct {
	*eventSearch
	tx *sql.Tx

	now    int64
	owners []owner // of the shards of the results
}

// owner is who owns the shard of an event, and until when.
type owner struct {
	name  sql.NullString
	until int64
}

// searchColumns are the columns of an event c that may be in the log e, the queue q, deferred d or
// parked p, in shard s.
const searchColumns = `SELECT c.value, COALESCE(e.shard, p.shard, d.shard, 0), q.id IS NOT NULL, d.due_at, p.state, p.attempts, p.parked_at, p.next_attempt_at,
		COALESCE(p.last_error, ''), COALESCE(p.reason, ''), e.created_at, s.owner, COALESCE(s.lease_until, 0),
		CASE WHEN e.{event_key} <> '' AND (q.id IS NOT NULL OR {live p}) THEN (
			SELECT MIN(h.id) FROM {outbox_parked} h
			WHERE h.shard = e.shard AND {live h} AND h.{event_key} = e.{event_key} AND h.id < c.value) END,`

const searchTables = `
		FROM ? c
		LEFT JOIN {outbox_events} e ON e.id = c.value
		LEFT JOIN {outbox_queue} q ON q.shard = e.shard AND q.id = e.id
		LEFT JOIN {outbox_deferred} d ON d.id = c.value
		LEFT JOIN {outbox_parked} p ON p.id = c.value
		LEFT JOIN {outbox_shards} s ON s.shard = COALESCE(e.shard, p.shard, d.shard)
		WHERE 1 = 1`

// read adds the events among ids that fit, in descending order.
func (f *facts) read(ctx context.Context, ids []int64) error {
	columns := RecordColumns
	if !f.q.Content {
		columns = strings.Replace(columns, "e.headers, e.payload", "'{}', ''", 1)
	}
	w := f.conditions()
	term := ""
	if len(w.terms) > 0 {
		term = " AND " + w.String()
	}
	return f.c.Each(ctx, f.tx, func(rows *sql.Rows) error {
		e, o, err := scanFound(rows, f.q.Content)
		if err != nil {
			return err
		}
		if e.State != "" && (len(f.q.States) == 0 || slices.Contains(f.q.States, e.State)) {
			f.results.Events, f.owners = append(f.results.Events, e), append(f.owners, o)
		}
		return nil
	}, searchColumns+columns+searchTables+term+` ORDER BY c.value DESC`, append([]any{Rows(ids)}, w.args...)...)
}

func scanFound(rows *sql.Rows, content bool) (e outbox.Found, o owner, err error) {
	var pending bool
	var due, attempts, parked, next, written, waits, id sql.NullInt64
	var state sql.NullString
	_, err = ScanRecord(rows, &e.Record, &id, &e.Seq, &e.Shard, &pending, &due, &state, &attempts, &parked, &next,
		&e.LastError, &e.Reason, &written, &o.name, &o.until, &waits)
	e.WaitsFor, e.WrittenAt = waits.Int64, Optional(written)
	switch {
	case pending:
		e.State = outbox.PendingState
	case due.Valid:
		e.State, e.NextAttemptAt = outbox.DeferredState, Optional(due)
	case state.Valid:
		e.State, e.Attempts, e.ParkedAt, e.NextAttemptAt = outbox.State(state.String), int(attempts.Int64), Optional(parked), Optional(next)
	case id.Valid:
		e.State = outbox.DeliveredState
	}
	if !id.Valid {
		e.Why = "the log has no such event"
	}
	if !content {
		e.Payload = nil
	}
	return e, o, err
}

// explain adds why the events that are found are in their states.
func (f *facts) explain(ctx context.Context) error {
	list := f.results.Events
	if len(list) == 0 {
		return nil
	}
	var err error
	if f.now, err = f.c.Now(ctx, f.tx); err != nil {
		return err
	}
	stalled, err := f.readStalled(ctx)
	if err != nil {
		return err
	}
	var delivered []int64
	for i := range list {
		e := &list[i]
		if e.State == outbox.DeliveredState {
			delivered = append(delivered, e.Seq)
		}
		if e.Why == "" {
			says, err := stalled.of(ctx, e, f.owners[i].name.String)
			if err != nil {
				return err
			}
			e.Why = f.why(e, f.owners[i], says)
		}
	}
	return f.readDelivered(ctx, delivered)
}

// why returns the reason that the view outbox_status shows. says is what is known of the route that
// the event waits for.
func (f *facts) why(e *outbox.Found, o owner, says string) string {
	later := !e.NextAttemptAt.IsZero() && e.NextAttemptAt.UnixMicro() > f.now
	switch {
	case e.State == outbox.DeliveredState:
		return "delivered"
	case e.State == outbox.Discarded, e.State == outbox.Cancelled:
		return string(e.State) + ": " + e.Reason
	case e.State == outbox.Dead:
		return "its attempts are used up"
	case e.WaitsFor != 0 && says != "":
		return fmt.Sprintf("waits for event %d of its key, whose %s", e.WaitsFor, says)
	case e.WaitsFor != 0:
		return fmt.Sprintf("waits for event %d of its key", e.WaitsFor)
	case e.State == outbox.DeferredState && later:
		return "waits for its time"
	case !o.name.Valid:
		return "no relay owns its shard"
	case o.until <= f.now:
		return "the lease of relay " + o.name.String + " has expired"
	case e.State == outbox.Following:
		return "waits for an operator to settle a dead event of its key"
	case later:
		return "waits for its next attempt"
	case says != "":
		return "its " + says
	}
	return "waits to be sent by relay " + o.name.String
}

// readDelivered adds when events were delivered, and after how many failed attempts. The index on the
// spans of receipts covers x, so that only receipts in question are read.
func (f *facts) readDelivered(ctx context.Context, seqs []int64) error {
	if len(seqs) == 0 {
		return nil
	}
	attempts, at := make(map[int64]int), make(map[int64]time.Time)
	err := f.c.Each(ctx, f.tx, func(rows *sql.Rows) error {
		var seq int64
		var n int
		err := rows.Scan(&seq, &n)
		attempts[seq] = n
		return err
	}, `SELECT event_id, COUNT(*) FROM {outbox_attempts} WHERE event_id IN ? AND outcome NOT IN ('redriven', 'discarded', 'replayed') GROUP BY event_id`, seqs)
	if err == nil {
		err = f.c.Each(ctx, f.tx, func(rows *sql.Rows) error {
			var seq, last int64
			err := rows.Scan(&seq, &last)
			at[seq] = Instant(last)
			return err
		}, `SELECT e.id, MAX(r.delivered_at) FROM {outbox_events} e {then_join} {outbox_receipts} x ON x.first_id <= e.id AND x.last_id >= e.id
			{then_join} {outbox_receipts} r ON r.id = x.id WHERE e.id IN ? AND {in_receipt} GROUP BY e.id`, seqs)
	}
	for i := range f.results.Events {
		if e := &f.results.Events[i]; e.State == outbox.DeliveredState {
			e.Attempts, e.DeliveredAt = attempts[e.Seq], at[e.Seq]
		}
	}
	return err
}

// Causes implements [outbox.Searcher].
func (s *Store) Causes(ctx context.Context, f outbox.Filter) ([]outbox.Cause, error) {
	f.After = 0
	w := selects(f)
	list, err := collect(ctx, s.c, s.c.DB, func(rows *sql.Rows) (c outbox.Cause, err error) {
		var example sql.RawBytes
		var first, last int64
		err = rows.Scan(&c.State, &c.Topic, &c.Error, &c.Count, &first, &last, &example)
		c.First, c.Last = Instant(first), Instant(last)
		copy(c.Example[:], example)
		return c, err
	}, `SELECT g.state, g.topic, g.last_error, g.n, g.first_at, g.last_at, e.dispatch_id FROM (
			SELECT p.state, COALESCE(e.topic, '') AS topic, p.last_error, COUNT(*) AS n,
				MIN(p.parked_at) AS first_at, MAX(p.parked_at) AS last_at, MAX(p.id) AS id
			FROM {outbox_parked} p LEFT JOIN {outbox_events} e ON e.id = p.id
			WHERE `+w.String()+` GROUP BY p.state, COALESCE(e.topic, ''), p.last_error ORDER BY n DESC, id DESC LIMIT ?) g
		LEFT JOIN {outbox_events} e ON e.id = g.id ORDER BY g.n DESC, g.id DESC`, w.and(limitOf(f.Limit))...)
	if err != nil {
		return nil, fmt.Errorf("count causes: %w", err)
	}
	return list, nil
}
