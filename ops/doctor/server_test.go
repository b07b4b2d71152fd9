package doctor_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/internal/testenv/service"
	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/ops/doctor"
)

func TestOnAServerOfItsOwn(t *testing.T) {
	t.Parallel()
	r, server := newServer(t, "max_connections=20")
	r.attended()
	t.Run("healthy databases give no finding", func(t *testing.T) { healthyServer(t, r, server) })
	t.Run("connections", func(t *testing.T) { fewConnections(t, r, server) })
	t.Run("deleted rows without vacuum", func(t *testing.T) { deletedRows(t, r) })
	t.Run("settings", func(t *testing.T) { riskySettings(t, r, server) })
	t.Run("slots", func(t *testing.T) { slots(t, r, server) })
	t.Run("standby", func(t *testing.T) { standbyThatReads(t, r, server) })
}

func healthyServer(t *testing.T, r *rig, server *service.Postgres) {
	r.exec(`CREATE ROLE watcher LOGIN PASSWORD 'secret watcher'`)
	names, err := migrations.PostgresNames("", "")
	if err != nil {
		t.Fatal(err)
	}
	grants, err := migrations.PostgresGrants(names, migrations.Roles{Monitor: "watcher"})
	if err != nil {
		t.Fatal(err)
	}
	r.exec(grants)
	watcher := pool(t, as(t, server.URL(), "watcher", "secret watcher"))
	d := doctor.Database{Name: "shop", Pool: watcher, Connections: 10}
	cfg := doctor.Config{Outboxes: []doctor.Database{d}, Inboxes: []doctor.Database{d}}
	cfg.Inboxes[0].Connections = 0
	r.event()      // neither queued nor parked: delivered
	r.pool.Reset() // a superuser that stays connected is a finding
	idle(t, watcher)
	healthy(t, cfg)
}

func fewConnections(t *testing.T, r *rig, server *service.Postgres) {
	cfg := r.cfg
	cfg.Outboxes = []doctor.Database{{Name: "shop", Pool: r.pool, Connections: 18}}
	want(t, examine(t, cfg), doctor.Connections, doctor.Stalls, "up to 18 connections, and 17 are left", "max_connections = 22")
	full, err := pgxpool.New(t.Context(), server.URL()+"&pool_max_conns=16")
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for range 15 {
		conn, err := full.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
	}
	want(t, examine(t, r.cfg), doctor.Connections, doctor.Stalls, "of 17 connections are in use")
}

