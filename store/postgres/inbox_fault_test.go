package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/postgres"
)

// inboxRig is a store with a registered consumer and a table of effects.
type inboxRig struct {
	*rig
	consumer int
}

func newInboxRig(t *testing.T) *inboxRig {
	t.Helper()
	r := &inboxRig{rig: newRig(t)}
	r.exec("CREATE TABLE effects (name text)")
	got, err := r.Register(r.ctx(), "service/handler", time.Hour)
	r.ok(err)
	r.consumer = got.Consumer
	return r
}

func (r *inboxRig) claim() inbox.Claim {
	return inbox.Claim{
		Consumer: r.consumer, ID: uuid.New(), Stamp: time.Now(), IdleTimeout: patience, LockTimeout: patience,
	}
}

// keyed returns a claim of a handler that wants order.
func (r *inboxRig) keyed(key string) inbox.Claim {
	c := r.claim()
	c.Key = key
	c.Message = &inbox.Message{ID: c.ID, Topic: "topic", Key: key}
	return c
}

// claims returns one claim of each kind.
func (r *inboxRig) claims() map[string]inbox.Claim {
	plain, keyed := r.claim(), r.keyed(uuid.NewString())
	soon, keyedSoon := r.claim(), r.keyed(uuid.NewString())
	soon.Optimistic, keyedSoon.Optimistic = true, true
	return map[string]inbox.Claim{"plain": plain, "keyed": keyed, "optimistic": soon, "optimistic and keyed": keyedSoon}
}

func effect(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "INSERT INTO effects VALUES ('effect')")
	return err
}

func (r *inboxRig) expectEffects(want int) {
	r.Helper()
	if got := value[int](r.rig, "SELECT count(*) FROM effects"); got != want {
		r.Fatalf("%d effects, want %d", got, want)
	}
}

func (r *inboxRig) expectVerdict(c inbox.Claim, want inbox.Verdict) {
	r.Helper()
	got, err := r.Apply(r.ctx(), c, effect)
	r.ok(err)
	if got != want {
		r.Fatalf("verdict is %v, want %v", got, want)
	}
}

func (r *inboxRig) expectClass(err error, want inbox.ErrorClass) {
	r.Helper()
	if err == nil {
		r.Fatal("there is no error")
	}
	if got := r.Classify(err); got != want {
		r.Fatalf("class of %q is %v, want %v", err, got, want)
	}
}

// fault breaks connections at their next COMMIT.
type fault int32

const (
	none        fault = iota
	replyLost         // the server commits, but its answer does not arrive
	requestLost       // the server never gets to know
)

// faultyConn is a connection that fails once while a COMMIT is under way.
type faultyConn struct {
	net.Conn
	next *atomic.Int32
	lost atomic.Bool
}

var queryCommit = []byte("commit\x00")

func (c *faultyConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, queryCommit) {
		switch fault(c.next.Swap(int32(none))) {
		case requestLost:
			_ = c.Close()
			return len(b), nil
		case replyLost:
			c.lost.Store(true)
		}
	}
	return c.Conn.Write(b)
}

