package postgres_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
)

// counter counts round trips: answers that were read after something was written.
type counter struct {
	net.Conn
	wrote atomic.Bool
	trips *atomic.Int64
}

func (c *counter) Write(b []byte) (int, error) {
	c.wrote.Store(true)
	return c.Conn.Write(b)
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.wrote.Swap(false) {
		c.trips.Add(1)
	}
	return n, err
}

type transactRig struct {
	*rig
	store  *postgres.Store
	outbox *producer.Outbox[pgx.Tx]
	mode   pgx.QueryExecMode
	trips  atomic.Int64
}

// newTransactRig returns an outbox over one connection, in a mode, and a table of orders.
func newTransactRig(t *testing.T, mode pgx.QueryExecMode, change func(cfg *producer.Config)) *transactRig {
	t.Helper()
	r := &transactRig{rig: newRig(t), mode: mode}
	r.exec("CREATE TABLE orders (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)")
	cfg := r.pool.Config()
	cfg.MaxConns = 1
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	cfg.ConnConfig.DefaultQueryExecMode = mode
	cfg.ConnConfig.TLSConfig, cfg.ConnConfig.Fallbacks = nil, nil
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &counter{Conn: conn, trips: &r.trips}, nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	r.ok(err)
	t.Cleanup(pool.Close)
	r.store, err = postgres.New(pool, postgres.Config{Schema: r.names.Schema(), Isolation: pgx.RepeatableRead})
	r.ok(err)
	outbox := producer.Config{Name: "shop"}
	if change != nil {
		change(&outbox)
	}
	r.outbox, err = producer.New(r.store, outbox)
	r.ok(err)
	return r
}

const insertOrder = "INSERT INTO orders VALUES ($1::int)"

func (r *transactRig) transact(fn func(ctx context.Context, w *producer.Writer[pgx.Tx]) error) error {
	return r.outbox.Transact(r.ctx(), fn)
}

// orders returns the number of orders that were committed, which is that of their events.
func (r *transactRig) orders() int {
	r.Helper()
	n := value[int](r.rig, "SELECT count(*) FROM orders")
	if queued := len(r.queue()); queued != n {
		r.Errorf("%d orders are committed, and %d events", n, queued)
	}
	return n
}

func placed(n int) producer.Event {
	return producer.Event{Topic: "placed", Key: "key", Source: "order", Version: int64(n), Payload: []byte("secret")}
}

// queueOrder queues an order and its event.
func queueOrder(ctx context.Context, w *producer.Writer[pgx.Tx], n int) error {
	if err := postgres.AtCommit(w.DB(), insertOrder, n); err != nil {
		return err
	}
	_, err := w.Write(ctx, placed(n))
	return err
}

var modes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

// inEveryMode runs test on an outbox whose connection is in each of pgx's modes.
func inEveryMode(t *testing.T, test func(r *transactRig)) {
	t.Helper()
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			test(newTransactRig(t, mode, nil))
		})
	}
}

func TestTransactOfWhatIsQueuedIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	n := 0
	for name, c := range map[string]struct {
		trips int64
		locks bool
		fn    func(ctx context.Context, w *producer.Writer[pgx.Tx]) error
	}{
		"nothing": {trips: 0, fn: func(context.Context, *producer.Writer[pgx.Tx]) error { return nil }},
		"a statement and an event": {trips: 1, fn: func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			n++
			return queueOrder(ctx, w, n)
		}},
		"with the key locked": {trips: 2, locks: true, fn: func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			n++
			return queueOrder(ctx, w, n)
		}},
		"an event that is written now": {trips: 2, fn: func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			n++
			if err := postgres.AtCommit(w.DB(), insertOrder, n); err != nil {
				return err
			}
			_, err := w.WriteNow(ctx, placed(n))
			return err
		}},
		"a statement at once": {trips: 2, fn: func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			n++
			if _, err := w.DB().Exec(ctx, insertOrder, n); err != nil {
				return err
			}
			_, err := w.Write(ctx, placed(n))
			return err
		}},
	} {
		r := newTransactRig(t, pgx.QueryExecModeCacheStatement, func(cfg *producer.Config) { cfg.LockKeys = c.locks })
		r.ok(r.transact(c.fn)) // prepares the statements
		before, orders := r.trips.Load(), r.orders()
		r.ok(r.transact(c.fn))
		if got := r.trips.Load() - before; got != c.trips {
			t.Errorf("%s: %d round trips, want %d", name, got, c.trips)
		}
		if r.orders() != orders+int(min(c.trips, 1)) {
			t.Errorf("%s: %d orders", name, r.orders())
		}
		r.exec("DROP TABLE orders")
	}
}

