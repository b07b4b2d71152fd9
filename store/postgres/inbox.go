package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/internal/sqlstore"
	"github.com/boxpair/boxpair/transport"
)

var _ inbox.Store[pgx.Tx] = (*Store)(nil)

const (
	// ownIdle bounds the idle time of a transaction without a handler. Such a transaction is idle
	// only if this process was stopped, and must not keep its locks then.
	ownIdle = 30 * time.Second
	// minCommit is the least time for a COMMIT, even if the deadline of its context is closer: a
	// cut-off COMMIT has an unknown outcome.
	minCommit = time.Second
)

// claimOptions say how a transaction of an inbox begins.
type claimOptions struct {
	isolation  inbox.Isolation
	idle, lock time.Duration // 0 leaves the setting of the session
	keys       []int64       // locks of keys, ascending
	lean       bool          // the claim includes the settings
}

// The settings of a transaction until its claim is made, and the end of the settings. Variables of
// the transaction save the settings of the session, which come back for the handler.
const (
	saveLockTimeout = `
       set_config('boxpair.lock_timeout', current_setting('lock_timeout'), true),
       set_config('lock_timeout', coalesce($1::text, current_setting('lock_timeout')), true)`
	setTimeouts = saveLockTimeout + `,
       set_config('idle_in_transaction_session_timeout',
           coalesce($2::text, current_setting('idle_in_transaction_session_timeout')), true)`
	restoreLockTimeout = `set_config('lock_timeout', current_setting('boxpair.lock_timeout'), true)`
	restoreSeqscan     = `set_config('enable_seqscan', current_setting('boxpair.enable_seqscan'), true)`
)

// Statements that look for parked messages run without sequential scans: a pool keeps the plans of
// its prepared statements, and a plan made for an empty table would read a full table later.
var (
	claimSettings = statement(`
SELECT set_config('boxpair.enable_seqscan', current_setting('enable_seqscan'), true),
       set_config('enable_seqscan', 'off', true),` + setTimeouts)
	restoreSettings = statement(`SELECT ` + restoreLockTimeout + `, ` + restoreSeqscan)
)

// indexesOnly forbids sequential scans for plans made after the claim, at the end of a transaction.
const indexesOnly = "SET LOCAL enable_seqscan = off"

// The locks of keys are held until the transaction ends. A separate statement takes the locks: a
// statement that also read tables would see the tables as of the time before the wait.
//
// Above READ COMMITTED even a separate statement is too late, since the first statement of a
// transaction fixes the snapshot, even while it waits. There the session takes the lock in an
// earlier transaction, and hands the lock over to the transaction of the claim. Both transactions
// are one message to the server, so a pooler cannot separate them.
const (
	lockKeys        = "SELECT pg_advisory_xact_lock(k) FROM unnest($1::bigint[]) AS k" // a function in FROM returns its rows in order
	lockKeysEarly   = "SELECT pg_advisory_lock(k) FROM unnest($1::bigint[]) AS k"
	unlockKeysEarly = "SELECT pg_advisory_unlock(k) FROM unnest($1::bigint[]) AS k"
)

// open takes a connection for a transaction of an inbox, which begins with settings and locks of
// keys. [transaction.end] must be called.
func (s *Store) open(ctx context.Context, o claimOptions) (*transaction, error) {
	level := isolationLevel(o.isolation)
	early := len(o.keys) > 0 && level != pgx.ReadCommitted
	first := level
	if early {
		first = pgx.ReadCommitted
	}
	t, err := s.newTransaction(ctx, pgx.TxOptions{IsoLevel: first})
	if err != nil {
		return nil, fmt.Errorf("acquire a connection: %w", &ownError{err})
	}
	b := t.opening
	settings := func() { b.Queue(s.sql[claimSettings], setting(o.lock), setting(o.idle)) }
	switch {
	case early:
		t.holdsLocks = true
		settings()
		b.Queue(lockKeysEarly, o.keys)
		b.Queue("commit")
		b.Queue("begin isolation level " + string(level))
		settings()
		b.Queue(lockKeys, o.keys)
		b.Queue(unlockKeysEarly, o.keys)
	case len(o.keys) > 0:
		settings()
		b.Queue(lockKeys, o.keys)
	case !o.lean:
		settings()
	}
	return t, nil
}

// sendOwn sends b. No handler is to blame for its error.
func (t *transaction) sendOwn(ctx context.Context, doing string, b *pgx.Batch) error {
	if err := t.send(ctx, b); err != nil {
		return failed(doing, &ownError{err})
	}
	return nil
}

// sendAndCommit sends b and a COMMIT, for statements that can be repeated after an unknown outcome.
func (t *transaction) sendAndCommit(ctx context.Context, doing string, b *pgx.Batch) error {
	b.Queue("commit")
	if err := t.sendOwn(ctx, doing, b); err != nil {
		return err
	}
	t.over = true
	return nil
}

