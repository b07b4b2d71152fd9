package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/store/internal/sqlstore/sqlstoretest"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/sqlite"
)

func TestMigrateTellsWhatItApplied(t *testing.T) {
	t.Parallel()
	db, err := sqlite.Open(filepath.Join(t.TempDir(), "test.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	applied, err := sqlite.Migrate(t.Context(), db, sqlite.Config{})
	if err != nil || len(applied) < 2 || applied[0].Number != 1 || applied[0].Name != "outbox" || applied[0].At.IsZero() {
		t.Errorf("Migrate() = %v, %v", applied, err)
	}
	if again, err := sqlite.Migrate(t.Context(), db, sqlite.Config{}); err != nil || len(again) != 0 {
		t.Errorf("second Migrate() = %v, %v, want nothing", again, err)
	}
}

// TestNewFileWaitsForOthersThatOpenIt opens a new file several times at once. One connection
// switches the file to a write-ahead log, which SQLite refuses at once, regardless of the busy
// timeout, while another connection writes.
func TestNewFileWaitsForOthersThatOpenIt(t *testing.T) {
	t.Parallel()
	const busy = 50 * time.Millisecond
	path := filepath.Join(t.TempDir(), "test.db")
	other, err := sql.Open("sqlite", path+"?_pragma=busy_timeout(10000)")
	other = sqlstoretest.Opened(t, other, err)
	tx, err := other.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(`CREATE TABLE others (id INTEGER)`); err != nil {
		t.Fatal(err)
	}
	opened := func(busy time.Duration) *sql.DB {
		c, err := sqlite.NewConnector(path, sqlite.ConnectorConfig{BusyTimeout: busy})
		if err != nil {
			t.Fatal(err)
		}
		return sqlstoretest.Opened(t, sql.OpenDB(c), nil)
	}
	start := time.Now()
	if err := opened(busy).Ping(); err == nil || time.Since(start) < busy {
		t.Errorf("Ping() = %v after %v, want an error after %v", err, time.Since(start), busy)
	}
	ctx, cancel := context.WithTimeout(t.Context(), busy)
	defer cancel()
	if err := opened(time.Hour).PingContext(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("PingContext() = %v, want the end of the context", err)
	}

	migrated := make(chan error)
	db := opened(time.Minute)
	go func() {
		_, err := sqlite.Migrate(t.Context(), db, sqlite.Config{})
		migrated <- err
	}()
	if err := tx.Commit(); err != nil {
		t.Error(err)
	}
	if err := <-migrated; err != nil {
		t.Error(err)
	}
}

func TestMigrateLeavesAnotherVersionsDatabaseAlone(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	run(t, db, `INSERT INTO boxpair_schema_migrations (number, name, checksum, applied_at) VALUES (99, 'later', '', 0)`)
	if _, err := sqlite.Migrate(t.Context(), db, sqlite.Config{}); !errors.Is(err, migrations.ErrNewer) {
		t.Errorf("Migrate() = %v, want ErrNewer", err)
	}
	run(t, db, `UPDATE boxpair_schema_migrations SET checksum = 'other' WHERE number = 1`)
	if _, err := sqlite.Migrate(t.Context(), db, sqlite.Config{}); !errors.Is(err, migrations.ErrChanged) {
		t.Errorf("Migrate() = %v, want ErrChanged", err)
	}
}

func TestTwoPrefixesAreTwoOutboxes(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	s := newStore(t, db)
	cfg := sqlite.Config{Prefix: `it's "another" `}
	if _, err := sqlite.Migrate(t.Context(), db, cfg); err != nil {
		t.Fatal(err)
	}
	other, err := sqlite.New(db, cfg)
	if err != nil {
		t.Fatal(err)
	}
	write(t, s, record("a", 1, "one"))
	write(t, other, record("a", 1, "another"), record("a", 2, "two"))
	err = other.Transact(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		_, err := other.Append(ctx, tx, uuid.New(), []outbox.Record{record("a", 1, "one")})
		return err
	})
	if !errors.Is(err, outbox.ErrConflict) {
		t.Errorf("Append() = %v, want ErrConflict", err)
	}
	for s, want := range map[*sqlite.Store]int64{s: 1, other: 2} {
		if st, err := s.Stats(t.Context()); err != nil || st.Pending != want {
			t.Errorf("Stats() = %+v, %v, want %d pending", st, err, want)
		}
	}
}

func TestStatusViewSaysWhatAnEventWaitsFor(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	s := newStore(t, db)
	write(t, s, record("a", 1, "one"), record("a", 2, "two"), record("b", 1, "one"))
	why := func(key string, id int) (state, why string) {
		t.Helper()
		err := db.QueryRowContext(t.Context(), `SELECT state, why FROM boxpair_outbox_status WHERE key = ? AND id = ?`, key, id).Scan(&state, &why)
		if err != nil {
			t.Fatal(err)
		}
		return state, why
	}
	if state, why := why("b", 3); state != "pending" || why != "no relay owns its shard" {
		t.Errorf("event b is %s: %s", state, why)
	}
	leases := leaseAll(t, s, "relay")
	first := fetchAll(t, s, leases)[0]
	lease := leases[first.Shard]
	if lost, err := s.Park(t.Context(), "relay", lease, []outbox.Failure{{Seq: 1, Attempts: 1, RetryIn: 1 << 40, Error: "no route"}}); lost || err != nil {
		t.Fatal(lost, err)
	}
	for id, want := range map[int][2]string{1: {"retrying", "waits for its next attempt"}, 2: {"pending", "waits for event 1 of its key"}} {
		if state, why := why("a", id); state != want[0] || why != want[1] {
			t.Errorf("event %d is %s: %s, want %v", id, state, why, want)
		}
	}
	var id string
	if err := db.QueryRowContext(t.Context(), `SELECT dispatch_id FROM boxpair_outbox_status WHERE id = 1`).Scan(&id); err != nil || id != first.ID.String() {
		t.Errorf("dispatch ID is %s, %v, want %s", id, err, first.ID)
	}
}

func TestSchemaIsChecked(t *testing.T) {
	t.Parallel()
	db, err := sqlite.Open(filepath.Join(t.TempDir(), "test.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	store, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Stats(t.Context()); !errors.Is(err, migrations.ErrMissing) {
		t.Errorf("without tables, Stats says %v", err)
	}
	for _, c := range []struct {
		state, sql string
		want       error
	}{
		{"nothing is there", ``, migrations.ErrMissing},
		{"another tool has made the tables", `CREATE TABLE boxpair_outbox_events (id INTEGER)`, nil},
		{"migrated", `DROP TABLE boxpair_outbox_events`, nil},
		{"a later version has migrated", `INSERT INTO boxpair_schema_migrations VALUES (1000, 'later', 'x', 0)`, nil},
		{"two are missing", `DELETE FROM boxpair_schema_migrations WHERE number > 2`, migrations.ErrMissing},
		{"one is another", `UPDATE boxpair_schema_migrations SET checksum = 'x' WHERE number = 1`, migrations.ErrChanged},
	} {
		if _, err := db.ExecContext(t.Context(), c.sql); err != nil {
			t.Fatal(err)
		}
		if c.state == "migrated" {
			if _, err := sqlite.Migrate(t.Context(), db, sqlite.Config{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := store.CheckSchema(t.Context()); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.state, err, c.want)
		}
	}
}
