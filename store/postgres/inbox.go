package postgres

import (
	"context"
	"errors"
	"fmt"
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
	// ownIdle bounds how long a transaction without a handler may be idle. It is
	// idle only if this process was stopped, and then it must not keep what it has locked.
	ownIdle = 30 * time.Second
	// minCommit is what a COMMIT is given even if the deadline of its context is
	// closer: cut off, its outcome would be unknown.
	minCommit = time.Second
)

// terms say how a transaction of an inbox begins.
type terms struct {
	isolation  inbox.Isolation
	idle, lock time.Duration // 0 leaves the setting of the session
	keys       []int64       // locks of keys, ascending
	lean       bool          // the claim brings the settings along
}

// The settings of a transaction up to the end of its claim, and their end.
// Those of the session, which come back for the handler, wait in variables of the
// transaction.
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

// Statements that look for parked messages run without sequential scans, because the plans
// of a pool's prepared statements are kept, and those that were made while a table
// was empty would read all of it later.
var (
	claimSettings = statement(`
SELECT set_config('boxpair.enable_seqscan', current_setting('enable_seqscan'), true),
       set_config('enable_seqscan', 'off', true),` + setTimeouts)
	restoreSettings = statement(`SELECT ` + restoreLockTimeout + `, ` + restoreSeqscan)
)

// indexesOnly is for plans that are made after that, at the end of a transaction.
const indexesOnly = "SET LOCAL enable_seqscan = off"

// The locks of keys are held until the transaction ends. They are taken by a
// statement of their own: one that looked at tables as well would see
// them as they were before the wait.
//
// For the levels above READ COMMITTED even that is too late, since the first statement
// decides what the whole transaction sees, the waiting one included. There the session
// takes the lock in a transaction before, and hands it over to the one
// that needs it. All of it is one message to the server, so a pooler in between cannot
// separate the two.
const (
	lockKeys        = "SELECT pg_advisory_xact_lock(k) FROM unnest($1::bigint[]) AS k" // a function in FROM gives its rows in order
	lockKeysEarly   = "SELECT pg_advisory_lock(k) FROM unnest($1::bigint[]) AS k"
	unlockKeysEarly = "SELECT pg_advisory_unlock(k) FROM unnest($1::bigint[]) AS k"
)

// work is one transaction of an inbox, on a connection of its own.
type work struct {
	store *Store
	conn  connection
	tx    pgx.Tx
	late  *pgx.Batch // what is queued for the end; nil for nothing
	early bool       // the session may hold the lock of a key
	over  bool       // committed, or sent to be
}

// open takes a connection and returns the beginning of a transaction on it, to be
// sent with [work.send]. Whatever happens, [work.end] must be called.
func (s *Store) open(ctx context.Context, t terms) (*work, *pgx.Batch, error) {
	conn, err := s.conns.acquire(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("acquire a connection: %w", &ownError{err})
	}
	w := &work{store: s, conn: conn}
	level := isolationLevel(t.isolation)
	b := &pgx.Batch{}
	settings := func() { b.Queue(s.sql[claimSettings], setting(t.lock), setting(t.idle)) }
	switch {
	case len(t.keys) > 0 && level != pgx.ReadCommitted:
		w.early = true
		b.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
		settings()
		b.Queue(lockKeysEarly, t.keys)
		b.Queue("commit")
		b.Queue("begin isolation level " + string(level))
		settings()
		b.Queue(lockKeys, t.keys)
		b.Queue(unlockKeysEarly, t.keys)
	case len(t.keys) > 0:
		b.BeginTx(pgx.TxOptions{IsoLevel: level})
		settings()
		b.Queue(lockKeys, t.keys)
	default:
		b.BeginTx(pgx.TxOptions{IsoLevel: level})
		if !t.lean {
			settings()
		}
	}
	return w, b, nil
}

// send sends b in one round trip and waits for its results.
func (w *work) send(ctx context.Context, doing string, b *pgx.Batch) error {
	br := w.conn.SendBatch(ctx, b)
	if w.tx == nil {
		w.tx = br.Tx()
	}
	if err := br.Close(); err != nil {
		return failed(doing, &ownError{err})
	}
	w.early = false
	return nil
}

// sendAll sends b with a COMMIT behind it. It is for what may be done again.
func (w *work) sendAll(ctx context.Context, doing string, b *pgx.Batch) error {
	b.Queue("commit")
	if err := w.send(ctx, doing, b); err != nil {
		return err
	}
	w.over = true
	return nil
}

