package postgres_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/storetest"
)

func TestAllAttemptsAreKeptOnRequest(t *testing.T) {
	t.Parallel()
	pool := newPool(t, nil)
	cfg := postgres.Config{Schema: testenv.Name(t), AllAttempts: true}
	names, err := migrations.PostgresNames(cfg.Schema, cfg.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, Store: newStore(t, pool, cfg), pool: pool, names: names}
	queued := r.write(event("key", "0"), event("key", "1"))
	lease := r.acquire("relay", time.Hour)[queued[0].Shard]
	_, err = r.Mark(r.ctx(), "relay", []outbox.Mark{markOf(lease, queued[0])})
	r.ok(err)
	_, err = r.Park(r.ctx(), "relay", lease, []outbox.Failure{{Seq: queued[1].Seq, Round: queued[1].Round, Attempts: 1, Error: "not now"}})
	r.ok(err)
	_, err = r.Sent(r.ctx(), "relay", []outbox.Mark{markOf(lease, queued[1])}, false)
	r.ok(err)
	for i, want := range [][]string{{"confirmed"}, {"confirmed", "confirmed"}} {
		attempts, err := r.Attempts(r.ctx(), queued[i].ID, 10)
		r.ok(err)
		var got []string
		for _, a := range attempts {
			if a.Relay != "relay" || a.At.IsZero() {
				t.Errorf("attempt is %+v", a)
			}
			got = append(got, a.Outcome)
		}
		if len(got) != len(want) || got[len(got)-1] != "confirmed" {
			t.Errorf("attempts are %q, want as many as %q", got, want)
		}
	}
	status := r.names.Table("outbox_status")
	for _, q := range queued {
		if at := value[*time.Time](r, `SELECT delivered_at FROM `+status+` WHERE dispatch_id = $1 AND state = 'delivered'`, q.ID.String()); at == nil || time.Since(*at) > time.Minute {
			t.Errorf("event %d was delivered at %v", q.Seq, at)
		}
	}
	rows, err := pool.Query(t.Context(), `EXPLAIN SELECT * FROM `+status+` WHERE state <> 'delivered'`)
	r.ok(err)
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	r.ok(err)
	if slices.ContainsFunc(plan, func(line string) bool { return strings.Contains(line, "outbox_receipts") }) {
		t.Errorf("what waits is looked for among what was delivered:\n%s", strings.Join(plan, "\n"))
	}
}

func TestAppliedMessagesAreInTheHistoryOnRequest(t *testing.T) {
	t.Parallel()
	storetest.AllAttempts(t, inboxFixtureOf(t, newPool(t, nil), postgres.Config{Schema: testenv.Name(t), AllAttempts: true}))
}

func TestStatusSaysThatARouteDoesNotWork(t *testing.T) {
	t.Parallel()
	pool := newPool(t, nil)
	cfg := postgres.Config{Schema: testenv.Name(t), Prefix: "p_"}
	storetest.RouteStatus(t, outboxFixtureOf(t, pool, cfg), func(id uuid.UUID) (state, why string, err error) {
		err = pool.QueryRow(t.Context(), `SELECT state, why FROM `+pgx.Identifier{cfg.Schema, "p_outbox_status"}.Sanitize()+
			` WHERE dispatch_id = $1`, id.String()).Scan(&state, &why)
		return state, why, err
	})
}

func TestStatusSaysWhatBecameOfAMessage(t *testing.T) {
	t.Parallel()
	pool := newPool(t, nil)
	cfg := postgres.Config{Schema: testenv.Name(t), Prefix: "p_"}
	storetest.InboxStatus(t, inboxFixtureOf(t, pool, cfg), func(id uuid.UUID) (state, why string, attempts int, err error) {
		err = pool.QueryRow(t.Context(), `SELECT state, why, attempts FROM `+pgx.Identifier{cfg.Schema, "p_inbox_status"}.Sanitize()+
			` WHERE dispatch_id = $1`, id.String()).Scan(&state, &why, &attempts)
		return state, why, attempts, err
	})
}

func TestReasonsOfOperatorsAreReadInSQL(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	queued := r.write(event("key", "0"))
	lease := r.acquire("relay", time.Hour)[queued[0].Shard]
	_, err := r.Park(r.ctx(), "relay", lease, []outbox.Failure{{Seq: queued[0].Seq, Round: queued[0].Round, Attempts: 1, Dead: true, Error: "too large"}})
	r.ok(err)
	_, _, err = r.Redrive(r.ctx(), outbox.Filter{}, "limit is raised")
	r.ok(err)
	_, err = r.Discard(r.ctx(), outbox.Filter{}, "order was a test")
	r.ok(err)
	got := value[string](r, `SELECT string_agg(a.outcome || ': ' || a.error, ', ' ORDER BY a.n)
		FROM `+r.names.Table("outbox_attempts")+` a JOIN `+r.names.Table("outbox_status")+` s ON s.id = a.event_id
		WHERE s.dispatch_id = $1 AND a.relay = ''`, queued[0].ID.String())
	if want := "redriven: limit is raised, discarded: order was a test"; got != want {
		t.Errorf("reasons are %q, want %q", got, want)
	}
}
