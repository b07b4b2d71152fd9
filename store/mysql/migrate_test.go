package mysql_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/store/mysql"
)

func TestMigrationsOfProcessesAtOnceTakeTurns(t *testing.T) {
	t.Parallel()
	dsn := testenv.MySQL(t)
	var wg sync.WaitGroup
	counts := make([]int, 4)
	for i := range counts {
		wg.Go(func() {
			applied, err := mysql.Migrate(t.Context(), open(t, dsn), mysql.Config{})
			if err != nil {
				t.Error(err)
			}
			counts[i] = len(applied)
		})
	}
	wg.Wait()
	sum := 0
	for _, n := range counts {
		sum += n
	}
	names, err := migrations.MySQLNames("")
	if err != nil {
		t.Fatal(err)
	}
	if all, err := migrations.MySQL(names); err != nil || sum != len(all) {
		t.Errorf("%v migrations were applied, there are %d, %v", counts, len(all), err)
	}
}

func TestInterruptedMigrationIsDoneAgain(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	s := newStore(t, db)
	write(t, s, record("key", 1, "kept"))
	run(t, db, `DELETE FROM boxpair_schema_migrations`) // as if the process had died before it was recorded
	run(t, db, `DROP TABLE boxpair_outbox_relays`)
	run(t, db, `DROP VIEW boxpair_outbox_status`)
	if _, err := mysql.Migrate(t.Context(), db, mysql.Config{}); err != nil {
		t.Fatal(err)
	}
	if n := number(t, db, `SELECT COUNT(*) FROM boxpair_outbox_status WHERE state = 'pending'`); n != 1 {
		t.Errorf("%d events are pending", n)
	}
	if n := number(t, db, `SELECT COUNT(*) FROM boxpair_outbox_shards`); n != 64 {
		t.Errorf("there are %d shards", n)
	}
	if _, err := s.Heartbeat(t.Context(), "relay", 1e9); err != nil {
		t.Error(err)
	}
}

func TestChangedAndNewerMigrationsAreRefused(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	run(t, db, `UPDATE boxpair_schema_migrations SET checksum = 'other' WHERE number = 1`)
	if _, err := mysql.Migrate(t.Context(), db, mysql.Config{}); !errors.Is(err, migrations.ErrChanged) {
		t.Errorf("Migrate gives %v", err)
	}
	run(t, db, `DELETE FROM boxpair_schema_migrations`)
	if _, err := mysql.Migrate(t.Context(), db, mysql.Config{}); err != nil {
		t.Fatal(err)
	}
	run(t, db, `INSERT INTO boxpair_schema_migrations (number, name, checksum, applied_at) SELECT MAX(number) + 1, 'later', '', 0 FROM boxpair_schema_migrations`)
	if _, err := mysql.Migrate(t.Context(), db, mysql.Config{}); !errors.Is(err, migrations.ErrNewer) {
		t.Errorf("Migrate gives %v", err)
	}
}

func TestOutboxesUnderTwoPrefixesShareADatabase(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	cfg := mysql.Config{Prefix: "my `shop` "}
	if _, err := mysql.Migrate(t.Context(), db, cfg); err != nil {
		t.Fatal(err)
	}
	other, err := mysql.New(db, cfg)
	if err != nil {
		t.Fatal(err)
	}
	write(t, other, record("key", 1, "payload"))
	if n := number(t, db, "SELECT COUNT(*) FROM `my ``shop`` outbox_events`"); n != 1 {
		t.Errorf("%d events are in the table of the prefix", n)
	}
	if n := number(t, db, `SELECT COUNT(*) FROM boxpair_outbox_events`); n != 0 {
		t.Errorf("%d events are in the table of the other one", n)
	}
}

func TestPayloadBeyondThePacketSizeSaysSo(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	s := newStore(t, db)
	limit := number(t, db, `SELECT @@max_allowed_packet`)
	if limit > 64<<20 {
		t.Logf("max_allowed_packet is %d: not tried", limit)
		return
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	_, err = s.Append(t.Context(), tx, uuidOf(1), records(strings.Repeat("x", limit+1)))
	if err == nil || !strings.Contains(err.Error(), "max_allowed_packet") || len(err.Error()) > 1000 {
		t.Errorf("Append gives %.300v", err)
	}
	if err := tx.Commit(); err == nil {
		t.Error("the transaction was committed")
	}
}

func TestSchemaIsChecked(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	store, err := mysql.New(db, mysql.Config{Prefix: "other_"})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.CheckSchema(t.Context()); !errors.Is(err, migrations.ErrMissing) {
		t.Errorf("without tables, the check says %v", err)
	}
	if _, err := store.Stats(t.Context()); !errors.Is(err, migrations.ErrMissing) {
		t.Errorf("without tables, Stats says %v", err)
	}
	if _, err := mysql.Migrate(t.Context(), db, mysql.Config{Prefix: "other_"}); err != nil {
		t.Fatal(err)
	}
	if err := store.CheckSchema(t.Context()); err != nil {
		t.Errorf("migrated, the check says %v", err)
	}
}

// TestMigrateGivesUpALockThatItDoesNotGet has a reader hold the view that the second migration
// replaces.
func TestMigrateGivesUpALockThatItDoesNotGet(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	newStore(t, db)
	run(t, db, `DELETE FROM boxpair_schema_migrations WHERE number > 1`)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(t.Context(), `SELECT * FROM boxpair_inbox_status`); err != nil {
		t.Fatal(err)
	}
	_, err = mysql.Migrate(t.Context(), db, mysql.Config{MigrateLockTimeout: time.Second})
	if err == nil || !strings.Contains(err.Error(), "for 1s (MigrateLockTimeout)") {
		t.Errorf("error is %v", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if _, err := mysql.Migrate(t.Context(), db, mysql.Config{MigrateLockTimeout: 1500 * time.Millisecond}); err == nil || !strings.Contains(err.Error(), "not a number of whole seconds") {
		t.Errorf("error is %v", err)
	}
	if applied, err := mysql.Migrate(t.Context(), db, mysql.Config{}); err != nil || len(applied) == 0 {
		t.Errorf("applied %v, %v", applied, err)
	}
}
