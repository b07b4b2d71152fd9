package postgres_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
)

// TestQuestionsOfTheDocumentationAreAnswered runs the SQL of docs/monitoring.md on tables that have
// something in every state that is asked for.
func TestQuestionsOfTheDocumentationAreAnswered(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) < 8 {
		t.Fatalf("there are only %d questions", len(blocks))
	}
	pool := newPool(t, nil)
	names, err := migrations.PostgresNames("", "")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, Store: newStore(t, pool, postgres.Config{}), pool: pool, names: names}
	plantEveryState(r)
	plantReplayed(r)
	for _, b := range blocks {
		rows, err := pool.Query(r.ctx(), b[1])
		r.ok(err)
		answer, err := pgx.CollectRows(rows, pgx.RowToMap)
		if err != nil || len(answer) == 0 {
			t.Errorf("%v, %d rows of\n%s", err, len(answer), b[1])
		}
		t.Logf("%s%v", b[1], answer)
		if strings.Contains(b[1], "AS latency") && (len(answer) != 1 || answer[0]["topic"] == "order.replayed") {
			t.Errorf("the replayed event counts: %v", answer)
		}
	}
}

func plantEveryState(r *rig) {
	r.Helper()
	queued := r.write(event("a", "delivered"), event("b", "retrying"), event("c", "dead"), event("d", "pending"))
	leases := r.acquire("relay", time.Hour)
	lease := func(i int) outbox.Lease { return leases[queued[i].Shard] }
	_, err := r.Mark(r.ctx(), "relay", []outbox.Mark{markOf(lease(0), queued[0])})
	r.ok(err)
	_, err = r.Park(r.ctx(), "relay", lease(1), []outbox.Failure{{Seq: queued[1].Seq, Round: queued[1].Round, Attempts: 9, RetryIn: time.Hour, Error: "no route"}})
	r.ok(err)
	_, err = r.Park(r.ctx(), "relay", lease(2), []outbox.Failure{{Seq: queued[2].Seq, Round: queued[2].Round, Attempts: 10, Dead: true, Error: "no route"}})
	r.ok(err)
	r.exec(`INSERT INTO boxpair.inbox_consumers (name, window_size) VALUES ('stock/reserve', '14 days')`)
	r.ok(r.ReportHandlers(r.ctx(), inbox.Process{Name: "stock-1", At: time.Now(), Host: "south"}, time.Hour, []inbox.HandlerReport{{Consumer: "stock/reserve"}}))
	r.exec(`INSERT INTO boxpair.inbox_parked
		(consumer, dispatch_id, digest, topic, key, ordered, claimed, metadata, payload, state, attempts, next_attempt_at, last_error)
		SELECT id, gen_random_uuid(), decode(repeat('00', 16), 'hex'), 'order.placed', 'k', true, true, '{}', '', 'retrying', 8, now(), 'no stock'
		FROM boxpair.inbox_consumers`)
}

// plantReplayed writes an event that is delivered, replayed and delivered again.
func plantReplayed(r *rig) {
	r.Helper()
	const id = 1000
	r.exec(`INSERT INTO boxpair.outbox_events (id, dispatch_id, digest, shard, topic, producer, payload, created_at) OVERRIDING SYSTEM VALUE
		VALUES ($1, gen_random_uuid(), decode(repeat('00', 16), 'hex'), 0, 'order.replayed', 'orders', '', now() - interval '7 days')`, id)
	r.exec(`DELETE FROM boxpair.outbox_queue WHERE id = $1`, id)
	r.exec(`INSERT INTO boxpair.outbox_attempts (event_id, outcome, at) VALUES ($1, 'replayed', clock_timestamp() - interval '1 minute')`, id)
	r.exec(`INSERT INTO boxpair.outbox_receipts (relay, event_ids) VALUES ('relay', ARRAY[$1::bigint])`, id)
}
