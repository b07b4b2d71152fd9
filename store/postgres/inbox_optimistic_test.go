package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/storetest"
	"github.com/boxpair/boxpair/transport"
)

// optimistic makes all claims optimistic.
type optimistic struct{ *postgres.Store }

func (o optimistic) Apply(ctx context.Context, c inbox.Claim, fn func(ctx context.Context, tx pgx.Tx) error) (inbox.Verdict, error) {
	c.Optimistic = true
	return o.Store.Apply(ctx, c, fn)
}

// atCommit is a transaction whose statements are sent with the COMMIT, except within a savepoint.
type atCommit struct{ pgx.Tx }

func (a atCommit) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	if postgres.AtCommit(a.Tx, sql, args...) != nil {
		tag, err = a.Tx.Exec(ctx, sql, args...)
	}
	return tag, err
}

func TestConsumerContractOfOptimisticClaims(t *testing.T) {
	t.Parallel()
	optimisticContract(t, nil)
}

func TestConsumerContractOfClaimsSentWithTheCommit(t *testing.T) {
	t.Parallel()
	optimisticContract(t, func(f *storetest.InboxFixture[pgx.Tx]) {
		effect := f.Effect
		f.Effect = func(ctx context.Context, tx pgx.Tx, name string) error { return effect(ctx, atCommit{tx}, name) }
		f.Begin = func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT")
			return err
		}
	})
}

func optimisticContract(t *testing.T, change func(f *storetest.InboxFixture[pgx.Tx])) {
	t.Helper()
	open := inboxFixture(newPool(t, func(cfg *pgxpool.Config) { cfg.MaxConns = 40 }), "")
	storetest.Consumer(t, func(t *testing.T) storetest.InboxFixture[pgx.Tx] {
		f := open(t)
		f.Store = optimistic{f.Store.(*postgres.Store)}
		if change != nil {
			change(&f)
		}
		return f
	}, "claim", "race", "order", "window", "history")
}

func TestOptimisticClaimWithWhatIsQueuedIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	inEveryMode(t, func(r *transactRig) {
		got, err := r.Register(r.ctx(), "service/handler", time.Hour)
		r.ok(err)
		i := &inboxRig{rig: r.rig, consumer: got.Consumer}
		n := 0
		for name, c := range i.claims() {
			want := int64(1)
			if !c.Optimistic {
				want = 2
			}
			if r.mode == pgx.QueryExecModeDescribeExec {
				want *= 2 // it asks for the types each time
			}
			for range 2 { // the statements are prepared the first time
				n++
				c.ID = uuid.New()
				begun := r.trips.Load()
				v, err := r.store.Apply(r.ctx(), c, func(ctx context.Context, tx pgx.Tx) error {
					w := r.outbox.Handling(tx, "service/handler", transport.Event{ID: c.ID})
					r.ok(queueOrder(t.Context(), w, n))
					return w.FlushAtCommit(ctx)
				})
				if err != nil || v != inbox.Applied {
					r.Fatalf("%s: Apply gives %v, %v", name, v, err)
				}
				if trips := r.trips.Load() - begun; n%2 == 0 && trips != want {
					r.Errorf("%s: %d round trips, want %d", name, trips, want)
				}
			}
		}
		if got := r.orders(); got != n {
			r.Errorf("%d orders, want %d", got, n)
		}
	})
}

func TestHandlerOfAnOptimisticClaimThatFailsForADuplicateCountsForNothing(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	for name, c := range r.claims() {
		if !c.Optimistic {
			continue
		}
		for _, want := range []inbox.Verdict{inbox.Applied, inbox.Duplicate} {
			runs := 0
			v, err := r.Apply(r.ctx(), c, func(ctx context.Context, tx pgx.Tx) error {
				if runs++; want == inbox.Duplicate {
					return errors.New("the stock is gone")
				}
				return late(ctx, tx)
			})
			if err != nil || v != want || runs != 1 {
				t.Errorf("%s: Apply gives %v, %v after %d runs, want %v", name, v, err, runs, want)
			}
		}
	}
	r.expectEffects(2)
}

func TestWhatAHandlerDoesPastARefusedClaimIsRolledBack(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"on the connection": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Conn().Exec(ctx, "INSERT INTO effects VALUES ('lost')")
			return err
		},
		"by large objects": func(ctx context.Context, tx pgx.Tx) error {
			objects := tx.LargeObjects()
			if _, err := objects.Create(ctx, 4711); err == nil {
				return errors.New("a large object is made")
			}
			return nil
		},
		"in spite of the error": func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO effects VALUES ('lost')"); !errors.Is(err, inbox.ErrNotClaimed) {
				return fmt.Errorf("Exec gives %w", err)
			}
			for _, err := range []error{tx.Commit(ctx), tx.Rollback(ctx)} {
				if err == nil {
					return errors.New("it is ended")
				}
			}
			return late(ctx, tx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newInboxRig(t)
			c := r.claim()
			c.Optimistic = true
			r.expectVerdict(c, inbox.Applied)
			v, err := r.Apply(r.ctx(), c, func(ctx context.Context, tx pgx.Tx) error {
				r.ok(do(ctx, tx))
				return nil
			})
			if err != nil || v != inbox.Duplicate {
				t.Errorf("Apply gives %v, %v", v, err)
			}
			r.expectEffects(1)
			if got := value[int](r.rig, "SELECT count(*) FROM pg_largeobject_metadata WHERE oid = 4711"); got != 0 {
				t.Error("a large object is left")
			}
		})
	}
}

