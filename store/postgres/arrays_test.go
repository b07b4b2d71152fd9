package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
)

func TestManyEventsAreWrittenInEveryModeOfPgx(t *testing.T) {
	t.Parallel()
	pool := newPool(t, nil)
	newStore(t, pool, postgres.Config{})
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			pool := poolOn(t, pool.Config().ConnString(), func(cfg *pgxpool.Config) { cfg.ConnConfig.DefaultQueryExecMode = mode })
			store, err := postgres.New(pool, postgres.Config{})
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range []int{1, 2, 40} {
				appendAndCompare(t, pool, store, n)
			}
		})
	}
}

// appendAndCompare writes n events in a transaction and compares the rows with them.
func appendAndCompare(t *testing.T, pool *pgxpool.Pool, store *postgres.Store, n int) {
	t.Helper()
	records := make([]outbox.Record, n)
	for i := range records {
		records[i] = event("key", "payload")
		records[i].Version, records[i].Index, records[i].TraceState = 1<<40+int64(i), i, "a=b"
		records[i].Headers = map[string]string{"name": "ä\"\\"}
	}
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		known, err := store.Append(t.Context(), tx, uuid.New(), records)
		if err == nil && len(known) != len(records) {
			t.Errorf("%d of %d records are told of", len(known), len(records))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range records {
		var same bool
		r := &records[i]
		err := pool.QueryRow(t.Context(), `SELECT digest = $2 AND payload = $3 AND version = $4 AND index = $5
			AND tracestate = $6 AND headers->>'name' = $7 AND key = $8 AND topic = $9
			AND abs(extract(epoch FROM occurred_at - $10::timestamptz)) < 0.001
			FROM boxpair.outbox_events WHERE dispatch_id = $1`,
			r.ID.String(), r.Digest[:], r.Payload, r.Version, r.Index, r.TraceState, r.Headers["name"], r.Key, r.Topic,
			r.OccurredAt).Scan(&same)
		if err != nil || !same {
			t.Fatalf("record %d: %v, %v", i, same, err)
		}
	}
}

func TestEventWithoutATimeGetsTheDatabasesBesideEventsWithOne(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	given := time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, times := range map[string][]time.Time{
		"one": {{}}, "all": {{}, {}}, "first": {{}, given}, "last": {given, given, {}}, "none": {given, given},
	} {
		records := make([]outbox.Record, len(times))
		for i := range records {
			records[i] = event("key", "payload")
			records[i].OccurredAt = times[i]
		}
		r.ok(r.Transact(r.ctx(), func(ctx context.Context, tx pgx.Tx) error {
			_, err := r.Append(ctx, tx, uuid.New(), records)
			return err
		}))
		for i := range records {
			at := value[time.Time](r, "SELECT occurred_at FROM "+r.names.Table("outbox_events")+" WHERE dispatch_id = $1", records[i].ID.String())
			if !times[i].IsZero() && !at.Equal(given) || times[i].IsZero() && time.Since(at).Abs() > time.Hour {
				t.Errorf("%s: event %d occurred at %v, want %v", name, i, at, times[i])
			}
		}
	}
}
