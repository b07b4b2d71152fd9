package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// traced records the searches of a pool.
type traced struct{ searches []*pgx.QueuedQuery }

func (r *traced) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	r.searches = append(r.searches, data.Batch.QueuedQueries[1:]...)
	return ctx
}

func (r *traced) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (r *traced) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (r *traced) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (r *traced) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// newTraced is newPlanned with a record of the statements.
func newTraced(t *testing.T) (*planned, *traced) {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	record := &traced{}
	cfg.ConnConfig.Tracer = record
	return newPlannedOver(t, cfg), record
}

// expectBlocks does something, and checks how many blocks its statements touch.
func (p *planned) expectBlocks(name string, record *traced, most int, do func()) {
	p.Helper()
	record.searches = nil
	begin := time.Now()
	do()
	took := time.Since(begin)
	searches, blocks := record.searches, 0
	for _, q := range searches {
		tx, err := p.pool.Begin(p.Context())
		if err != nil {
			p.Fatal(err)
		}
		if _, err := tx.Exec(p.Context(), searchPlans); err != nil {
			p.Fatal(err)
		}
		plan := p.explainSQL(tx, q.SQL, q.Arguments...)
		if err := tx.Rollback(p.Context()); err != nil {
			p.Fatal(err)
		}
		blocks += plan.Hit + plan.Read
	}
	p.Logf("%s: %d blocks, %v", name, blocks, took)
	if blocks > most {
		p.Errorf("%s touches %d blocks, want at most %d", name, blocks, most)
	}
}

// TestSearchInAMillionEventsIsShort searches a log of a million delivered events, among which a few
// are in other states.
func TestSearchInAMillionEventsIsShort(t *testing.T) {
	t.Parallel()
	p, record := newTraced(t)
	const n, batch = 1_000_000, 100
	p.fill(n)
	p.run(`INSERT INTO boxpair.outbox_receipts (relay, event_ids)
		SELECT 'relay', array_agg(id ORDER BY id) FROM boxpair.outbox_queue GROUP BY id / $1 ORDER BY min(id)`, batch)
	p.run(`DELETE FROM boxpair.outbox_queue WHERE id % 100000 <> 17`)
	p.run(`INSERT INTO boxpair.outbox_parked (id, shard, key, state, next_attempt_at, last_error)
		SELECT id, shard, key, (ARRAY['retrying', 'following', 'dead', 'discarded', 'cancelled'])[id % 100 - 20],
			CASE WHEN id % 100 = 21 THEN now() END, 'refused'
		FROM boxpair.outbox_events WHERE id % 100000 BETWEEN 21 AND 25`)
	p.run(`SELECT brin_summarize_new_values('boxpair.outbox_receipts_span')`)
	p.own()
	p.run("VACUUM ANALYZE boxpair.outbox_events")
	p.run("VACUUM boxpair.outbox_queue")
	var id uuid.UUID
	if err := p.pool.QueryRow(t.Context(), `SELECT dispatch_id FROM boxpair.outbox_events WHERE id = 1234`).Scan((*[16]byte)(&id)); err != nil {
		t.Fatal(err)
	}
	from, to := id, id
	for i := 4; i < len(id); i++ {
		from[i], to[i] = 0, 0xff
	}
	states := func(states ...outbox.State) outbox.Query { return outbox.Query{States: states} }
	for _, c := range []struct {
		name        string
		q           outbox.Query
		found, most int // events and blocks
	}{
		{"newest events", outbox.Query{}, 100, 4000},
		{"dispatch ID", outbox.Query{IDs: []uuid.UUID{id}}, 1, 200},
		{"first digits of a dispatch ID", outbox.Query{From: from, To: to}, 1, 200},
		{"place", outbox.Query{Seqs: []int64{777}}, 1, 200},
		{"pending", states(outbox.PendingState), 10, 1000},
		{"retrying", states(outbox.Retrying), 10, 500},
		{"following", states(outbox.Following), 10, 500},
		{"dead", states(outbox.Dead), 10, 500},
		{"discarded", states(outbox.Discarded), 10, 500},
		{"cancelled", states(outbox.Cancelled), 10, 500},
		{"deferred", states(outbox.DeferredState), 0, 500},
		{"delivered", states(outbox.DeliveredState), 100, 4000},
		{"last error", outbox.Query{Error: "fus"}, 50, 1500},
		{"key", outbox.Query{Key: "key 7"}, 31, 3000}, // of the last 20,000
		{"key that waits", outbox.Query{Key: "key 7", States: []outbox.State{outbox.PendingState, outbox.Retrying, outbox.Dead}}, 0, 100},
		{"topic that no event has", outbox.Query{Topic: "other"}, 0, 3000},
		{"time long ago", outbox.Query{Until: time.Now().Add(-time.Hour)}, 0, 500},
		{"many dispatch IDs", outbox.Query{To: uuid.UUID{0x10}}, 100, 3000 + 2*20_000},
	} {
		p.expectBlocks(c.name, record, c.most, func() {
			r, err := p.Search(t.Context(), c.q)
			if err != nil || len(r.Events) != c.found {
				t.Errorf("%s: found %d events, %v, want %d", c.name, len(r.Events), err, c.found)
			}
		})
	}
}

