package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/store/postgres"
)

// migrated returns a pool on a database whose tables are those of this version.
func migrated(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := newPool(t, nil)
	if _, err := postgres.Migrate(t.Context(), pool, postgres.Config{}); err != nil {
		t.Fatal(err)
	}
	return pool
}

// wider is a migration that locks a table which is there.
func wider() migrations.Migration {
	return migrations.Migration{Name: "wider", SQL: `ALTER TABLE "boxpair"."outbox_shards" ADD COLUMN spare integer;`}
}

func TestMigrateGivesUpALockThatItDoesNotGet(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `LOCK TABLE boxpair.outbox_shards IN ACCESS SHARE MODE`); err != nil {
		t.Fatal(err)
	}
	before := wider()
	before.Name, before.SQL = "before", `CREATE TABLE "boxpair"."outbox_spare" ();`
	cfg := postgres.Config{MigrateLockTimeout: 50 * time.Millisecond}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	applied, err := postgres.MigrateFurther(ctx, pool, cfg, before, wider())
	if err == nil || !strings.Contains(err.Error(), "for 50ms (MigrateLockTimeout): nothing was changed") || len(applied) != 0 {
		t.Errorf("applied %v, %v", applied, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if applied, err := postgres.MigrateFurther(t.Context(), pool, cfg, before, wider()); err != nil || len(applied) != 2 {
		t.Errorf("applied %v, %v", applied, err)
	}
}

// deadlocked is a migration that ends in a deadlock the first few times.
func deadlocked(times int) migrations.Migration {
	return migrations.Migration{Name: "deadlocked", SQL: fmt.Sprintf(`DO $$ BEGIN
		IF nextval('tries') <= %d THEN
			RAISE EXCEPTION 'deadlock detected' USING ERRCODE = 'deadlock_detected';
		END IF;
	END $$;`, times)}
}

func TestMigrateBeginsAgainAfterADeadlock(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	if _, err := pool.Exec(t.Context(), "CREATE SEQUENCE tries"); err != nil { // which no rollback sets back
		t.Fatal(err)
	}
	applied, err := postgres.MigrateFurther(t.Context(), pool, postgres.Config{}, wider(), deadlocked(2))
	if err != nil || len(applied) != 2 {
		t.Errorf("applied %v, %v", applied, err)
	}
}

func TestMigrateGivesUpAfterManyDeadlocks(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	if _, err := pool.Exec(t.Context(), "CREATE SEQUENCE tries"); err != nil {
		t.Fatal(err)
	}
	applied, err := postgres.MigrateFurther(t.Context(), pool, postgres.Config{}, wider(), deadlocked(100))
	if err == nil || !strings.Contains(err.Error(), "nothing was changed; call again when fewer transactions") || len(applied) != 0 {
		t.Errorf("applied %v, %v", applied, err)
	}
}

func TestMigrateSaysWhatItIsGoingToLock(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	cfg := postgres.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	pool := newPool(t, nil)
	if _, err := postgres.Migrate(t.Context(), pool, cfg); err != nil {
		t.Fatal(err)
	}
	if log.Len() > 0 {
		t.Errorf("of a new database, where nobody waits, the log says %q", &log)
	}
	if _, err := postgres.Migrate(t.Context(), pool, cfg); err != nil || log.Len() > 0 {
		t.Errorf("of one that is up to date, the log says %q, %v", &log, err)
	}
	if _, err := postgres.MigrateFurther(t.Context(), pool, cfg, wider()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"(wider)", `ACCESS EXCLUSIVE on \"boxpair\".\"outbox_shards\"`, "lock_timeout=5s"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log says %q, without %s", &log, want)
		}
	}
}

// TestLocksThatAreAnnouncedAreThoseThatTheServerTakes looks at what each migration holds at its
// end, of tables that were there.
func TestLocksThatAreAnnouncedAreThoseThatTheServerTakes(t *testing.T) {
	t.Parallel()
	pool := newPool(t, nil)
	if _, err := pool.Exec(t.Context(), `CREATE SCHEMA boxpair`); err != nil {
		t.Fatal(err)
	}
	all := known(t)
	for _, sql := range []string{
		`ALTER TABLE "boxpair"."outbox_shards" ADD COLUMN spare integer DEFAULT 0; -- "boxpair"."outbox_queue"`,
		`ALTER TABLE "boxpair"."outbox_events" ADD CONSTRAINT "outbox_spare" CHECK (version > -1) NOT VALID;`,
		`ALTER TABLE "boxpair"."outbox_events" VALIDATE CONSTRAINT "outbox_spare";`,
		`ALTER TABLE "boxpair"."outbox_events" SET (autovacuum_enabled = true);`,
		`CREATE UNIQUE INDEX "outbox_spare_a" ON "boxpair"."outbox_shards" (shard);`,
		`UPDATE "boxpair"."outbox_shards" SET spare = 1; DELETE FROM "boxpair"."outbox_queue"; TRUNCATE "boxpair"."outbox_attempts";`,
		`CREATE TRIGGER "outbox_spare" BEFORE UPDATE ON "boxpair"."outbox_shards" FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();`,
		`CREATE TABLE "boxpair"."outbox_spare" (id bigint); CREATE INDEX "outbox_spare_b" ON "boxpair"."outbox_spare" (id); DROP TABLE "boxpair"."inbox_requests";`,
	} {
		all = append(all, migrations.Migration{Name: sql, SQL: sql})
	}
	for _, m := range all {
		want := make(map[string]string)
		for _, l := range migrations.Locks([]migrations.Migration{m}, all...) {
			want[l.Table] = l.Mode
		}
		if got := locksOf(t, pool, m.SQL); !maps.Equal(got, want) {
			t.Errorf("%s: announced %v, the server has %v", m.Name, want, got)
		}
	}
}

