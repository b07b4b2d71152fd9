package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/migrations"
)

// Config says where the tables are. The zero value is ready to use.
type Config struct {
	// Schema is the schema of the tables. At most 63 bytes; any characters but NUL. Defaults to
	// "boxpair".
	Schema string `yaml:"schema" env:"SCHEMA"`
	// Prefix is put before the name of every table, so that several outboxes may share a schema. At
	// most 40 bytes; any characters but NUL. Defaults to none.
	Prefix string `yaml:"prefix" env:"PREFIX"`
	// Isolation is the isolation level of the transactions of [Store.Transact]. Defaults to
	// [pgx.ReadCommitted].
	Isolation pgx.TxIsoLevel `yaml:"isolation" env:"ISOLATION"`
	// AllAttempts makes relays on the store keep a row in outbox_attempts for every confirmed
	// attempt, too: the history of an event then names the relay and the time of each copy. A row
	// per delivery is kept as long as the event. Inboxes keep a row in inbox_history for every
	// applied message, for as long as consumer.Config.HistoryFor says. Defaults to false: failures
	// only.
	AllAttempts bool `yaml:"all_attempts" env:"ALL_ATTEMPTS"`
	// MigrateLockTimeout is how long [Migrate] waits for each lock of a table before it gives up.
	// Later users of the table wait behind Migrate for as long. Defaults to 5 seconds.
	MigrateLockTimeout time.Duration `yaml:"migrate_lock_timeout" env:"MIGRATE_LOCK_TIMEOUT"`
	// Direct opens a connection to the same database without a pooler in between, for relays that listen
	// while the pool is behind a pooler in transaction mode. A relay calls Direct when it begins to listen,
	// and again after the connection has ended. The relay closes the connection. After an error of Direct,
	// the relay logs the error, polls, and calls Direct again, at most 5 seconds later. Defaults to nil: a
	// relay listens on a connection of the pool.
	Direct func(ctx context.Context) (*pgx.Conn, error) `yaml:"-" env:"-"`
	// Logger receives the locks that [Migrate] is going to take. Defaults to [slog.Default].
	Logger *slog.Logger `yaml:"-" env:"-"`
}

// Store keeps outboxes and inboxes in PostgreSQL. It is safe for concurrent use.
type Store struct {
	pool  *pgxpool.Pool
	conns connections // for transactions
	// direct is [Config.Direct], or takes a connection out of the pool.
	direct func(ctx context.Context) (*pgx.Conn, error)
	names  migrations.Names
	iso    pgx.TxIsoLevel
	mode   pgx.QueryExecMode
	keeps  bool // the pool keeps prepared statements, see [Store.kept]
	// hidden tells that the database does not tell its whole identity, see [Store.Identity].
	hidden atomic.Bool
	// batches tells that a statement of the caller does the same in a batch.
	batches bool
	sql     statements

	allAttempts bool

	writerVariable string // set in a transaction by its writer
	channel        string // wakes relays
}

// New returns a store over pool, without I/O: [Migrate] creates the tables. The caller closes the
// pool after all users of the store have ended.
func New(pool *pgxpool.Pool, cfg Config) (*Store, error) {
	names, err := cfg.names()
	err = errors.Join(err, cfg.checkTimeout())
	if pool == nil {
		err = errors.Join(err, errors.New("pool is nil"))
	}
	switch cfg.Isolation {
	case "":
		cfg.Isolation = pgx.ReadCommitted
	case pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable:
	default:
		err = errors.Join(err, fmt.Errorf("Isolation: %q is not read committed, repeatable read or serializable", cfg.Isolation))
	}
	if err != nil {
		return nil, fmt.Errorf("postgres store config: %w", err)
	}
	if cfg.Direct == nil {
		cfg.Direct = pooled{pool}.hijack
	}
	return &Store{
		pool:   pool,
		conns:  pooled{pool},
		direct: cfg.Direct,
		names:  names,
		iso:    cfg.Isolation,
		mode:   planEach(pool.Config().ConnConfig),
		keeps:  prepares(pool),
		// A tracer of single statements would not see a statement in a batch.
		batches: prepares(pool) && pool.Config().ConnConfig.Tracer == nil,

		sql: newStatements(names),

		allAttempts: cfg.AllAttempts,

		writerVariable: "boxpair.w_" + hashed(names, "writer"),
		channel:        "boxpair_" + hashed(names, "wake"),
	}, nil
}

func (c Config) names() (migrations.Names, error) {
	return migrations.PostgresNames(c.Schema, c.Prefix)
}

// planEach returns a mode of execution in which the server plans a statement each time. The plan of
// a prepared statement is kept, and a plan made for an empty queue would read all of a queue that
// has filled up since.
//
// A connection that neither prepares nor describes keeps its mode: a pooler may change the session
// between the round trip that prepares and the round trip that executes.
func planEach(cfg *pgx.ConnConfig) pgx.QueryExecMode {
	switch mode := cfg.DefaultQueryExecMode; mode {
	case pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol:
		return mode
	}
	if cfg.DescriptionCacheCapacity > 0 {
		return pgx.QueryExecModeCacheDescribe // one round trip, except for the first time
	}
	return pgx.QueryExecModeDescribeExec
}

// prepares tells whether the pool's connections prepare statements and keep them.
func prepares(pool *pgxpool.Pool) bool {
	cfg := pool.Config().ConnConfig
	return cfg.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement && cfg.StatementCacheCapacity > 0
}

// digest identifies a lock, a variable or a channel of the tables that n names.
func digest(n migrations.Names, what string) [sha256.Size]byte {
	return sha256.Sum256(fmt.Appendf(nil, "boxpair %q %q %s", n.Schema(), n.Prefix(), what))
}

// lockID returns the key of an advisory lock.
func lockID(n migrations.Names, what string) int64 {
	sum := digest(n, what)
	return int64(binary.BigEndian.Uint64(sum[:]))
}

// hashed returns a short name, valid for any object of PostgreSQL.
func hashed(n migrations.Names, what string) string {
	sum := digest(n, what)
	return hex.EncodeToString(sum[:8])
}
