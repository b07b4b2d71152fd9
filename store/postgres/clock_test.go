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
