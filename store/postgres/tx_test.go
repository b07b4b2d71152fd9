package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
)

// put appends one event in tx.
func (r *rig) put(ctx context.Context, tx pgx.Tx, writer uuid.UUID, record outbox.Record) error {
	_, err := r.Append(ctx, tx, writer, []outbox.Record{record})
	return err
}

func TestRaceOfEqualEventsIsRetryableAtStricterLevels(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			e := event("key", "1")
			tx := r.beginAt(level)
			// The snapshot is taken before the other writer commits.
			_, err := tx.Exec(r.ctx(), "SELECT 1")
			r.ok(err)
			r.write(e)
			if err := r.put(r.ctx(), tx, uuid.New(), e); err == nil || !r.Retryable(fmt.Errorf("wrapped: %w", err)) {
				t.Errorf("error is %v, want a retryable one", err)
			}
			r.ok(tx.Rollback(r.ctx()))
			again := r.beginAt(level)
			known, err := r.Append(r.ctx(), again, uuid.New(), []outbox.Record{e})
			if err != nil || !known[0] {
				t.Errorf("the next attempt gives %v, %v", known, err)
			}
			r.ok(again.Commit(r.ctx()))
		})
	}
}

func TestTransactRunsAtTheIsolationLevelOfTheConfig(t *testing.T) {
	t.Parallel()
	pool := newPool(t, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
	})
	for level, want := range map[pgx.TxIsoLevel]string{
		"": "read committed", pgx.RepeatableRead: "repeatable read", pgx.Serializable: "serializable",
	} {
		store, err := postgres.New(pool, postgres.Config{Isolation: level})
		if err != nil {
			t.Fatal(err)
		}
		var got string
		err = store.Transact(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			return tx.QueryRow(ctx, "SHOW transaction_isolation").Scan(&got)
		})
		if err != nil || got != want {
			t.Errorf("transaction runs at %q, %v, want %q", got, err, want)
		}
	}
}

func TestConflictShowsNoDetail(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := event("secret key", "secret payload")
	r.write(e)
	e.Payload, e.Digest[0] = []byte("other"), e.Digest[0]+1
	err := r.put(r.ctx(), r.begin(), uuid.New(), e)
	var pgErr *pgconn.PgError
	if !errors.Is(err, outbox.ErrConflict) || errors.As(err, &pgErr) {
		t.Errorf("error %v carries what the database said", err)
	}
	if strings.Contains(err.Error(), "secret") {
		t.Error("the error shows the row")
	}
}

func TestSavepointThatIsRolledBackUntiesTheWriter(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first, second := uuid.New(), uuid.New()
	tx := r.begin()
	failed := errors.New("failed")
	err := r.Savepoint(r.ctx(), tx, func(ctx context.Context, tx pgx.Tx) error {
		r.ok(r.put(ctx, tx, first, event("key", "1")))
		return failed
	})
	if !errors.Is(err, failed) {
		t.Fatal(err)
	}
	r.ok(r.put(r.ctx(), tx, second, event("key", "2")))
	if err := r.put(r.ctx(), tx, first, event("key", "3")); !errors.Is(err, outbox.ErrSecondWriter) {
		t.Errorf("error is %v", err)
	}
	r.ok(tx.Commit(r.ctx()))
}

func TestSavepointWithASwallowedErrorIsRolledBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	kept := event("key", "kept")
	writer := uuid.New()
	r.ok(r.Transact(r.ctx(), func(ctx context.Context, tx pgx.Tx) error {
		err := r.Savepoint(ctx, tx, func(ctx context.Context, tx pgx.Tx) error {
			r.ok(r.put(ctx, tx, writer, event("key", "lost")))
			_, _ = tx.Exec(ctx, "SELECT 1/0")
			return nil
		})
		if err == nil {
			t.Error("savepoint with a failed statement was released")
		}
		return r.put(ctx, tx, writer, kept)
	}))
	if q := r.queue(); len(q) != 1 || q[0].ID != kept.ID {
		t.Errorf("queue holds %v", q)
	}
}