func riskySettings(t *testing.T, r *rig, server *service.Postgres) {
	for _, c := range []struct {
		set      string
		check    doctor.Check
		severity doctor.Severity
		text     string
	}{
		{"synchronous_commit = off", doctor.Durability, doctor.Loses, "ALTER SYSTEM RESET synchronous_commit"},
		{"autovacuum = off", doctor.Autovacuum, doctor.Advice, "ALTER SYSTEM SET autovacuum = on"},
		{"track_counts = off", doctor.Autovacuum, doctor.Stalls, "ALTER SYSTEM SET track_counts = on"},
		{"default_transaction_isolation = serializable", doctor.Isolation, doctor.Advice, "is serializable"},
		{"default_transaction_read_only = on", doctor.ReadOnly, doctor.Stalls, "default_transaction_read_only"},
	} {
		name, _, _ := strings.Cut(c.set, " ")
		admin := pool(t, server.URL()+"&default_transaction_read_only=off")
		for _, statement := range []string{"ALTER SYSTEM SET " + c.set, "SELECT pg_reload_conf()"} {
			if _, err := admin.Exec(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		r.pool.Reset()
		await(t, r.cfg, c.check, c.severity, c.text)
		for _, statement := range []string{"ALTER SYSTEM RESET " + name, "SELECT pg_reload_conf()"} {
			if _, err := admin.Exec(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		admin.Close()
		r.pool.Reset()
	}
}

func deletedRows(t *testing.T, r *rig) {
	r.exec(`ALTER SYSTEM SET autovacuum = off`)
	r.exec(`SELECT pg_reload_conf()`)
	r.exec(`INSERT INTO boxpair.outbox_queue (shard, id) SELECT 0, n FROM generate_series(1, 2000) n`)
	r.exec(`DELETE FROM boxpair.outbox_queue`)
	cfg := r.cfg
	cfg.DeadRows = 1000
	await(t, cfg, doctor.Autovacuum, doctor.Stalls, "autovacuum is off:", "ALTER SYSTEM SET autovacuum = on")
	want(t, r.examine(), doctor.Autovacuum, doctor.Advice, "autovacuum is off:")
	r.exec(`ALTER SYSTEM RESET autovacuum`)
	r.exec(`SELECT pg_reload_conf()`)
	r.exec(`VACUUM boxpair.outbox_queue`)
}

func slots(t *testing.T, r *rig, server *service.Postgres) {
	r.exec(`SELECT pg_create_physical_replication_slot('forgotten', true), pg_create_physical_replication_slot('slow', true)`)
	want(t, r.examine(), doctor.ReplicationSlot, doctor.Stalls, "nobody reads the replication slot forgotten", "pg_drop_replication_slot('forgotten')")

	reader := readSlot(t, server.URL(), "slow")
	r.exec(`CREATE TABLE written AS SELECT 1`)
	r.exec(`SELECT pg_drop_replication_slot('forgotten')`)
	none(t, r.examine(), doctor.ReplicationSlot)
	r.cfg.SlotBytes = 1
	want(t, r.examine(), doctor.ReplicationSlot, doctor.Stalls, "the reader of the replication slot slow is")
	r.cfg.SlotBytes = 0
	if err := reader.Close(t.Context()); err != nil {
		t.Fatal(err)
	}

	r.exec(`ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'`)
	r.exec(`SELECT pg_reload_conf()`)
	for range 4 {
		r.exec(`DROP TABLE IF EXISTS written; CREATE TABLE written AS SELECT 1`)
		r.exec(`SELECT pg_switch_wal()`)
	}
	r.exec(`CHECKPOINT`)
	await(t, r.cfg, doctor.ReplicationSlot, doctor.Loses, "slot slow has lost its log")
	r.exec(`ALTER SYSTEM RESET max_slot_wal_keep_size`)
	r.exec(`SELECT pg_reload_conf(), pg_drop_replication_slot('slow')`)
}

// readSlot begins to read a slot, and says nothing about what it has read.
func readSlot(t *testing.T, address, slot string) *pgconn.PgConn {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), address+"&replication=true")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	conn.Frontend().Send(&pgproto3.Query{String: "START_REPLICATION SLOT " + slot + " PHYSICAL 0/1000000"})
	if err := conn.Frontend().Flush(); err != nil {
		t.Fatal(err)
	}
	for {
		switch message, err := conn.ReceiveMessage(t.Context()); message := message.(type) {
		case *pgproto3.CopyBothResponse:
			return conn
		case *pgproto3.ErrorResponse:
			t.Fatal(message.Message)
		default:
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

func standbyThatReads(t *testing.T, r *rig, server *service.Postgres) {
	copied, err := server.Standby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	second := pool(t, copied.URL())
	cfg := doctor.Config{Outboxes: []doctor.Database{{Name: "copy", Pool: second}}}
	want(t, examine(t, cfg), doctor.ReadOnly, doctor.Stalls, "standby")
	for _, statement := range []string{"ALTER SYSTEM SET hot_standby_feedback = on", "ALTER SYSTEM SET wal_receiver_status_interval = 1", "SELECT pg_reload_conf()"} {
		if _, err := second.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	tx, err := second.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT count(*) FROM boxpair.outbox_queue"); err != nil {
		t.Fatal(err)
	}
	// Each handled exception takes a transaction ID of its own.
	r.exec(`CREATE TABLE burnt (n int)`)
	r.exec(`DO $$ BEGIN FOR n IN 1..120000 LOOP BEGIN INSERT INTO burnt VALUES (n); EXCEPTION WHEN others THEN NULL; END; END LOOP; END $$`)
	await(t, r.cfg, doctor.StandbyFeedback, doctor.Stalls, "hot_standby_feedback")
	want(t, r.examine(), doctor.Durability, doctor.Advice, "no standby is synchronous")
	watcher := pool(t, as(t, server.URL(), "watcher", "secret watcher"))
	blind := doctor.Config{Outboxes: []doctor.Database{{Name: "shop", Pool: watcher}}}
	want(t, examine(t, blind), doctor.StandbyFeedback, doctor.NotChecked, "pg_read_all_stats")
}

// idle waits until no session of a superuser is left.
func idle(t *testing.T, p *pgxpool.Pool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for range 1200 {
		var n int
		if err := p.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE usename <> current_user AND datid IS NOT NULL`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return
		}
		<-tick.C
	}
	t.Fatal("a session of another role stays")
}

// The servers of tests sync nothing.
func TestServerWithoutSyncIsFound(t *testing.T) {
	t.Parallel()
	found := newRig(t).examine()
	want(t, found, doctor.Durability, doctor.Loses, "fsync is off", "ALTER SYSTEM SET fsync = on")
	want(t, found, doctor.Durability, doctor.Loses, "full_page_writes is off")
}

func TestSettingsOfADatabaseAndOfItsRolesAreFound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	role := testenv.Name(t)
	r.exec(`CREATE ROLE ` + role)
	t.Cleanup(func() {
		if _, err := r.pool.Exec(context.WithoutCancel(t.Context()), `DROP OWNED BY `+role+`; DROP ROLE `+role); err != nil {
			t.Error(err)
		}
	})
	r.exec(`ALTER ROLE ` + role + ` SET synchronous_commit = off`)
	r.exec(`ALTER ROLE ` + role + ` SET default_transaction_read_only = on`)
	none(t, r.examine(), doctor.Isolation, doctor.ReadOnly) // the role cannot use the tables
	r.exec(`GRANT USAGE ON SCHEMA boxpair TO ` + role)
	r.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = %L', current_database(), 'repeatable read'); END $$`)
	found := r.examine()
	want(t, found, doctor.Durability, doctor.Loses, "synchronous_commit is off by ALTER ROLE "+role, "ALTER ROLE "+role+" RESET synchronous_commit")
	want(t, found, doctor.ReadOnly, doctor.Stalls, "ALTER ROLE "+role+" RESET default_transaction_read_only")
	want(t, found, doctor.Isolation, doctor.Advice, "repeatable read by ALTER DATABASE", "RESET default_transaction_isolation")
}

func TestClocksThatDifferAreFound(t *testing.T) {
	t.Parallel()
	right, _ := newServer(t)
	none(t, right.examine(), doctor.Clock)
	wrong := newRig(t)
	wrong.exec(`CREATE SCHEMA clock`)
	wrong.exec(`CREATE FUNCTION clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
		SELECT pg_catalog.clock_timestamp() + interval '1 minute' $$`)
	cfg := wrong.pool.Config()
	cfg.ConnConfig.RuntimeParams["search_path"] = "clock, pg_catalog"
	ahead, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ahead.Close)
	found := examine(t, doctor.Config{Outboxes: []doctor.Database{{Name: "orders", Pool: right.pool}}, Inboxes: []doctor.Database{{Name: "stock", Pool: ahead}}})
	want(t, found, doctor.Clock, doctor.Stalls, "stock", "ahead of this machine's")
	want(t, found, doctor.Clock, doctor.Loses, "stock", "ahead of that of orders")
}