// end rolls back what was not committed, also when a handler panicked or called
// Goexit, and gives the connection back.
func (w *work) end(ctx context.Context) {
	if w.tx != nil && !w.over {
		rollback(ctx, w.tx)
	}
	if w.early { // the server gives up the locks of a session with the session
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		_ = w.conn.Conn().Close(closing)
		cancel()
	}
	w.conn.Release()
}

var _ owner = (*work)(nil)

// begun implements [owner]: a handler is run when the claim is made.
func (w *work) begun(context.Context) (pgx.Tx, error) { return w.tx, nil }

// open implements [owner].
func (w *work) open() bool { return w.tx != nil }

// raw implements [owner].
func (w *work) raw() *pgx.Conn { return w.conn.Conn() }

// lends implements [owner].
func (w *work) lends() *lentConn { return w.conn.(*lentConn) }

// run runs a handler.
func (w *work) run(ctx context.Context, o owner, fn func(tx pgx.Tx) error) error {
	return w.explain(hand(ctx, o, func(h *handing) error { return fn(h.tx()) }))
}

// explain returns the error of a handler. It comes back as it is, unless something is to be
// said about it: that the connection is gone, for [Store.Classify], or that a statement
// before the one that reported it has failed.
func (w *work) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case sqlState(err) == "25P02": // in_failed_sql_transaction
		return fmt.Errorf("%w (a statement before it had failed in this transaction, and its error was not returned)", err)
	case w.conn.Conn().IsClosed():
		return &ownError{err}
	}
	return err
}

// commit commits. It is bounded by the deadline of ctx, or by [minCommit] if
// that is later, but not cut off by an end of ctx: a COMMIT that was sent is waited for.
func (w *work) commit(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("before commit: %w", err)
	}
	ctx, cancel := committing(ctx)
	defer cancel()
	conn := w.conn.Conn()
	switch {
	case conn.IsClosed(): // no COMMIT is sent, so the outcome is known
		return fmt.Errorf("commit: %w", &ownError{pgconn.ErrConnClosed})
	case conn.PgConn().TxStatus() == 'I':
		return fmt.Errorf("commit: %w", sqlstore.ErrEnded)
	}
	if w.late != nil {
		return w.commitLate(ctx)
	}
	w.over = true
	return commitError(w.tx.Commit(ctx))
}

// committing returns the context of a COMMIT within that of its transaction.
func committing(ctx context.Context) (context.Context, context.CancelFunc) {
	bound := commitTimeout
	if deadline, ok := ctx.Deadline(); ok {
		bound = max(minCommit, time.Until(deadline))
	}
	return context.WithTimeout(context.WithoutCancel(ctx), bound)
}

// commitError tells what the error of a COMMIT means.
func commitError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return fmt.Errorf("commit: %w", inbox.ErrRolledBack)
	case errors.Is(err, pgx.ErrTxClosed):
		return fmt.Errorf("commit: %w", sqlstore.ErrEnded)
	case refused(err), idledOut(err): // idle: the server had given up before it could read the COMMIT
		return fmt.Errorf("commit: %w", err)
	}
	return fmt.Errorf("commit: %w: %w", inbox.ErrCommitUnknown, err)
}

// isolationLevel returns the level in pgx's terms. What is not a level is the strictest.
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

// keyLock returns the lock of a key. It is a hash: two keys may share one and
// wait for each other without need.
func (s *Store) keyLock(consumer int, key string) int64 {
	return lockID(s.names, "inbox key "+strconv.Itoa(consumer)+" "+key)
}

// Values as the database takes and gives them.

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

// ownError marks an error that no handler is to blame for, see [Store.Classify].
type ownError struct{ err error }

func (e *ownError) Error() string { return e.err.Error() }
func (e *ownError) Unwrap() error { return e.err }

// Classify implements [inbox.ClaimStore]. Serialization failures, deadlocks and
// lock timeouts are conflicts. Errors of the server as such, of the way to it and of this package's
// own statements are of the infrastructure. A transaction that the server ended
// because it was idle for too long is the handler's error, as is all else.
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

// idledOut tells whether the server ended a transaction since it took too
// long: idle_in_transaction_session_timeout or transaction_timeout.
func idledOut(err error) bool {
	code := sqlState(err)
	return code == "25P03" || code == "25P04"
}