func TestHandlerThatEndsTheTransactionOfAnOptimisticClaimIsTold(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	for name, end := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"commit":   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		"rollback": func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
	} {
		c := r.claim()
		c.Optimistic = true
		_, err := r.Apply(r.ctx(), c, end)
		if err == nil || !strings.Contains(err.Error(), "does not end the transaction") {
			t.Errorf("%s: error is %v", name, err)
		}
		r.expectClass(err, inbox.HandlerError)
	}
}

func TestOptimisticClaimWhoseDatabaseIsNotMigratedIsNotTheHandlersError(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	r.exec("DROP TABLE " + r.names.Table("inbox") + " CASCADE")
	for name, c := range r.claims() {
		_, err := r.Apply(r.ctx(), c, late)
		if err == nil {
			t.Errorf("%s: claimed without a table", name)
		}
		r.expectClass(err, inbox.Infrastructure)
	}
	r.expectEffects(0)
}

func TestQueuedStatementsOfOptimisticClaimsRunUnderTheSettingsOfTheSession(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	const settings = "SELECT current_setting('lock_timeout') || ' ' || current_setting('enable_seqscan')"
	want := value[string](r.rig, settings)
	for name, c := range r.claims() {
		r.exec("DELETE FROM effects")
		v, err := r.Apply(r.ctx(), c, func(_ context.Context, tx pgx.Tx) error {
			return postgres.AtCommit(tx, "INSERT INTO effects "+settings)
		})
		if err != nil || v != inbox.Applied {
			t.Fatalf("%s: Apply gives %v, %v", name, v, err)
		}
		if got := value[string](r.rig, "SELECT name FROM effects"); got != want {
			t.Errorf("%s: settings are %q, want %q", name, got, want)
		}
	}
}

func TestNothingRunsOnTheConnectionOfAClaimThatCouldNotBeSent(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	for name, c := range r.claims() {
		if !c.Optimistic {
			continue
		}
		_, err := r.Apply(r.ctx(), c, func(ctx context.Context, tx pgx.Tx) error {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			if _, err := tx.Exec(ended, "SELECT"); err == nil {
				t.Errorf("%s: a context that has ended sends the claim", name)
			}
			objects := tx.LargeObjects()
			if _, err := objects.Create(ctx, 4712); err == nil {
				t.Errorf("%s: a large object is made without a claim", name)
			}
			_, err := tx.Conn().Exec(ctx, "INSERT INTO effects VALUES ('lost')")
			return err
		})
		if err == nil {
			t.Errorf("%s: applied without a claim", name)
		}
		r.expectEffects(0)
	}
}

func TestArgumentsThatCannotBeSentAreTheHandlersErrorWhateverTheyTravelWith(t *testing.T) {
	t.Parallel()
	inEveryMode(t, func(r *transactRig) {
		r.exec("CREATE TABLE effects (name text)")
		got, err := r.Register(r.ctx(), "service/handler", time.Hour)
		r.ok(err)
		i := &inboxRig{rig: r.rig, consumer: got.Consumer}
		for kind, c := range i.claims() {
			for name, arg := range map[string]any{"a channel": make(chan int), "a name that is missing": pgx.StrictNamedArgs{"other": 1}} {
				c.ID = uuid.New()
				_, err := r.store.Apply(r.ctx(), c, func(_ context.Context, tx pgx.Tx) error {
					return postgres.AtCommit(tx, "INSERT INTO effects VALUES (@name)", arg)
				})
				if err == nil || errors.Is(err, inbox.ErrCommitUnknown) || r.store.Classify(err) != inbox.HandlerError {
					r.Errorf("%s, %s: error is %v", kind, name, err)
				}
			}
		}
		i.expectEffects(0)
	})
}

func TestBackendThatIsEndedWhileAnOptimisticClaimWaitsHasNotCommitted(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	c := r.claim()
	begun, free := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(free) })
	defer release()
	first := make(chan error, 1)
	go func() {
		_, err := r.Apply(r.ctx(), c, func(ctx context.Context, tx pgx.Tx) error {
			close(begun)
			<-free
			return effect(ctx, tx)
		})
		first <- err
	}()
	<-begun
	second := make(chan error, 1)
	go func() {
		again := c
		again.Optimistic = true
		_, err := r.Apply(r.ctx(), again, late)
		second <- err
	}()
	r.eventually("the backend that waits for the claim", func() bool {
		return value[int](r.rig, `SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%fails for a message%') AS ended`) > 0
	})
	err := <-second
	r.expectClass(err, inbox.Infrastructure)
	release()
	r.ok(<-first)
	r.expectEffects(1)
}
