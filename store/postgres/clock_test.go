package postgres_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/store/postgres"
)

// newRigWithClock returns a rig on a database whose clock differs from every other one
// by what is in the table clock.ahead: a function is found before PostgreSQL's own.
func newRigWithClock(t *testing.T) *rig {
	t.Helper()
	url := testenv.Postgres(t)
	pool := poolOn(t, url, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["search_path"] = "clock, pg_catalog"
	})
	r := &rig{T: t, pool: pool}
	r.exec(`CREATE SCHEMA clock;
		CREATE TABLE clock.ahead AS SELECT interval '1 day' AS by;
		CREATE FUNCTION clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
			'SELECT pg_catalog.clock_timestamp() + by FROM clock.ahead'`)
	r.Store = newStore(t, pool, postgres.Config{})
	return r
}

func TestLeasesLastByTheClockOfTheDatabase(t *testing.T) {
	t.Parallel()
	r := newRigWithClock(t)
	if n := len(r.acquire("a", time.Hour)); n != idgen.Shards {
		t.Fatalf("a acquired %d shards", n)
	}
	if taken := r.acquire("b", time.Hour); len(taken) != 0 {
		t.Errorf("b acquired %d shards while a holds them by the clock of the database", len(taken))
	}
	r.exec("UPDATE clock.ahead SET by = by + interval '61 minutes'")
	if taken := r.acquire("b", time.Hour); len(taken) != idgen.Shards {
		t.Errorf("b acquired %d shards that have expired by the clock of the database", len(taken))
	}
}

func TestLeaseOfBeforeTheClockWasSetBackHasExpired(t *testing.T) {
	t.Parallel()
	r := newRigWithClock(t)
	if n := len(r.acquire("a", time.Hour)); n != idgen.Shards {
		t.Fatalf("a acquired %d shards", n)
	}
	r.exec("UPDATE clock.ahead SET by = by - interval '59 minutes'")
	if taken := r.acquire("b", time.Minute); len(taken) != 0 {
		t.Errorf("b acquired %d shards after the clock was set back by less than the leases last", len(taken))
	}
	r.exec("UPDATE clock.ahead SET by = by - interval '2 minutes'")
	if taken := r.acquire("b", time.Minute); len(taken) != idgen.Shards {
		t.Errorf("b acquired %d shards after the clock was set back by more than the leases lasted", len(taken))
	}
}

// A relay of before knows nothing of when a lease began, and leaves what is there.
func TestLeaseOfAnOlderRelayIsJudgedSafely(t *testing.T) {
	t.Parallel()
	for began, free := range map[string]map[string]bool{
		"NULL":                                   {"1 minute": false, "59 minutes": false, "2 hours": true},
		"clock_timestamp() - '5 days'::interval": {"1 minute": false, "59 minutes": false, "2 hours": false},
	} {
		for ahead, want := range free {
			r := newRig(t)
			r.acquire("older", time.Minute)
			r.exec("UPDATE "+r.names.Table("outbox_shards")+" SET leased_at = "+began+", lease_until = clock_timestamp() + $1::text::interval", ahead)
			if taken := r.acquire("newer", 100*time.Millisecond); (len(taken) > 0) != want {
				t.Errorf("with leased_at %s, %d leases that end in %s were taken over", began, len(taken), ahead)
			}
		}
	}
}