func (c *faultyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil && c.lost.Load() { // what was read says that the server has committed
		_ = c.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// newFaultyRig returns an inbox whose connections break at a COMMIT when next says so.
func newFaultyRig(t *testing.T) (r *inboxRig, next *atomic.Int32) {
	t.Helper()
	return newFaultyRigIn(t, pgx.QueryExecModeCacheStatement)
}

func newFaultyRigIn(t *testing.T, mode pgx.QueryExecMode) (r *inboxRig, next *atomic.Int32) {
	t.Helper()
	r = newInboxRig(t)
	next = new(atomic.Int32)
	cfg := r.pool.Config()
	cfg.ConnConfig.TLSConfig, cfg.ConnConfig.Fallbacks = nil, nil
	cfg.ConnConfig.DefaultQueryExecMode = mode
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return &faultyConn{Conn: conn, next: next}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	r.ok(err)
	t.Cleanup(pool.Close)
	r.Store, err = postgres.New(pool, postgres.Config{Schema: r.names.Schema()})
	r.ok(err)
	return r, next
}

func TestCommitWhoseReplyIsLostIsUnknownAndACopyTells(t *testing.T) {
	t.Parallel()
	r, next := newFaultyRig(t)
	c := r.keyed("key")
	next.Store(int32(replyLost))
	v, err := r.Apply(r.ctx(), c, effect)
	if v != inbox.None || !errors.Is(err, inbox.ErrCommitUnknown) {
		t.Fatalf("Apply gives %v, %v", v, err)
	}
	r.expectClass(err, inbox.CommitUnknown)
	r.expectVerdict(c, inbox.Duplicate)
	r.expectEffects(1)
}

func TestCommitThatNeverArrivedIsUnknownAndTheMessageRunsAgain(t *testing.T) {
	t.Parallel()
	r, next := newFaultyRig(t)
	c := r.keyed("key")
	next.Store(int32(requestLost))
	_, err := r.Apply(r.ctx(), c, effect)
	if !errors.Is(err, inbox.ErrCommitUnknown) {
		t.Fatalf("Apply gives %v", err)
	}
	r.expectVerdict(c, inbox.Applied)
	r.expectEffects(1)
}

func TestParkedMessageWhoseCommitIsUnknownHasOneEffect(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]fault{"reply lost": replyLost, "request lost": requestLost} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, next := newFaultyRig(t)
			m := &inbox.Message{ID: uuid.New(), Topic: "topic", Key: "key"}
			park := func() (inbox.Verdict, error) {
				return r.ParkMessage(r.ctx(), inbox.Parking{Consumer: r.consumer, Message: m, State: inbox.Retrying, Ordered: true})
			}
			next.Store(int32(f))
			_, err := park()
			r.expectClass(err, inbox.CommitUnknown)
			want := map[fault]inbox.Verdict{replyLost: inbox.Duplicate, requestLost: inbox.Applied}[f]
			if v, err := park(); err != nil || v != want {
				t.Fatalf("parking again gives %v, %v, want %v", v, err, want)
			}
			seqs, _, err := r.DueMessages(r.ctx(), r.consumer, 10)
			r.ok(err)
			if len(seqs) != 1 {
				t.Fatalf("%d messages are due", len(seqs))
			}
			handle := func(ctx context.Context, tx pgx.Tx, _ *inbox.Parked) error { return effect(ctx, tx) }
			next.Store(int32(f))
			_, err = r.ApplyParked(r.ctx(), r.claim(), seqs[0], handle)
			r.expectClass(err, inbox.CommitUnknown)
			r.eventually("second run", func() bool {
				_, err = r.ApplyParked(r.ctx(), r.claim(), seqs[0], handle)
				r.ok(err)
				return value[int](r.rig, "SELECT count(*) FROM effects") == 1
			})
			seqs, _, err = r.DueMessages(r.ctx(), r.consumer, 10)
			r.ok(err)
			if len(seqs) != 0 {
				t.Errorf("%d messages are still due", len(seqs))
			}
			r.expectEffects(1)
		})
	}
}

// A deferred trigger makes COMMIT wait, so the server can be told to end it.
func TestCommitThatIsTerminatedIsUnknown(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	r.exec("CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END'")
	r.exec("CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()")
	blocker := r.begin()
	_, err := blocker.Exec(r.ctx(), "SELECT pg_advisory_xact_lock(1)")
	r.ok(err)
	c := r.claim()
	var backend int
	applied := r.async(func() error {
		_, err := r.Apply(r.ctx(), c, func(ctx context.Context, tx pgx.Tx) error {
			if err := tx.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&backend); err != nil {
				return err
			}
			return effect(ctx, tx)
		})
		return err
	})
	r.waitsForLock(1)
	r.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
	err = r.result(applied)
	r.expectClass(err, inbox.CommitUnknown)
	r.ok(blocker.Rollback(r.ctx()))
	r.expectVerdict(c, inbox.Applied)
	r.expectEffects(1)
}

func TestCommitRefusedByADeferredConstraintIsTheHandlersError(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	r.exec("CREATE TABLE once (name text UNIQUE DEFERRABLE INITIALLY DEFERRED)")
	c := r.claim()
	_, err := r.Apply(r.ctx(), c, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO once VALUES ('secret'), ('secret')")
		return err
	})
	r.expectClass(err, inbox.HandlerError)
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("error shows a row: %v", err)
	}
	r.expectVerdict(c, inbox.Applied)
}

func TestTerminatedBackendRollsBackAndIsTheInfrastructures(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	c := r.claim()
	for name, after := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"handler returns the error": effect,
		"handler swallows the error": func(ctx context.Context, tx pgx.Tx) error {
			_ = effect(ctx, tx)
			return nil
		},
		"handler does nothing after it": func(context.Context, pgx.Tx) error { return nil },
	} {
		_, err := r.Apply(r.ctx(), c, func(ctx context.Context, tx pgx.Tx) error {
			r.ok(effect(ctx, tx))
			pid := tx.Conn().PgConn().PID()
			r.exec("SELECT pg_terminate_backend($1)", int(pid))
			r.eventually("end of the backend", func() bool {
				return value[int](r.rig, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", int(pid)) == 0
			})
			return after(ctx, tx)
		})
		// The end of the session may be read before or after the COMMIT is sent.
		if class := r.Classify(err); err == nil || class != inbox.Infrastructure && class != inbox.CommitUnknown {
			t.Errorf("%s: class of %v is %v", name, err, class)
		}
		r.expectEffects(0)
	}
	r.expectVerdict(c, inbox.Applied)
}