func TestQueuedOrderAndEventCommitTogetherOrNotAtAll(t *testing.T) {
	t.Parallel()
	inEveryMode(t, func(r *transactRig) {
		r.ok(r.transact(func(ctx context.Context, w *producer.Writer[pgx.Tx]) error { return queueOrder(ctx, w, 1) }))
		other := placed(1)
		other.Payload = []byte("other secret")
		for name, fn := range map[string]func(ctx context.Context, w *producer.Writer[pgx.Tx]) error{
			"a conflict": func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
				_, err := w.Write(ctx, other)
				return err
			},
			"a statement": func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
				return postgres.AtCommit(w.DB(), "SELECT 1/0")
			},
			"syntax": func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
				return postgres.AtCommit(w.DB(), "SELEC")
			},
			"an argument": func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
				return postgres.AtCommit(w.DB(), insertOrder, make(chan int))
			},
			"the commit": func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
				return postgres.AtCommit(w.DB(), insertOrder, 1)
			},
			"a swallowed error": func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
				_, _ = w.DB().Exec(ctx, "SELECT 1/0")
				return nil
			},
			"a begin that was cut off": func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
				ctx, cancel := context.WithCancel(ctx)
				cancel()
				_, _ = w.DB().Exec(ctx, "SELECT 1")
				return nil
			},
			"the function": func(context.Context, *producer.Writer[pgx.Tx]) error { return errors.New("refused") },
		} {
			err := r.transact(func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
				if err := queueOrder(ctx, w, 2); err != nil {
					return err
				}
				return fn(ctx, w)
			})
			if err == nil || errors.Is(err, outbox.ErrCommitUnknown) || strings.Contains(err.Error(), "secret") {
				r.Errorf("%s: error is %v", name, err)
			}
			if errors.Is(err, outbox.ErrConflict) != (name == "a conflict") {
				r.Errorf("%s: error is %v", name, err)
			}
			if n := r.orders(); n != 1 {
				r.Errorf("%s: %d orders", name, n)
			}
		}
		// The connection is as good as new, and an equal event is known.
		r.ok(r.transact(func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			_, err := w.Write(ctx, placed(1))
			return err
		}))
		r.orders()
	})
}

func TestSecondWriterFailsTheCommitOfQueuedEvents(t *testing.T) {
	t.Parallel()
	inEveryMode(t, func(r *transactRig) {
		err := r.transact(func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			if _, err := r.outbox.Tx(w.DB()).Write(ctx, placed(1)); err != nil {
				return err
			}
			return queueOrder(ctx, w, 2)
		})
		if !errors.Is(err, outbox.ErrSecondWriter) || errors.Is(err, outbox.ErrCommitUnknown) {
			r.Errorf("error is %v", err)
		}
		if n := r.orders(); n != 0 {
			r.Errorf("%d orders", n)
		}
	})
}

func TestConflictOfAQueuedStatementIsRunAgain(t *testing.T) {
	t.Parallel()
	inEveryMode(t, func(r *transactRig) {
		r.exec("CREATE TABLE stock (id int, n int); INSERT INTO stock VALUES (1, 0)")
		attempts := 0
		r.ok(r.transact(func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			attempts++
			if _, err := w.DB().Exec(ctx, "SELECT FROM stock"); err != nil { // the snapshot
				return err
			}
			if attempts == 1 {
				r.exec("UPDATE stock SET n = n + 1")
			}
			if err := postgres.AtCommit(w.DB(), "UPDATE stock SET n = n + 1"); err != nil {
				return err
			}
			return queueOrder(ctx, w, attempts)
		}))
		if n := value[int](r.rig, "SELECT n FROM stock"); n != 2 || attempts != 2 || r.orders() != 1 {
			r.Errorf("stock is %d after %d attempts", n, attempts)
		}
	})
}