// TestSearchInABacklogIsShort searches a queue with a long backlog of a route that does not work.
func TestSearchInABacklogIsShort(t *testing.T) {
	t.Parallel()
	p, record := newTraced(t)
	p.fill(200_000)
	p.run(`UPDATE boxpair.outbox_events SET topic = 'other' WHERE id % 640 BETWEEN 1 AND 64`)
	p.own()
	p.run(`INSERT INTO boxpair.outbox_relays (id, seen_until) VALUES ('relay', now() + interval '1 hour')`)
	p.run(`INSERT INTO boxpair.outbox_routes VALUES ('relay', 'topic', 'exchange', 'paused', now(), 'stock is counted')`)
	for name, q := range map[string]outbox.Query{
		"newest": {}, "pending": {States: []outbox.State{outbox.PendingState}}, "pending of another route": {States: []outbox.State{outbox.PendingState}, Topic: "other"},
	} {
		p.expectBlocks(name, record, 200_000, func() {
			r, err := p.Search(t.Context(), q)
			if err != nil || len(r.Events) != 100 {
				t.Errorf("%s: found %d events, %v, want 100", name, len(r.Events), err)
			}
		})
	}
}

// TestSearchOfAKeyBesideManyDiscardedEventsIsShort: no index has their keys.
func TestSearchOfAKeyBesideManyDiscardedEventsIsShort(t *testing.T) {
	t.Parallel()
	p, record := newTraced(t)
	p.fill(20_000)
	p.run(`WITH q AS (DELETE FROM boxpair.outbox_queue RETURNING id, shard)
		INSERT INTO boxpair.outbox_parked (id, shard, key, state, reason, discarded_at) SELECT id, shard, 'key', 'discarded', 'old', now() FROM q`)
	p.own()
	p.run("VACUUM ANALYZE boxpair.outbox_parked")
	p.expectBlocks("key", record, 200, func() {
		r, err := p.Search(t.Context(), outbox.Query{Key: "key", States: []outbox.State{outbox.PendingState, outbox.Retrying, outbox.Dead}})
		if err != nil || len(r.Events) > 0 {
			t.Errorf("found %d events, %v", len(r.Events), err)
		}
	})
}

// TestSearchInManyAppliedMessagesIsShort searches inboxes of several consumers with many applied
// messages, among which a few are parked.
func TestSearchInManyAppliedMessagesIsShort(t *testing.T) {
	t.Parallel()
	p, record := newTraced(t)
	p.run(`INSERT INTO boxpair.inbox_consumers (name, window_size) SELECT 'service/' || i, interval '1 day' FROM generate_series(1, 5) i`)
	p.run(`INSERT INTO boxpair.inbox (consumer, dispatch_id, stamp, applied_at)
		SELECT 1 + i % 5, gen_random_uuid(), now() + i * interval '1 ms', now() + i * interval '1 ms' FROM generate_series(1, 300000) i`)
	p.run(`INSERT INTO boxpair.inbox_parked (consumer, dispatch_id, digest, ordered, claimed, state, next_attempt_at, topic, key, metadata, payload, last_error)
		SELECT 1 + i % 5, gen_random_uuid(), '\x00000000000000000000000000000000', false, false, CASE WHEN i % 2 = 0 THEN 'dead' ELSE 'retrying' END,
			CASE WHEN i % 2 = 1 THEN now() END, 'topic', 'key ' || i, '{}', 'payload', 'refused' FROM generate_series(1, 50) i`)
	p.run("VACUUM ANALYZE boxpair.inbox")
	var id uuid.UUID
	if err := p.pool.QueryRow(t.Context(), `SELECT dispatch_id FROM boxpair.inbox OFFSET 1234 LIMIT 1`).Scan((*[16]byte)(&id)); err != nil {
		t.Fatal(err)
	}
	from, to := id, id
	for i := 4; i < len(id); i++ {
		from[i], to[i] = 0, 0xff
	}
	for _, c := range []struct {
		name        string
		q           inbox.Query
		found, most int // messages and blocks
	}{
		{"newest messages", inbox.Query{}, 100, 5000},
		{"dispatch ID", inbox.Query{IDs: []uuid.UUID{id}}, 1, 200},
		{"first digits of a dispatch ID", inbox.Query{From: from, To: to}, 1, 200},
		{"applied of a consumer", inbox.Query{Consumer: "service/3", States: []inbox.State{inbox.AppliedState}}, 100, 3000},
		{"dead", inbox.Query{States: []inbox.State{inbox.Dead}}, 25, 1000},
		{"key", inbox.Query{Key: "key 7"}, 1, 500},
		{"named", inbox.Query{Named: "key 7"}, 1, 500},
		{"named, beyond the bound", inbox.Query{Named: "key 7", Scan: 5}, 0, 200},
		{"since", inbox.Query{Since: time.Now().Add(time.Hour)}, 0, 30_000},
	} {
		p.expectBlocks(c.name, record, c.most, func() {
			r, err := p.SearchMessages(t.Context(), c.q)
			if err != nil || len(r.Messages) != c.found {
				t.Errorf("%s: found %d messages, %v, want %d", c.name, len(r.Messages), err, c.found)
			}
		})
	}
}