func TestIdleTimeoutFreesTheClaimOfAStuckHandler(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	for _, end := range []struct {
		fn   func(ctx context.Context, tx pgx.Tx) error
		want inbox.ErrorClass
	}{
		{func(context.Context, pgx.Tx) error { return nil }, inbox.HandlerError},
		{effect, inbox.HandlerError},
		{func(ctx context.Context, tx pgx.Tx) error { _ = effect(ctx, tx); return nil }, inbox.Infrastructure},
	} {
		c, goOn, stuck := r.stick(100*time.Millisecond, end.fn)
		c.IdleTimeout = patience
		r.expectVerdict(c, inbox.Applied)
		close(goOn)
		r.expectClass(r.result(stuck), end.want)
		r.expectVerdict(c, inbox.Duplicate)
	}
	r.expectEffects(3)
}

// stick returns the claim of a handler that is idle until goOn is closed, and then runs fn.
func (r *inboxRig) stick(idle time.Duration, fn func(ctx context.Context, tx pgx.Tx) error) (c inbox.Claim, goOn chan struct{}, stuck <-chan error) {
	r.Helper()
	for {
		c = r.keyed("key")
		c.IdleTimeout = idle
		begun, release, start := make(chan struct{}), make(chan struct{}), time.Now()
		stuck = r.async(func() error {
			_, err := r.Apply(r.ctx(), c, func(ctx context.Context, tx pgx.Tx) error {
				if err := effect(ctx, tx); err != nil {
					return err
				}
				close(begun)
				<-release
				return fn(ctx, tx)
			})
			return err
		})
		select {
		case <-begun:
			return c, release, stuck
		case err := <-stuck: // the machine was too slow: the session was idle before the effect
			if time.Since(start) < idle {
				r.Fatalf("the handler ended with %v before it was idle", err)
			}
		}
	}
}

func TestHandlerIsToldThatAStatementHadFailedBefore(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	_, err := r.Apply(r.ctx(), r.claim(), func(ctx context.Context, tx pgx.Tx) error {
		_, _ = tx.Exec(ctx, "SELECT 1/0")
		return effect(ctx, tx)
	})
	if err == nil || !strings.Contains(err.Error(), "a statement before it had failed in this transaction") {
		t.Errorf("error is %v", err)
	}
	r.expectClass(err, inbox.HandlerError)
}

func TestHandlerThatEndsItsTransactionIsTold(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	for name, end := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"commit":   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		"rollback": func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		"by SQL":   func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "rollback"); return err },
	} {
		v, err := r.Apply(r.ctx(), r.claim(), end)
		if v != inbox.None || err == nil || !strings.Contains(err.Error(), "does not end the transaction") {
			t.Errorf("%s: Apply gives %v, %v", name, v, err)
		}
		r.expectClass(err, inbox.HandlerError)
	}
}

func TestUnreachableDatabaseIsTheInfrastructures(t *testing.T) {
	t.Parallel()
	cfg, err := pgxpool.ParseConfig(testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no way") }
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	store, err := postgres.New(pool, postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := &inboxRig{rig: &rig{T: t, Store: store, pool: pool}}
	_, err = r.Apply(r.ctx(), r.claim(), effect)
	r.expectClass(err, inbox.Infrastructure)
	_, err = r.Failed(r.ctx(), 1, uuid.New(), "")
	r.expectClass(err, inbox.Infrastructure)
	pool.Close()
	_, err = r.Apply(r.ctx(), r.claim(), effect)
	r.expectClass(err, inbox.Infrastructure)
}

func TestDatabaseThatOnlyReadsIsTheInfrastructures(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	cfg := r.pool.Config()
	cfg.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	r.ok(err)
	t.Cleanup(pool.Close)
	store, err := postgres.New(pool, postgres.Config{Schema: r.names.Schema()})
	r.ok(err)
	_, err = store.Apply(r.ctx(), r.claim(), effect)
	r.expectClass(err, inbox.Infrastructure)
	_, err = pool.Exec(r.ctx(), "INSERT INTO effects VALUES ('x')")
	r.expectClass(err, inbox.Infrastructure)
}

func TestMissingTablesAreNotTheHandlersError(t *testing.T) {
	t.Parallel()
	store, err := postgres.New(newPool(t, nil), postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := &inboxRig{rig: &rig{T: t, Store: store}}
	_, err = r.Apply(r.ctx(), r.claim(), effect)
	r.expectClass(err, inbox.Infrastructure)
	if !strings.Contains(err.Error(), "Migrate") {
		t.Errorf("error does not say what to do: %v", err)
	}
}
