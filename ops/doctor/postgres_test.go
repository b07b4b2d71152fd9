package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/ops/doctor"
)

func TestTablesThatAreKeptBadlyAreFound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	none(t, r.examine(), doctor.Unlogged, doctor.Autovacuum, doctor.DeadRows, doctor.InvalidIndex)
	r.exec(`ALTER TABLE boxpair.outbox_parked SET UNLOGGED`)
	r.exec(`ALTER TABLE boxpair.outbox_queue SET (autovacuum_enabled = off)`)
	r.exec(`INSERT INTO boxpair.outbox_queue (shard, id) SELECT 0, n FROM generate_series(1, 2000) n`)
	r.exec(`DELETE FROM boxpair.outbox_queue`)
	r.exec(`UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'boxpair.outbox_events_due'::regclass`)
	found := r.examine()
	want(t, found, doctor.Unlogged, doctor.Loses, `ALTER TABLE "boxpair"."outbox_parked" SET LOGGED`)
	want(t, found, doctor.Autovacuum, doctor.Advice, `ALTER TABLE "boxpair"."outbox_queue" RESET (autovacuum_enabled)`)
	want(t, found, doctor.InvalidIndex, doctor.Stalls, "REINDEX INDEX CONCURRENTLY boxpair.outbox_events_due")
	r.cfg.DeadRows = 1000
	await(t, r.cfg, doctor.DeadRows, doctor.Stalls, `2000 deleted rows`, `VACUUM "boxpair"."outbox_queue"`, "never")
	want(t, r.examine(), doctor.Autovacuum, doctor.Stalls, `ALTER TABLE "boxpair"."outbox_queue" RESET (autovacuum_enabled)`)
}

func TestTransactionsWithoutAnEndAreFound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	none(t, r.examine(), doctor.OldTransaction, doctor.PreparedTransaction)
	gid := testenv.Name(t) + "'s"
	r.exec(`BEGIN; CREATE TABLE kept (); PREPARE TRANSACTION '` + strings.ReplaceAll(gid, "'", "''") + `'`)
	quoted := "'" + strings.ReplaceAll(gid, "'", "''") + "'"
	t.Cleanup(func() {
		if _, err := r.pool.Exec(context.WithoutCancel(t.Context()), "ROLLBACK PREPARED "+quoted); err != nil {
			t.Error(err)
		}
	})
	r.cfg.TransactionAge = time.Microsecond
	found := r.examine()
	want(t, found, doctor.OldTransaction, doctor.Stalls, "idle in transaction", "SELECT pg_terminate_backend(")
	want(t, found, doctor.PreparedTransaction, doctor.Stalls, "ROLLBACK PREPARED "+quoted)
}

// A session that waits is no finding: the one that keeps it waiting is, also if it began later.
func TestSessionsThatWaitAreCountedAtTheirBlocker(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	counting := pool(t, r.pool.Config().ConnString()+"&application_name=counting")
	r.exec(`CREATE TABLE counted (id int)`)
	begin := func() (tx pgx.Tx, pid int) {
		tx, err := counting.Begin(t.Context())
		if err == nil {
			err = tx.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid)
		}
		if err != nil {
			t.Fatal(err)
		}
		return tx, pid
	}
	waiter, waits := begin()
	next, follows := begin()
	blocker, blocks := begin()
	if _, err := blocker.Exec(t.Context(), `LOCK TABLE counted IN ACCESS SHARE MODE`); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 2)
	for _, tx := range []pgx.Tx{waiter, next} {
		go func() {
			_, err := tx.Exec(t.Context(), `LOCK TABLE counted IN ACCESS EXCLUSIVE MODE`)
			ended <- errors.Join(err, tx.Rollback(t.Context()))
		}()
	}
	r.cfg.EventAge = time.Microsecond
	await(t, r.cfg, doctor.OldTransaction, doctor.Stalls, "2 sessions (2 of role postgres as counting) wait for a transaction of role postgres (counting, idle in transaction, "+fmt.Sprintf("pid %d)", blocks))
	found := r.examine()
	for _, pid := range []int{waits, follows} {
		if slices.ContainsFunc(found, func(f doctor.Finding) bool { return strings.Contains(f.Problem, fmt.Sprintf("pid %d", pid)) }) {
			t.Errorf("the waiting session %d is a finding:\n%v", pid, found)
		}
	}
	at := slices.IndexFunc(found, func(f doctor.Finding) bool { return f.Check == doctor.OldTransaction })
	if at < 0 {
		t.Fatalf("found:\n%s", lines(found))
	}
	remedy := found[at].Remedy
	if strings.Contains(remedy, "--") || !strings.Contains(remedy, fmt.Sprint(blocks)) {
		t.Errorf("the remedy %q is no statement to paste", remedy)
	}
	r.exec(remedy)
	if err := blocker.Rollback(t.Context()); err == nil {
		t.Error("the remedy has not ended the transaction")
	}
	if err := errors.Join(<-ended, <-ended); err != nil {
		t.Fatal(err)
	}
}

