package mysql

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/store/internal/sqlstore"
)

// migrateWait bounds the wait of [Migrate] for another process that migrates.
const migrateWait = 5 * time.Minute

// Migrate applies the pending migrations to the tables that cfg names, and returns the applied
// migrations. MySQL and MariaDB commit every statement of a migration by itself, so an interrupted
// migration is repeated from its first statement; every statement can be repeated. Migrate waits
// for each lock of a table for Config.MigrateLockTimeout. Processes that migrate at the same time
// take turns. A database that a newer version has migrated, or whose migrations differ from this
// version, is not changed; the error wraps [migrations.ErrNewer] or [migrations.ErrChanged]. A
// server that is too old is refused.
func Migrate(ctx context.Context, db *sql.DB, cfg Config) ([]migrations.Applied, error) {
	s, err := New(db, cfg)
	if err != nil {
		return nil, err
	}
	known, err := migrations.MySQL(s.names)
	if err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	defer func() { _ = conn.Close() }()
	applied, err := s.migrate(ctx, conn, known)
	if err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	return applied, nil
}

// migrate holds the lock of the prefix, which belongs to the connection.
func (s *Store) migrate(ctx context.Context, conn *sql.Conn, known []migrations.Migration) (applied []migrations.Applied, err error) {
	if err := s.checkServer(ctx, conn); err != nil {
		return nil, err
	}
	var schema string
	if err := s.core.One(ctx, conn, []any{&schema}, `SELECT DATABASE()`); err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(schema + "\x00" + s.names.Prefix()))
	lock := "boxpair_" + hex.EncodeToString(sum[:16]) // lock names are global to the server, with at most 64 characters
	var got sql.NullInt64
	if err := s.core.One(ctx, conn, []any{&got}, `SELECT GET_LOCK(?, ?)`, lock, int(migrateWait.Seconds())); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if got.Int64 != 1 {
		return nil, fmt.Errorf("lock: another process has held it for %v", migrateWait)
	}
	defer func() {
		_, released := conn.ExecContext(context.WithoutCancel(ctx), `DO RELEASE_LOCK(?)`, lock)
		err = errors.Join(err, released)
	}()
	var before int
	if err := s.core.One(ctx, conn, []any{&before}, `SELECT @@lock_wait_timeout`); err != nil {
		return nil, err
	}
	if _, err := conn.ExecContext(ctx, fmt.Sprintf(`SET SESSION lock_wait_timeout = %d`, int(s.lockTimeout.Seconds()))); err != nil {
		return nil, err
	}
	defer func() { // the connection goes back to the pool
		_, restored := conn.ExecContext(context.WithoutCancel(ctx), fmt.Sprintf(`SET SESSION lock_wait_timeout = %d`, before))
		err = errors.Join(err, restored)
	}()
	return s.applyPending(ctx, conn, known)
}

func (s *Store) applyPending(ctx context.Context, conn *sql.Conn, known []migrations.Migration) ([]migrations.Applied, error) {
	_, err := s.core.Exec(ctx, conn, `CREATE TABLE IF NOT EXISTS {`+migrations.HistoryTable+`} (
		number     INT NOT NULL PRIMARY KEY,
		name       VARBINARY(255) NOT NULL,
		checksum   VARBINARY(64) NOT NULL,
		applied_at BIGINT NOT NULL -- microseconds since 1970, UTC
	) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4`)
	if err != nil {
		return nil, fmt.Errorf("create history: %w", err)
	}
	return s.core.Migrate(ctx, conn, known, func(ctx context.Context, m migrations.Migration) error {
		statements, err := migrations.Statements(m.SQL)
		if err != nil {
			return err
		}
		for _, statement := range statements {
			_, err := conn.ExecContext(ctx, statement)
			if errorNumber(err) == erColumnIsThere {
				err = nil // done before the migration was interrupted
			}
			if errorNumber(err) == erLockWaitTimeout {
				err = fmt.Errorf("%w: another transaction has held a table of the migration for %v (MigrateLockTimeout): call again after its end", err, s.lockTimeout)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// oldest has the oldest servers with SKIP LOCKED and all other features that the store uses.
var oldest = map[string][3]int{"MySQL": {8, 0, 16}, "MariaDB": {10, 6, 0}}

// checkServer refuses servers that are too old.
func (s *Store) checkServer(ctx context.Context, q sqlstore.Querier) error {
	var text string
	if err := s.core.One(ctx, q, []any{&text}, `SELECT VERSION()`); err != nil {
		return err
	}
	name, version, err := parseVersion(text)
	if err != nil {
		return err
	}
	least := oldest[name]
	for i := range least {
		if version[i] != least[i] {
			if version[i] < least[i] {
				return fmt.Errorf("the server is %s %s: %d.%d.%d or later is required", name, text, least[0], least[1], least[2])
			}
			break
		}
	}
	return nil
}

// parseVersion parses the result of VERSION(), such as 8.0.36 or 10.11.6-MariaDB-log.
func parseVersion(text string) (name string, version [3]int, err error) {
	name = "MySQL"
	if strings.Contains(strings.ToLower(text), "mariadb") {
		name = "MariaDB"
		text = strings.TrimPrefix(text, "5.5.5-") // a prefix for old replicas
	}
	number, _, _ := strings.Cut(text, "-")
	for i, part := range strings.SplitN(number, ".", 3) {
		if version[i], err = strconv.Atoi(part); err != nil {
			return "", version, fmt.Errorf("the server has the unknown version %q", text)
		}
	}
	return name, version, nil
}

// CheckSchema compares the migrations of the database with this version of the library. The error
// wraps [migrations.ErrMissing] if the database lacks a migration, and [migrations.ErrChanged] if a
// migration differs. Later migrations are no error. If another tool has made the tables,
// CheckSchema cannot tell and returns nil.
func (s *Store) CheckSchema(ctx context.Context) error {
	known, err := migrations.MySQL(s.names)
	if err != nil {
		return fmt.Errorf("check the schema: %w", err)
	}
	return s.core.CheckSchema(ctx, known)
}
