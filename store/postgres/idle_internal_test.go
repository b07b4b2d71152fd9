package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/store/outbox"
)

// A process may be stopped for as long as anybody likes, as by SIGSTOP, between two statements of a
// replay.
func TestReplayThatIsStoppedHoldsUpNoRelay(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s, err := New(pool, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Migrate(t.Context(), pool, Config{}); err != nil {
		t.Fatal(err)
	}
	const ttl = time.Minute // which a slow machine does not use up
	grants, err := s.Acquire(t.Context(), "relay", ttl, idgen.Shards)
	if err != nil {
		t.Fatal(err)
	}
	leases := make([]outbox.Lease, len(grants))
	for i, g := range grants {
		leases[i] = g.Lease
	}
	var idle time.Duration
	locked, renewed := false, false
	for !locked {
		start := time.Now()
		err = s.exclusively(t.Context(), "on", func(tx pgx.Tx) error {
			err := tx.QueryRow(t.Context(), `SELECT current_setting('idle_in_transaction_session_timeout')::interval
				FROM (SELECT count(*) FROM (SELECT FROM boxpair.outbox_shards FOR UPDATE) s) n`).Scan(&idle)
			if err != nil {
				return err
			}
			locked = true
			ctx, cancel := context.WithTimeout(t.Context(), ttl/2) // stopped meanwhile
			defer cancel()
			renewals, err := s.Renew(ctx, "relay", ttl, leases)
			renewed = err == nil && len(renewals) == idgen.Shards
			return err
		})
		if !locked && time.Since(start) < time.Second { // else the machine was too slow: the session was idle before
			t.Fatal(err)
		}
	}
	const usual = 10 * time.Second // the default lease of a relay
	if idle <= 0 || idle > usual/2 {
		t.Errorf("the server waits for %v, want well within a lease of %v", idle, usual)
	}
	if !renewed {
		t.Errorf("leases were not renewed: %v", err)
	}
	if err == nil {
		t.Error("what was rolled back meanwhile passed for committed")
	}
	if again, err := s.Acquire(t.Context(), "other", ttl, idgen.Shards); err != nil || len(again) != 0 {
		t.Errorf("%d leases were lost meanwhile, %v", len(again), err)
	}
}
