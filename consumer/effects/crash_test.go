package effects_test

import (
	"context"
	"database/sql"
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/consumer/effects"
	"github.com/boxpair/boxpair/consumer/internal/consumertest"
	"github.com/boxpair/boxpair/store/inbox"
)

const (
	envProvider   = "BOXPAIR_TEST_PROVIDER"
	envIdempotent = "BOXPAIR_TEST_IDEMPOTENT"
)

func TestMain(m *testing.M) { consumertest.Main(m) }

// dyingLedger kills the process after what it has committed.
type dyingLedger[TX any] struct {
	inbox.Store[TX]
	inbox.EffectStore[TX]
	at func(string)
}

func (l *dyingLedger[TX]) TakeEffects(ctx context.Context, t inbox.EffectTake) ([]inbox.EffectRun, time.Duration, error) {
	runs, next, err := l.EffectStore.TakeEffects(ctx, t)
	l.at("taken up")
	return runs, next, err
}

func (l *dyingLedger[TX]) FinishEffect(ctx context.Context, c inbox.Claim, r *inbox.EffectRun, result []byte, fn func(context.Context, TX) error) (bool, error) {
	done, err := l.EffectStore.FinishEffect(ctx, c, r, result, fn)
	l.at("finished")
	return done, err
}

// TestEffectChild is what a child process runs. In the parent it does nothing.
func TestEffectChild(t *testing.T) {
	consumertest.AsChild(t, payAndDie[pgx.Tx], payAndDie[*sql.Tx])
}

func payAndDie[TX any](t *testing.T, db *consumertest.Database[TX], point string) {
	at := func(here string) {
		if here == point {
			consumertest.Kill()
		}
	}
	e := paying(db, provider{os.Getenv(envProvider)})
	prepare, do, finish := e.Prepare, e.Do, e.Finish
	e.Prepare = func(ctx context.Context, w *consumer.Work[TX], msg *message.Message) (charge, error) {
		defer at("prepared")
		return prepare(ctx, w, msg)
	}
	e.Do = func(ctx context.Context, key uuid.UUID, c charge) (receipt, error) {
		at("asked")
		defer at("answered")
		return do(ctx, key, c)
	}
	e.Finish = func(ctx context.Context, w *consumer.Work[TX], c charge, r receipt) error {
		defer at("followed")
		return finish(ctx, w, c, r)
	}
	store := &dyingLedger[TX]{db.Store, db.Store.(inbox.EffectStore[TX]), at}
	inbox, h := pay(t, store, db, e, effects.Config{Idempotent: os.Getenv(envIdempotent) != ""})
	err := h.Consume(consumertest.Msg(1))
	at("recorded")
	t.Errorf("the child lives: %v, %v", err, inbox.RunOnce(t.Context()))
}

var effectPoints = []string{"prepared", "recorded", "taken up", "asked", "answered", "followed", "finished"}

func TestKilledProcessLeavesOneEffectOutsideTheDatabase(t *testing.T) {
	t.Parallel()
	for _, point := range effectPoints {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			t.Run("postgres", func(t *testing.T) {
				t.Parallel()
				db, url := consumertest.NewPostgres(t)
				killedPaying(t, db, url, point)
			})
			t.Run("sqlite", func(t *testing.T) {
				t.Parallel()
				db, path := consumertest.NewSQLite(t)
				killedPaying[*sql.Tx](t, db, path, point)
			})
		})
	}
}

func killedPaying[TX any](t *testing.T, db *consumertest.Database[TX], where, point string) {
	p := provider{t.TempDir()}
	for range 2 {
		consumertest.DieIn(t, "TestEffectChild", where, point, envProvider+"="+p.dir, envIdempotent+"=1")
		endLeases(t, db)
		if point == "finished" || point == "recorded" {
			break // there is nothing left to die of
		}
	}
	in, h := pay(t, db.Store, db, paying(db, p), effects.Config{Idempotent: true})
	if err := h.Consume(consumertest.Again(consumertest.Msg(1))); err != nil {
		t.Fatal(err)
	}
	consumertest.RunOnce(t, in)
	wantEffect(t, in, inbox.EffectDone)
	calls := 1
	if point == "answered" || point == "followed" {
		calls = 3 // twice by those who died, with the same key
	}
	p.wantCharges(t, consumertest.Number(1), calls)
	db.WantEffects(t, 1)
	if n := db.Number(`SELECT count(*) FROM ` + db.Table("outbox_events")); n != 2 {
		t.Errorf("%d events written", n)
	}
}

// An effect that may have been carried out is not tried again where the other side would carry it
// out twice.
func TestKilledProcessLeavesAnEffectUncertain(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"asked", "answered", "followed"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			t.Run("postgres", func(t *testing.T) {
				t.Parallel()
				db, url := consumertest.NewPostgres(t)
				uncertain(t, db, url, point)
			})
			t.Run("sqlite", func(t *testing.T) {
				t.Parallel()
				db, path := consumertest.NewSQLite(t)
				uncertain(t, db, path, point)
			})
		})
	}
}

func uncertain[TX any](t *testing.T, db *consumertest.Database[TX], where, point string) {
	p := provider{t.TempDir()}
	consumertest.DieIn(t, "TestEffectChild", where, point, envProvider+"="+p.dir)
	endLeases(t, db)
	before := len(p.calls(t))
	in, h := pay(t, db.Store, db, paying(db, p), effects.Config{})
	for range 2 {
		consumertest.RunOnce(t, in)
	}
	e := wantEffect(t, in, inbox.EffectUncertain)
	if after := len(p.calls(t)); after != before {
		t.Errorf("it was tried again: %d calls, then %d", before, after)
	}
	if st, err := h.Stats(t.Context()); err != nil || st.Effects.Uncertain != 1 {
		t.Errorf("stats are %+v, %v", st, err)
	}
	db.WantEffects(t, 0)
	if ok, err := ledgerOf(t, in).Resolve(t.Context(), e.Key, receipt{Number: e.Key.String()}, "it is in their list"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	wantReason(t, in, e.ID, "effect_resolved", "it is in their list")
	consumertest.RunOnce(t, in)
	wantEffect(t, in, inbox.EffectDone)
	db.WantEffects(t, 1)
}
