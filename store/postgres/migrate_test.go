package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/storetest"
)

func known(t *testing.T) []migrations.Migration {
	t.Helper()
	names, err := migrations.PostgresNames("", "")
	if err != nil {
		t.Fatal(err)
	}
	all, err := migrations.Postgres(names)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestMigrateSaysWhatItDid(t *testing.T) {
	t.Parallel()
	pool := newPool(t, nil)
	all := known(t)
	first, err := postgres.Migrate(t.Context(), pool, postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if len(first) != len(all) {
		t.Fatalf("applied %d of %d migrations", len(first), len(all))
	}
	for i, a := range first {
		if a.Number != all[i].Number || a.Name != all[i].Name || a.Checksum != all[i].Checksum || a.At.IsZero() {
			t.Errorf("applied %+v, want %+v", a, all[i])
		}
	}
	again, err := postgres.Migrate(t.Context(), pool, postgres.Config{})
	if err != nil || len(again) != 0 {
		t.Errorf("second call applied %v, %v", again, err)
	}
}

func TestMigrationsThatStartAtOnceTakeTurns(t *testing.T) {
	t.Parallel()
	pool := newPool(t, nil)
	const n = 6
	type result struct {
		applied []migrations.Applied
		err     error
	}
	results := make(chan result, n)
	for range n {
		go func() {
			applied, err := postgres.Migrate(t.Context(), pool, postgres.Config{})
			results <- result{applied, err}
		}()
	}
	worked := 0
	for range n {
		r := <-results
		if r.err != nil {
			t.Error(r.err)
		}
		if len(r.applied) > 0 {
			worked++
		}
	}
	if worked != 1 {
		t.Errorf("%d processes applied migrations", worked)
	}
}

func TestMigrateRefusesAHistoryThatIsNotItsOwn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, change string
		want         error
	}{
		{"changed checksum", `UPDATE boxpair.schema_migrations SET checksum = 'x' WHERE number = 1`, migrations.ErrChanged},
		{"changed name", `UPDATE boxpair.schema_migrations SET name = 'x' WHERE number = 1`, migrations.ErrChanged},
		{"newer version", `INSERT INTO boxpair.schema_migrations VALUES (9999, 'later', 'x')`, migrations.ErrNewer},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, nil)
			if _, err := postgres.Migrate(t.Context(), pool, postgres.Config{}); err != nil {
				t.Fatal(err)
			}
			if _, err := pool.Exec(t.Context(), c.change); err != nil {
				t.Fatal(err)
			}
			applied, err := postgres.Migrate(t.Context(), pool, postgres.Config{})
			if len(applied) != 0 || !errors.Is(err, c.want) {
				t.Errorf("applied %v, %v, want %v", applied, err, c.want)
			}
		})
	}
}

func TestFailedMigrationLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	pool := newPool(t, nil)
	// A table of the user's is in the way.
	if _, err := pool.Exec(t.Context(), `CREATE SCHEMA boxpair; CREATE TABLE boxpair.outbox_shards ()`); err != nil {
		t.Fatal(err)
	}
	if applied, err := postgres.Migrate(t.Context(), pool, postgres.Config{}); err == nil {
		t.Fatalf("applied %v", applied)
	}
	var tables int
	err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_tables WHERE schemaname = 'boxpair'`).Scan(&tables)
	if err != nil || tables != 1 {
		t.Errorf("%d tables, %v", tables, err)
	}
}

// asRole returns a pool on the same database whose connections act as a new role, which has
// no privileges.
func asRole(t *testing.T, pool *pgxpool.Pool, role string, conns int32) *pgxpool.Pool {
	t.Helper()
	if _, err := pool.Exec(t.Context(), `CREATE ROLE `+migrations.Quote(role)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // roles belong to the server, not to the test's database
		ctx, quoted := context.WithoutCancel(t.Context()), migrations.Quote(role)
		if _, err := pool.Exec(ctx, `DROP OWNED BY `+quoted+`; DROP ROLE `+quoted); err != nil {
			t.Error(err)
		}
	})
	return poolOn(t, pool.Config().ConnString(), func(cfg *pgxpool.Config) {
		cfg.MaxConns = conns
		cfg.ConnConfig.RuntimeParams["role"] = role
	})
}

func TestUpToDateDatabaseNeedsNoPrivilegesToMigrate(t *testing.T) {
	t.Parallel()
	pool := newPool(t, nil)
	newStore(t, pool, postgres.Config{})
	role := testenv.Name(t)
	reader := asRole(t, pool, role, 2)
	_, err := pool.Exec(t.Context(), `GRANT USAGE ON SCHEMA boxpair TO `+role+`; GRANT SELECT ON ALL TABLES IN SCHEMA boxpair TO `+role)
	if err != nil {
		t.Fatal(err)
	}
	if applied, err := postgres.Migrate(t.Context(), reader, postgres.Config{}); err != nil || len(applied) != 0 {
		t.Errorf("applied %v, %v", applied, err)
	}
	if _, err := postgres.Migrate(t.Context(), reader, postgres.Config{Prefix: "other_"}); err == nil {
		t.Error("a role without CREATE made tables")
	}
}

func TestSeveralOutboxesShareASchema(t *testing.T) {
	t.Parallel()
	pool := newPool(t, nil)
	a := newStore(t, pool, postgres.Config{Prefix: "a_"})
	b := newStore(t, pool, postgres.Config{Prefix: `B "quoted" `})
	var queued [2]int
	for i, store := range []*postgres.Store{a, b} {
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// One transaction may write into both: the writers are told apart.
		for _, s := range []*postgres.Store{a, b} {
			if _, err := s.Append(t.Context(), tx, uuid.New(), []outbox.Record{event("key", "x")}); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		stats, err := store.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		queued[i] = int(stats.Pending)
	}
	if queued != [2]int{1, 2} {
		t.Errorf("after each of two transactions, %v events are queued", queued)
	}
}

func TestTablesThatAreNotThereSayWhatToDo(t *testing.T) {
	t.Parallel()
	pool := newPool(t, nil)
	store, err := postgres.New(pool, postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Stats(t.Context()); err == nil || !strings.Contains(err.Error(), `run "boxpair migrate up", or call Migrate`) {
		t.Errorf("error is %v", err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	pool := newPool(t, nil)
	_, err := postgres.New(nil, postgres.Config{Schema: "a\x00b", Prefix: strings.Repeat("x", 41), Isolation: "chaos"})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"schema", "prefix", "pool", "Isolation"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not name %s", err, want)
		}
	}
	if _, err := postgres.New(pool, postgres.Config{Schema: strings.Repeat("ä", 31), Isolation: pgx.Serializable}); err != nil {
		t.Error(err)
	}
	if _, err := postgres.Migrate(t.Context(), pool, postgres.Config{Schema: "pg_x"}); err == nil {
		t.Error("Migrate took a schema of the database's own")
	}
}

// TestContractHoldsForOddNamesAndTheSimpleProtocol runs the contract once
// more, as behind an old pooler, without caches, and for names that need their quotes.
func TestContractHoldsForOddNamesAndTheSimpleProtocol(t *testing.T) {
	t.Parallel()
	pool := newPool(t, func(cfg *pgxpool.Config) {
		cfg.MaxConns = 40
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
		cfg.ConnConfig.StatementCacheCapacity, cfg.ConnConfig.DescriptionCacheCapacity = 0, 0
	})
	tables := &shelf{pool: pool, name: `Ünï"code' `, prefix: `P"x' $1 -- /* .`}
	storetest.Producer(t, func(t *testing.T) storetest.OutboxFixture[pgx.Tx] { return outboxFixtureOf(t, pool, tables.config(t)) })
}
