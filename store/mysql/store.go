package mysql

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/store/internal/sqlstore"
)

// Config configures a [Store].
type Config struct {
	// Prefix begins the name of every table; at most 40 bytes. Several outboxes can share a
	// database under different prefixes. Defaults to "boxpair_".
	Prefix string `yaml:"prefix" env:"PREFIX"`
	// Wrapped accepts a database with a wrapped connector, as tracing uses, which New does not
	// recognise. The inner connector must come from [NewConnector]: on other connections claims
	// fail, and a transaction that the server has ended would go on unnoticed. Defaults to false.
	Wrapped bool `yaml:"wrapped" env:"WRAPPED"`
	// AllAttempts keeps a row in outbox_attempts for every confirmed attempt of relays that use the
	// store: the history of an event then shows the relay and the time of each copy. The cost is a
	// row per delivery, kept as long as the event. Inboxes likewise keep a row in inbox_history for
	// every applied message, for consumer.Config.HistoryFor. Defaults to false: failures only.
	AllAttempts bool `yaml:"all_attempts" env:"ALL_ATTEMPTS"`
	// MigrateLockTimeout bounds the wait of [Migrate] for each lock of a table, in whole seconds.
	// While Migrate waits, later transactions wait behind it for the table. Defaults to 5 seconds.
	MigrateLockTimeout time.Duration `yaml:"migrate_lock_timeout" env:"MIGRATE_LOCK_TIMEOUT"`
}

// defaultLockTimeout is short enough for a service to wait for its outbox.
const defaultLockTimeout = 5 * time.Second

// shared has the methods that the stores on MySQL and SQLite have in common.
type shared = sqlstore.Store

// Store keeps outboxes and inboxes in MySQL or MariaDB. Its methods are documented in
// [outbox.Store], [inbox.Store], [inbox.EffectStore] and [inbox.RequestStore]. It is safe for
// concurrent use.
type Store struct {
	shared
	core  *sqlstore.Core
	db    *sql.DB
	names migrations.Names

	lockTimeout time.Duration // of Migrate
}

// New returns a store over db, in which [Migrate] has made the tables. It does no I/O. The caller
// closes db.
func New(db *sql.DB, cfg Config) (*Store, error) {
	names, err := migrations.MySQLNames(cfg.Prefix)
	if db == nil {
		err = errors.Join(err, errors.New("db is nil"))
	} else if _, ok := db.Driver().(*guardedDriver); !ok && !cfg.Wrapped {
		err = errors.Join(err, errors.New("db was not opened by mysql.Open: use mysql.Open, or set Wrapped if the connector was wrapped"))
	}
	if d := cfg.MigrateLockTimeout; d < 0 || d%time.Second != 0 {
		err = errors.Join(err, fmt.Errorf("MigrateLockTimeout: %v is not a number of whole seconds", d))
	}
	if err != nil {
		return nil, fmt.Errorf("mysql store config: %w", err)
	}
	s := &Store{db: db, names: names, lockTimeout: cmp.Or(cfg.MigrateLockTimeout, defaultLockTimeout)}
	s.core = sqlstore.NewCore(db, s.dialect(), cfg.AllAttempts)
	s.shared = sqlstore.New(s.core)
	return s, nil
}