// commitClaim commits a claim with the effects of its handler. It waits until the deadline of ctx,
// or for [minCommit] if the deadline is closer. The end of ctx does not cut off a sent COMMIT.
func (t *transaction) commitClaim(ctx context.Context) error {
	outcome, err := t.askCommit(ctx)
	return t.commitError(outcome, err)
}

func (t *transaction) askCommit(ctx context.Context) (outcome, error) {
	if err := ctx.Err(); err != nil {
		return rolledBack, fmt.Errorf("before commit: %w", err)
	}
	bound := commitTimeout
	if deadline, ok := ctx.Deadline(); ok {
		bound = max(minCommit, time.Until(deadline))
	}
	return t.commit(ctx, bound)
}

// commitError returns the error of a commit to the inbox. The error of a queued statement comes
// back unchanged.
func (t *transaction) commitError(o outcome, err error) error {
	switch {
	case o == committed:
		return nil
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return fmt.Errorf("commit: %w", inbox.ErrRolledBack)
	case errors.Is(err, pgx.ErrTxClosed), errors.Is(err, sqlstore.ErrEnded):
		return fmt.Errorf("commit: %w", sqlstore.ErrEnded)
	case o == unsent:
		return fmt.Errorf("before commit: %w", unsentError(err))
	case o == rolledBack && !t.over:
		return err
	case o == rolledBack:
		return fmt.Errorf("commit: %w", err)
	}
	return fmt.Errorf("commit: %w: %w", inbox.ErrCommitUnknown, err)
}

// unsentError marks an error of the connection, for which no handler is to blame. An argument that
// cannot be encoded is the handler's error. pgx closes the connection in both cases.
func unsentError(err error) error {
	pgErr, answered := errors.AsType[*pgconn.PgError](err)
	_, broken := errors.AsType[net.Error](err)
	broken = broken || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
	if broken || pgconn.SafeToRetry(err) || answered && pgErr.SeverityUnlocalized != "ERROR" {
		return &ownError{err}
	}
	return err
}

// isolationLevel returns the level in pgx's terms, and the strictest level for an unknown level.
func isolationLevel(i inbox.Isolation) pgx.TxIsoLevel {
	switch i {
	case inbox.ReadCommitted:
		return pgx.ReadCommitted
	case inbox.RepeatableRead:
		return pgx.RepeatableRead
	default:
		return pgx.Serializable
	}
}

// setting returns d as the value of a setting in milliseconds, or NULL for 0.
func setting(d time.Duration) *string {
	if d <= 0 {
		return nil
	}
	text := strconv.FormatInt(max(1, min(d.Milliseconds(), 1<<31-1)), 10)
	return &text
}

// keyLock returns the lock of a key. The lock is a hash: two keys may share a lock and wait for
// each other without need.
func (s *Store) keyLock(consumer int, key string) int64 {
	return lockID(s.names, "inbox key "+strconv.Itoa(consumer)+" "+key)
}

// Conversions between values of Go and of the database.

func idValue(id uuid.UUID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

func digestValue(d transport.Digest) []byte {
	if d.IsZero() {
		return nil
	}
	return d[:]
}

func timeValue(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()}
}

func timeOf(t pgtype.Timestamptz) time.Time {
	if !t.Valid {
		return time.Time{}
	}
	return t.Time.UTC()
}

func digestOf(b []byte) (d transport.Digest) {
	copy(d[:], b)
	return d
}

// ownError marks an error for which no handler is to blame, see [Store.Classify].
type ownError struct{ err error }

func (e *ownError) Error() string { return e.err.Error() }
func (e *ownError) Unwrap() error { return e.err }

// Classify implements [inbox.ClaimStore]. Serialization failures, deadlocks and lock timeouts are
// conflicts. Errors of the server, of the connection and of this package's own statements belong to
// the infrastructure. All other errors are the handler's, including a transaction that the server
// ended because it was idle for too long.
func (s *Store) Classify(err error) inbox.ErrorClass {
	if errors.Is(err, inbox.ErrCommitUnknown) {
		return inbox.CommitUnknown
	}
	code := sqlState(err)
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	_, own := errors.AsType[*ownError](err)
	switch {
	case connecting:
		return inbox.Infrastructure
	case code == "40001", code == "40P01", code == "55P03":
		return inbox.Conflict
	case idledOut(err):
		return inbox.HandlerError
	case own, errors.Is(err, pgconn.ErrConnClosed), pgconn.Timeout(err):
		return inbox.Infrastructure
	case code == "25006": // read_only_sql_transaction: a standby
		return inbox.Infrastructure
	case len(code) == 5 && (code[:2] == "08" || code[:2] == "53" || code[:2] == "58" || code[:3] == "57P"):
		return inbox.Infrastructure
	}
	return inbox.HandlerError
}

// idledOut tells whether the server ended a transaction that took too long: by
// idle_in_transaction_session_timeout or transaction_timeout.
func idledOut(err error) bool {
	code := sqlState(err)
	return code == "25P03" || code == "25P04"
}