// locksOf runs statements and returns the strongest lock that they hold at their end on each table
// that was there before.
func locksOf(t *testing.T, pool *pgxpool.Pool, sql string) map[string]string {
	t.Helper()
	modes := []string{"RowExclusiveLock", "ShareUpdateExclusiveLock", "ShareLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock"}
	names := []string{"ROW EXCLUSIVE", "SHARE UPDATE EXCLUSIVE", "SHARE", "SHARE ROW EXCLUSIVE", "EXCLUSIVE", "ACCESS EXCLUSIVE"}
	held := make(map[string]string)
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		var there []string
		const tables = `SELECT coalesce(array_agg(oid::text), '{}') FROM pg_class WHERE relnamespace = 'boxpair'::regnamespace AND relkind = 'r'`
		const named = `SELECT coalesce(array_agg(oid || '=' || quote_ident('boxpair') || '.' || relname), '{}') FROM pg_class WHERE relnamespace = 'boxpair'::regnamespace`
		var called []string
		if err := errors.Join(tx.QueryRow(t.Context(), tables).Scan(&there), tx.QueryRow(t.Context(), named).Scan(&called)); err != nil {
			return err
		}
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			return err
		}
		rows, err := tx.Query(t.Context(), `SELECT relation::text, mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation::text = ANY ($1)`, there)
		if err != nil {
			return err
		}
		var relation, mode string
		_, err = pgx.ForEachRow(rows, []any{&relation, &mode}, func() error {
			i := slices.IndexFunc(called, func(c string) bool { return strings.HasPrefix(c, relation+"=") })
			_, name, _ := strings.Cut(called[i], "=boxpair.")
			name = `"boxpair"."` + name + `"`
			if at := slices.Index(modes, mode); at >= 0 && at >= slices.Index(names, held[name]) {
				held[name] = names[at]
			}
			return nil
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return held
}

// concurrent is a migration that builds an index while others write.
func concurrent() migrations.Migration {
	return migrations.Migration{Name: "unique_key", SQL: `CREATE UNIQUE INDEX CONCURRENTLY "outbox_events_spare" ON "boxpair"."outbox_events" (key);`}
}

func writeKeys(t *testing.T, pool *pgxpool.Pool, keys ...string) {
	t.Helper()
	for i, key := range keys {
		_, err := pool.Exec(t.Context(), `SELECT boxpair.outbox_write(producer => 'p', topic => 't', source => 's', version => $1, key => $2, payload => '')`, i+1, key)
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestIndexThatAFailureLeftInvalidIsBuiltAgain has the index fail on rows that it refuses.
func TestIndexThatAFailureLeftInvalidIsBuiltAgain(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	writeKeys(t, pool, "a", "a")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	later := func() []migrations.Migration {
		return []migrations.Migration{wider(), concurrent(), {Name: "last", SQL: ""}}
	}
	applied, err := postgres.MigrateFurther(ctx, pool, postgres.Config{}, later()...)
	if err == nil || !strings.Contains(err.Error(), "the next call does it again") || len(applied) != 1 {
		t.Fatalf("applied %v, %v", applied, err)
	}
	valid := func() (valid bool) {
		err := pool.QueryRow(t.Context(), `SELECT indisvalid FROM pg_index WHERE indexrelid = 'boxpair.outbox_events_spare'::regclass`).Scan(&valid)
		if err != nil {
			t.Fatal(err)
		}
		return valid
	}
	if valid() {
		t.Fatal("the index is valid, so nothing is tested")
	}
	if _, err := pool.Exec(t.Context(), `UPDATE boxpair.outbox_events SET key = version::text`); err != nil {
		t.Fatal(err)
	}
	applied, err = postgres.MigrateFurther(ctx, pool, postgres.Config{}, later()...)
	if err != nil || len(applied) != 2 || applied[0].Name != "unique_key" || !valid() {
		t.Errorf("applied %v, %v", applied, err)
	}
}

// TestProcessesThatBuildAnIndexConcurrentlyTakeTurns would end in a deadlock if who waits for the
// other had a snapshot.
func TestProcessesThatBuildAnIndexConcurrentlyTakeTurns(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	writeKeys(t, pool, "a", "b")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const n = 4
	ended := make(chan error, n)
	worked := make(chan int, n)
	for range n {
		go func() {
			applied, err := postgres.MigrateFurther(ctx, pool, postgres.Config{}, concurrent())
			worked <- len(applied)
			ended <- err
		}()
	}
	sum := 0
	for range n {
		if err := <-ended; err != nil {
			t.Error(err)
		}
		sum += <-worked
	}
	if sum != 1 {
		t.Errorf("%d processes applied the migration", sum)
	}
}

func TestIndexIsNotBuiltConcurrentlyOnTheOnlyConnection(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	narrow := poolOn(t, pool.Config().ConnString(), func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := postgres.MigrateFurther(ctx, narrow, postgres.Config{}, concurrent())
	if err == nil || !strings.Contains(err.Error(), "the pool's MaxConns is 1") {
		t.Errorf("error is %v", err)
	}
}

// TestMigrateAndTheSQLWriterReadBackslashesAsTheyAre in sessions that would read them as escapes.
func TestMigrateAndTheSQLWriterReadBackslashesAsTheyAre(t *testing.T) {
	t.Parallel()
	pool := newPool(t, func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["standard_conforming_strings"] = "off" })
	if _, err := postgres.Migrate(t.Context(), pool, postgres.Config{}); err != nil {
		t.Fatal(err)
	}
	usual := poolOn(t, pool.Config().ConnString(), nil)
	const write = `SELECT dispatch_id::text, known FROM boxpair.outbox_write(producer => 'p', topic => 't', source => 's', version => 1, payload => '', headers => '{"a": "<&>"}')`
	var ids [2]string
	var known [2]bool
	for i, p := range []*pgxpool.Pool{pool, usual} {
		if err := p.QueryRow(t.Context(), write).Scan(&ids[i], &known[i]); err != nil {
			t.Fatal(err)
		}
	}
	if ids[0] != ids[1] || known != [2]bool{false, true} {
		t.Errorf("written %v, known %v", ids, known)
	}
}

// TestSQLWriterOfARenamedSchemaWritesIntoIt while another outbox has taken the old name.
func TestSQLWriterOfARenamedSchemaWritesIntoIt(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	if _, err := pool.Exec(t.Context(), `ALTER SCHEMA boxpair RENAME TO "new ""name"`); err != nil {
		t.Fatal(err)
	}
	cfg := postgres.Config{Schema: `new "name`}
	store, err := postgres.New(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.CheckSchema(t.Context()); err == nil || !strings.Contains(err.Error(), `function outbox_write writes into schema "boxpair"`) {
		t.Errorf("before, the check says %v", err)
	}
	for _, c := range []postgres.Config{{}, cfg} {
		if _, err := postgres.Migrate(t.Context(), pool, c); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.CheckSchema(t.Context()); err != nil {
		t.Errorf("after, the check says %v", err)
	}
	var written int
	if _, err := pool.Exec(t.Context(), `SELECT "new ""name".outbox_write(producer => 'p', topic => 't', source => 's', version => 1, payload => '')`); err != nil {
		t.Fatal(err)
	}
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM "new ""name".outbox_queue`).Scan(&written); err != nil || written != 1 {
		t.Errorf("%d events, %v", written, err)
	}
}

func TestSchemaIsChecked(t *testing.T) {
	t.Parallel()
	pool := newPool(t, nil)
	store, err := postgres.New(pool, postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	check := func(state string, want error) {
		t.Helper()
		if err := store.CheckSchema(t.Context()); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", state, err, want)
		}
	}
	check("nothing is there", migrations.ErrMissing)
	if _, err := pool.Exec(t.Context(), `CREATE SCHEMA boxpair; CREATE TABLE boxpair.outbox_events ()`); err != nil {
		t.Fatal(err)
	}
	check("another tool has made the tables", nil)
	if _, err := pool.Exec(t.Context(), `DROP SCHEMA boxpair CASCADE`); err != nil {
		t.Fatal(err)
	}
	if _, err := postgres.MigrateFurther(t.Context(), pool, postgres.Config{}, wider()); err != nil {
		t.Fatal(err)
	}
	check("a later version has migrated", nil)
	for _, c := range []struct {
		state, sql string
		want       error
	}{
		{"the last two are missing", `DELETE FROM boxpair.schema_migrations WHERE number >= (SELECT max(number) - 1 FROM boxpair.schema_migrations)`, migrations.ErrMissing},
		{"one is another", `UPDATE boxpair.schema_migrations SET checksum = 'x' WHERE number = 1`, migrations.ErrChanged},
	} {
		if _, err := pool.Exec(t.Context(), c.sql); err != nil {
			t.Fatal(err)
		}
		check(c.state, c.want)
	}
}