// meddler is a connection that does something when a COMMIT goes out, or without onCommit is lost
// when the answer has come: were it lost before, pgx would have the server cancel what it has sent,
// at times before that has begun.
type meddler struct {
	net.Conn
	onCommit func(c *meddler)
	deaf     atomic.Bool
}

func (m *meddler) Write(b []byte) (int, error) {
	commits := bytes.Contains(b, []byte("commit\x00"))
	m.deaf.CompareAndSwap(false, commits && m.onCommit == nil)
	n, err := m.Conn.Write(b)
	if err == nil && commits && m.onCommit != nil {
		m.onCommit(m)
	}
	return n, err
}

func (m *meddler) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	if m.deaf.Load() {
		_ = m.Close()
		return 0, io.EOF
	}
	return n, err
}

// meddledStore is a store whose connections call onCommit, or lose the answer.
func meddledStore(t *testing.T, url string, onCommit func(c *meddler)) *postgres.Store {
	t.Helper()
	return meddledStoreIn(t, url, pgx.QueryExecModeCacheStatement, onCommit)
}

func meddledStoreIn(t *testing.T, url string, mode pgx.QueryExecMode, onCommit func(c *meddler)) *postgres.Store {
	t.Helper()
	pool := poolOn(t, url, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.DefaultQueryExecMode = mode
		// What goes out is looked at, so it must not be encrypted.
		cfg.ConnConfig.TLSConfig, cfg.ConnConfig.Fallbacks = nil, nil
		dial := cfg.ConnConfig.DialFunc
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &meddler{Conn: conn, onCommit: onCommit}, nil
		}
	})
	store, err := postgres.New(pool, postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func TestCommitWithALostReplyIsUnknownAndMayHaveHappened(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	plain := newStore(t, poolOn(t, url, nil), postgres.Config{})
	store := meddledStore(t, url, nil)
	err := store.Transact(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := store.Append(ctx, tx, uuid.New(), []outbox.Record{event("key", "1")})
		return err
	})
	if !errors.Is(err, outbox.ErrCommitUnknown) || store.Retryable(err) {
		t.Errorf("error is %v", err)
	}
	deadline := time.After(patience)
	for {
		stats, err := plain.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if stats.Pending == 1 {
			return
		}
		select {
		case <-deadline:
			t.Fatal("the commit that was sent did not happen")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestCommitIsNotCutOffByItsContext(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	newStore(t, poolOn(t, url, nil), postgres.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	store := meddledStore(t, url, func(*meddler) { cancel() })
	err := store.Transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := store.Append(ctx, tx, uuid.New(), []outbox.Record{event("key", "1")})
		return err
	})
	if err != nil || ctx.Err() == nil {
		t.Errorf("commit gave %v, the context %v", err, ctx.Err())
	}
}

func TestCommitThatIsRefusedIsKnownToBeRolledBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`CREATE TABLE parent (id int PRIMARY KEY);
		CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`)
	for name, c := range map[string]struct {
		statement string
		want      string
	}{
		"deferred constraint": {"INSERT INTO child VALUES (1)", "23503"},
		"swallowed error":     {"SELECT 1/0", pgx.ErrTxCommitRollback.Error()},
	} {
		err := r.Transact(r.ctx(), func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, c.statement)
			return nil
		})
		if err == nil || errors.Is(err, outbox.ErrCommitUnknown) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v", name, err)
		}
	}
}

func TestCommitOnATerminatedConnectionIsUnknownOrRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	err := r.Transact(r.ctx(), func(ctx context.Context, tx pgx.Tx) error {
		if err := r.put(ctx, tx, uuid.New(), event("key", "1")); err != nil {
			return err
		}
		pid := tx.Conn().PgConn().PID()
		r.exec("SELECT pg_terminate_backend($1)", pid)
		return nil
	})
	if err == nil {
		t.Error("commit on a terminated connection succeeded")
	}
	if q := r.queue(); len(q) != 0 {
		t.Errorf("queue holds %v", q)
	}
}
