package sqlite

import (
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
	// Unguarded accepts a database that does not come from [Open] or, unwrapped, from
	// [NewConnector]. The caller sets a busy timeout, write-ahead logging and synchronous=FULL.
	// Without the guard, statements after a swallowed error that has ended the transaction are
	// committed one by one, and the timeouts of a Claim have no effect. Defaults to false.
	Unguarded bool `yaml:"unguarded" env:"UNGUARDED"`
	// AllAttempts keeps a row in outbox_attempts for every confirmed attempt of relays that use the
	// store: the history of an event then shows the relay and the time of each copy. The cost is a
	// row per delivery, kept as long as the event. Inboxes likewise keep a row in inbox_history for
	// every applied message, for consumer.Config.HistoryFor. Defaults to false: failures only.
	AllAttempts bool `yaml:"all_attempts" env:"ALL_ATTEMPTS"`
}

// shared has the methods that the stores on MySQL and SQLite have in common.
type shared = sqlstore.Store

// Store keeps outboxes and inboxes in SQLite. Its methods are documented in [outbox.Store],
// [inbox.Store], [inbox.EffectStore] and [inbox.RequestStore]. It is safe for concurrent use.
type Store struct {
	shared
	core  *sqlstore.Core
	db    *sql.DB
	names migrations.Names
	gate  *gate // nil without a guard
	busy  time.Duration
}

// New returns a store over db, in which [Migrate] has made the tables. It does no I/O. The caller
// closes db.
func New(db *sql.DB, cfg Config) (*Store, error) {
	names, err := migrations.SQLiteNames(cfg.Prefix)
	s := &Store{db: db, names: names, busy: defaultBusyTimeout}
	if db == nil {
		err = errors.Join(err, errors.New("db is nil"))
	} else if d, ok := db.Driver().(*guardedDriver); ok {
		s.gate, s.busy = d.gate, d.busy
	} else if !cfg.Unguarded {
		err = errors.Join(err, errors.New("db was not opened by sqlite.Open: use sqlite.Open, or set Unguarded"))
	}
	if err != nil {
		return nil, fmt.Errorf("sqlite store config: %w", err)
	}
	s.core = sqlstore.NewCore(db, s.dialect(), cfg.AllAttempts)
	s.shared = sqlstore.New(s.core)
	return s, nil
}
