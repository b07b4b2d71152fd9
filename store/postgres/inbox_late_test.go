package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/postgres"
)

// late is a handler that queues its effect.
func late(_ context.Context, tx pgx.Tx) error {
	return postgres.AtCommit(tx, "INSERT INTO effects VALUES ($1)", "effect")
}

func TestQueuedStatementsCommitWithTheClaimAndBehindTheHandler(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		cfg := r.pool.Config()
		cfg.ConnConfig.DefaultQueryExecMode = mode
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		r.ok(err)
		t.Cleanup(pool.Close)
		store, err := postgres.New(pool, postgres.Config{Schema: r.names.Schema()})
		r.ok(err)
		for name, c := range r.claims() {
			r.exec("DROP TABLE IF EXISTS steps; CREATE TABLE steps (id serial, name text)")
			v, err := store.Apply(r.ctx(), c, func(ctx context.Context, tx pgx.Tx) error {
				r.ok(postgres.AtCommit(tx, "INSERT INTO steps (name) VALUES ($1)", "second"))
				r.ok(postgres.AtCommit(tx, "UPDATE steps SET name = name || '!'"))
				_, err := tx.Exec(ctx, "INSERT INTO steps (name) VALUES ('first')")
				return err
			})
			if err != nil || v != inbox.Applied {
				t.Fatalf("%v, %s: Apply gives %v, %v", mode, name, v, err)
			}
			if got := value[string](r.rig, "SELECT string_agg(name, ' ' ORDER BY id) FROM steps"); got != "first! second!" {
				t.Errorf("%v, %s: steps are %q", mode, name, got)
			}
			r.expectVerdict(c, inbox.Duplicate)
		}
	}
}

func TestQueuedStatementOfAParkedMessageRuns(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	m := &inbox.Message{ID: uuid.New(), Topic: "topic", Key: "key"}
	_, err := r.ParkMessage(r.ctx(), inbox.Parking{Consumer: r.consumer, Message: m, State: inbox.Retrying})
	r.ok(err)
	seqs, _, err := r.DueMessages(r.ctx(), r.consumer, 1)
	r.ok(err)
	take := func(sql string) (bool, error) {
		return r.ApplyParked(r.ctx(), r.claim(), seqs[0], func(_ context.Context, tx pgx.Tx, _ *inbox.Parked) error {
			return postgres.AtCommit(tx, sql)
		})
	}
	_, err = take("SELECT 1/0")
	r.expectClass(err, inbox.HandlerError)
	done, err := take("INSERT INTO effects VALUES ('effect')")
	if err != nil || !done {
		t.Fatalf("handling gives %v, %v", done, err)
	}
	r.expectEffects(1)
}

func TestQueuedStatementThatFailsIsTheHandlersErrorAndCommitsNothing(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	r.exec("CREATE TABLE once (name text UNIQUE DEFERRABLE INITIALLY DEFERRED)")
	for name, handler := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"in a statement": func(_ context.Context, tx pgx.Tx) error { return postgres.AtCommit(tx, "SELECT 1/0") },
		"in its syntax":  func(_ context.Context, tx pgx.Tx) error { return postgres.AtCommit(tx, "SELEC") },
		"in its arguments": func(_ context.Context, tx pgx.Tx) error {
			return postgres.AtCommit(tx, "INSERT INTO effects VALUES ($1)", make(chan int))
		},
		"at the commit": func(_ context.Context, tx pgx.Tx) error {
			return postgres.AtCommit(tx, "INSERT INTO once VALUES ('secret'), ('secret')")
		},
		"before it": func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, "SELECT 1/0")
			return nil
		},
	} {
		for kind, c := range r.claims() {
			for _, first := range []func(ctx context.Context, tx pgx.Tx) error{effect, late} {
				_, err := r.Apply(r.ctx(), c, func(ctx context.Context, tx pgx.Tx) error {
					r.ok(first(ctx, tx))
					r.ok(late(ctx, tx))
					r.ok(handler(ctx, tx))
					return nil
				})
				if err == nil || errors.Is(err, inbox.ErrCommitUnknown) || strings.Contains(err.Error(), "secret") {
					t.Errorf("%s, %s: error is %v", name, kind, err)
				}
				r.expectClass(err, inbox.HandlerError)
				r.expectEffects(0)
				if got := value[int](r.rig, "SELECT count(*) FROM "+r.names.Table("inbox")); got != 0 {
					t.Errorf("%s, %s: %d claims are left", name, kind, got)
				}
			}
		}
	}
}

func TestUnknownCommitWithQueuedStatementsIsTold(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]fault{"reply lost": replyLost, "request lost": requestLost} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, next := newFaultyRigIn(t, pgx.QueryExecModeExec) // COMMIT as text, each time
			done := 0
			for kind, c := range r.claims() {
				next.Store(int32(f))
				_, err := r.Apply(r.ctx(), c, late)
				r.expectClass(err, inbox.CommitUnknown)
				want := map[fault]inbox.Verdict{replyLost: inbox.Duplicate, requestLost: inbox.Applied}[f]
				if v, err := r.Apply(r.ctx(), c, late); err != nil || v != want {
					t.Fatalf("%s: copy gives %v, %v, want %v", kind, v, err, want)
				}
				done++
				r.expectEffects(done)
			}
		})
	}
}

func TestStatementsAreQueuedForTransactionsOfHandlersOnly(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	if err := late(r.ctx(), r.begin()); err == nil {
		t.Error("a transaction of the caller's is taken")
	}
	_, err := r.Apply(r.ctx(), r.claim(), func(ctx context.Context, tx pgx.Tx) error {
		return r.Savepoint(ctx, tx, func(ctx context.Context, tx pgx.Tx) error {
			if err := late(ctx, tx); err == nil {
				t.Error("a savepoint is taken")
			}
			return nil
		})
	})
	r.ok(err)
	r.expectEffects(0)
}

func TestStartIsForgottenWhateverRoleAHandlerHasTaken(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	for name, c := range r.claims() {
		c.Started = true
		_, err := r.Started(r.ctx(), r.consumer, []uuid.UUID{c.ID}, 0)
		r.ok(err)
		v, err := r.Apply(r.ctx(), c, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SET LOCAL ROLE pg_monitor")
			return err
		})
		if err != nil || v != inbox.Applied {
			t.Fatalf("%s: Apply gives %v, %v", name, v, err)
		}
	}
	if n := value[int](r.rig, "SELECT count(*) FROM "+r.names.Table("inbox_attempts")); n != 0 {
		t.Errorf("%d starts are left", n)
	}
}

func TestSwallowedErrorOfAMessageWithAStartIsNoSuccess(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	swallow := func(ctx context.Context, tx pgx.Tx) error {
		_, _ = tx.Exec(ctx, "SELECT 1 / 0")
		return nil
	}
	for name, c := range r.claims() {
		c.Started = true
		_, err := r.Started(r.ctx(), r.consumer, []uuid.UUID{c.ID}, 0)
		r.ok(err)
		if v, err := r.Apply(r.ctx(), c, swallow); !errors.Is(err, inbox.ErrRolledBack) {
			t.Errorf("%s: Apply gives %v, %v", name, v, err)
		}
		other := c
		other.ID = uuid.New()
		v, err := r.ApplyGroup(r.ctx(), []inbox.Claim{c, other}, func(ctx context.Context, tx pgx.Tx, _ []int) error { return swallow(ctx, tx) })
		if !errors.Is(err, inbox.ErrRolledBack) {
			t.Errorf("%s: ApplyGroup gives %v, %v", name, v, err)
		}
	}
}