func TestWhatARoleMayNotSeeIsNotChecked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	role := newRole(r)
	r.exec(`GRANT USAGE ON SCHEMA boxpair TO ` + role)
	blind := pool(t, as(t, r.pool.Config().ConnString(), role, "secret"))
	d := doctor.Database{Name: "shop", Pool: blind}
	found := examine(t, doctor.Config{Outboxes: []doctor.Database{d}, Inboxes: []doctor.Database{d}})
	for _, check := range []doctor.Check{doctor.Migrations, doctor.Sequence, doctor.OldTransaction, doctor.Relays, doctor.Routes, doctor.Pauses, doctor.ExpiredLease, doctor.Window, doctor.IdleConsumer} {
		want(t, found, check, doctor.NotChecked)
	}
	want(t, found, doctor.Pauses, doctor.NotChecked, "permission denied for table pauses", "grants/postgres.sql")
}

// newRole makes a role that may log in with the password secret.
func newRole(r *rig) string {
	r.Helper()
	role := testenv.Name(r.T)
	r.exec(`CREATE ROLE ` + role + ` LOGIN PASSWORD 'secret'`)
	r.Cleanup(func() {
		if _, err := r.pool.Exec(context.WithoutCancel(r.Context()), `DROP OWNED BY `+role+` CASCADE; DROP ROLE `+role); err != nil {
			r.Error(err)
		}
	})
	return role
}

func TestRolesWithTooManyRightsAreFound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	owner := newRole(r)
	r.exec(`DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO ` + owner + `', current_database()); END $$`)
	r.exec(`ALTER TABLE boxpair.outbox_events OWNER TO ` + owner)
	r.exec(`GRANT USAGE, CREATE ON SCHEMA boxpair TO PUBLIC; GRANT INSERT (shard) ON boxpair.outbox_queue TO PUBLIC`)
	connected := pool(t, as(t, r.pool.Config().ConnString(), owner, "secret"))
	if err := connected.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	found := r.examine()
	want(t, found, doctor.RoleWide, doctor.Advice, "role postgres", "superuser")
	want(t, found, doctor.RoleWide, doctor.Advice, "role "+owner, "owns the tables")
	want(t, found, doctor.RoleWide, doctor.Advice, "REVOKE CREATE ON SCHEMA boxpair FROM PUBLIC")
	want(t, found, doctor.RoleWide, doctor.Advice, `REVOKE INSERT ON "boxpair"."outbox_queue" FROM PUBLIC`)
}

func TestRolesWithoutTheGrantsOfALaterMigrationAreFound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	roles := make(map[string]string)
	for _, part := range []string{"producer", "relay", "consumer", "requests", "janitor", "operator", "monitor"} {
		roles[part] = newRole(r)
	}
	names, err := migrations.PostgresNames("", "")
	if err != nil {
		t.Fatal(err)
	}
	grants, err := migrations.PostgresGrants(names, migrations.Roles{
		Producer: roles["producer"], Relay: roles["relay"], Consumer: roles["consumer"], Requests: roles["requests"],
		Janitor: roles["janitor"], Operator: roles["operator"], Monitor: roles["monitor"],
	})
	if err != nil {
		t.Fatal(err)
	}
	r.exec(grants)
	none(t, r.examine(), doctor.RoleNarrow)
	for part, revoke := range map[string]string{
		"producer": `EXECUTE ON FUNCTION boxpair.outbox_hash`, "relay": `SELECT ON SEQUENCE boxpair.outbox_events_id_seq`,
		"consumer": `SELECT ON boxpair.pauses`, "requests": `UPDATE (body) ON boxpair.inbox_requests`, "janitor": `SELECT ON boxpair.schema_migrations`,
		"operator": `UPDATE (reason) ON boxpair.inbox_effects`, "monitor": `SELECT ON boxpair.outbox_routes`,
	} {
		// outbox_hash may be called by everybody unless that was revoked.
		r.exec(`REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA boxpair FROM PUBLIC; REVOKE ` + revoke + ` FROM ` + roles[part])
	}
	found := r.examine()
	for part, lacks := range map[string]string{
		"producer": "EXECUTE on outbox_hash", "relay": "SELECT on outbox_events_id_seq", "consumer": "SELECT on pauses", "requests": "UPDATE (body) on inbox_requests",
		"janitor": "SELECT on schema_migrations", "operator": "UPDATE (reason) on inbox_effects", "monitor": "SELECT on outbox_routes",
	} {
		want(t, found, doctor.RoleNarrow, doctor.Stalls, roles[part]+" works as "+part+" and lacks 1 rights: "+lacks+";")
	}
}

func TestNamesOfTablesAreThoseOfTheMigrations(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rows, err := r.pool.Query(t.Context(), `SELECT relname FROM pg_class WHERE relnamespace = 'boxpair'::regnamespace AND relkind = 'r' AND relname <> 'schema_migrations' ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	if listed := slices.Sorted(slices.Values(doctor.Relations)); !slices.Equal(listed, names) || rows.Err() != nil {
		t.Errorf("tables %v, listed %v", names, listed)
	}
}