func TestQueuedEventsOfASavepointAndStatementsAroundItCommit(t *testing.T) {
	t.Parallel()
	inEveryMode(t, func(r *transactRig) {
		r.ok(r.transact(func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			r.ok(queueOrder(ctx, w, 1))
			err := w.Savepoint(ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
				if postgres.AtCommit(w.DB(), insertOrder, 2) == nil {
					r.Error("a statement within a savepoint was taken for the commit")
				}
				if _, err := w.DB().Exec(ctx, insertOrder, 2); err != nil {
					return err
				}
				_, err := w.Write(ctx, placed(2))
				return err
			})
			r.ok(err)
			err = w.Savepoint(ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
				_, err := w.Write(ctx, placed(3))
				return errors.Join(err, errors.New("refused"))
			})
			if err == nil {
				r.Error("the error of the savepoint is lost")
			}
			return queueOrder(ctx, w, 4)
		}))
		if n := r.orders(); n != 3 {
			r.Errorf("%d orders", n)
		}
	})
}

func TestStatementOnTheConnectionItselfIsPartOfTheTransaction(t *testing.T) {
	t.Parallel()
	r := newTransactRig(t, pgx.QueryExecModeCacheStatement, nil)
	refused := errors.New("refused")
	err := r.transact(func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
		_, err := w.DB().Conn().Exec(ctx, insertOrder, 1)
		r.ok(err)
		return refused
	})
	if !errors.Is(err, refused) || r.orders() != 0 {
		t.Errorf("error is %v", err)
	}
}

func TestTransactionIsNotEndedByWhoGotIt(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"by a statement": func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "ROLLBACK"); return err },
		"by a rollback":  func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		"by a commit":    func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newTransactRig(t, pgx.QueryExecModeCacheStatement, nil)
			err := r.transact(func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
				_ = end(ctx, w.DB()) // the error is swallowed
				_, err := w.Write(ctx, placed(1))
				return err
			})
			if err == nil || !strings.Contains(err.Error(), "does not end the transaction") || r.orders() != 0 {
				t.Errorf("error is %v", err)
			}
		})
	}
}

func TestTransactionThatAStatementEndedIsNotToldAsCommitted(t *testing.T) {
	t.Parallel()
	r := newTransactRig(t, pgx.QueryExecModeCacheStatement, nil)
	err := r.transact(func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
		_, err := w.Write(ctx, placed(1))
		r.ok(err)
		_, err = w.DB().Conn().Exec(ctx, "ROLLBACK")
		return err
	})
	if !errors.Is(err, outbox.ErrCommitUnknown) || !strings.Contains(err.Error(), "ended by its function") {
		t.Errorf("error is %v", err)
	}
	r.ok(r.transact(func(ctx context.Context, w *producer.Writer[pgx.Tx]) error { // on the same connection
		_, err := w.Write(ctx, placed(2))
		return err
	}))
}

func TestUnknownCommitOfQueuedEventsIsTold(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	plain := &rig{T: t, Store: newStore(t, poolOn(t, url, nil), postgres.Config{})}
	// In this mode COMMIT is text each time. Its answer has come, and is lost.
	store := meddledStoreIn(t, url, pgx.QueryExecModeExec, nil)
	err := store.Transact(t.Context(), func(_ context.Context, tx pgx.Tx) error {
		queued, err := store.AppendAtCommit(tx, uuid.New(), []outbox.Record{event("key", "1")})
		if !queued {
			t.Error("the event was not queued")
		}
		return err
	})
	if !errors.Is(err, outbox.ErrCommitUnknown) || store.Retryable(err) {
		t.Errorf("error is %v", err)
	}
	if n := len(plain.queue()); n != 1 {
		t.Errorf("%d events are there, want that of the commit", n)
	}
}
