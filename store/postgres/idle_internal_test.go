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
	const ttl = 10 * time.Second // the default
	grants, err := s.Acquire(t.Context(), "relay", ttl, idgen.Shards)
	if err != nil {
		t.Fatal(err)
	}
	leases := make([]outbox.Lease, len(grants))
	for i, g := range grants {
		leases[i] = g.Lease
	}
	renewed := false
	err = s.exclusively(t.Context(), "on", func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "SELECT FROM boxpair.outbox_shards FOR UPDATE"); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), ttl/2) // stopped meanwhile
		defer cancel()
		renewals, err := s.Renew(ctx, "relay", ttl, leases)
		renewed = err == nil && len(renewals) == idgen.Shards
		return err
	})
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
