package consumer_test

import (
	"context"
	"database/sql"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/consumer/internal/consumertest"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
)

// envRedelivered tells a child process that its message comes again.
const envRedelivered = "BOXPAIR_TEST_REDELIVERED"

func TestMain(m *testing.M) { consumertest.Main(m) }

// TestChild is what a child process runs; see [dieAt]. In the parent it does nothing.
func TestChild(t *testing.T) {
	asChild(t, dying[pgx.Tx], dying[*sql.Tx])
}

func dying[TX any](t *testing.T, db *database[TX], point string) {
	at := func(here string) {
		if here == point {
			kill()
		}
	}
	_, h := handle(t, db, consumer.Config{}, consumer.HandlerConfig{},
		func(ctx context.Context, w *consumer.Work[TX], _ *message.Message) error {
			at("claimed")
			if err := db.Do(ctx, w); err != nil {
				return err
			}
			if _, err := w.Write(ctx, producer.Event{Topic: "reserved"}); err != nil {
				return err
			}
			at("effects")
			if point == "failed" {
				return consumer.RetryAfter(0, errHandler)
			}
			return nil
		})
	m := msg(1)
	if os.Getenv(envRedelivered) != "" {
		m = again(m)
	}
	at("received")
	err := h.Consume(m)
	if point == "failed" && err == nil {
		kill() // parked, not acknowledged
	}
	at("committed")
	t.Errorf("the child lives: %v", err)
}

// dieAt runs a child process that is killed at point while it handles message 1.
func dieAt(t *testing.T, where, point string, redelivered bool) {
	t.Helper()
	var env []string
	if redelivered {
		env = append(env, envRedelivered+"=1")
	}
	dieIn(t, "TestChild", where, point, env...)
}

func TestKilledProcessLeavesOneEffectAfterRedelivery(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"received", "claimed", "effects", "committed", "failed"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			t.Run("postgres", func(t *testing.T) {
				t.Parallel()
				db, url := newPostgres(t)
				killed(t, db, url, point)
			})
			t.Run("sqlite", func(t *testing.T) {
				t.Parallel()
				db, path := newSQLite(t)
				killed[*sql.Tx](t, db, path, point)
			})
		})
	}
}

func killed[TX any](t *testing.T, db *database[TX], where, point string) {
	dieAt(t, where, point, false)
	inbox, h := handle(t, db, consumer.Config{}, consumer.HandlerConfig{},
		func(ctx context.Context, w *consumer.Work[TX], _ *message.Message) error {
			if err := db.Do(ctx, w); err != nil {
				return err
			}
			_, err := w.Write(ctx, producer.Event{Topic: "reserved"})
			return err
		})
	if err := h.Consume(again(msg(1))); err != nil {
		t.Fatal(err)
	}
	if err := inbox.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.WantEffects(t, 1)
	if n := db.Number(`SELECT count(*) FROM ` + db.Table("outbox_events")); n != 1 {
		t.Errorf("%d events written", n)
	}
	want := int64(1)
	if point == "committed" {
		want = 0
	}
	if c := h.Counters(); c.Applied != want {
		t.Errorf("counters: %+v", c)
	}
}

func TestMessageThatKillsEveryProcessIsDeadInTheEnd(t *testing.T) {
	t.Parallel()
	db, path := newSQLite(t)
	dieAt(t, path, "effects", false)
	for range 4 { // the first beside others
		dieAt(t, path, "effects", true)
	}
	_, h := handle(t, db, consumer.Config{}, consumer.HandlerConfig{},
		func(ctx context.Context, w *consumer.Work[*sql.Tx], _ *message.Message) error { return db.Do(ctx, w) })
	if err := h.Consume(again(msg(1))); err != nil {
		t.Fatal(err)
	}
	db.WantEffects(t, 0)
	if stats, err := h.Stats(t.Context()); err != nil || stats.Dead != 1 {
		t.Errorf("Stats: %+v, %v", stats, err)
	}
}

func TestCommitWhoseReplyIsLostIsAppliedOnce(t *testing.T) {
	t.Parallel()
	for name, parked := range map[string]bool{"delivered": false, "parked": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct, address := newPostgres(t)
			var armed atomic.Bool
			th, through := testenv.NewThief(t, address, func() bool { return armed.CompareAndSwap(true, false) })
			db := openPostgres(t, through)
			runs := 0
			inbox, h := handle(t, db, consumer.Config{}, consumer.HandlerConfig{},
				func(ctx context.Context, w *consumer.Work[pgx.Tx], _ *message.Message) error {
					if runs++; runs == 1 && parked {
						return consumer.RetryAfter(0, errHandler)
					}
					armed.Store(true)
					return db.Do(ctx, w)
				})
			if err := h.Consume(msg(1)); err != nil {
				t.Fatal(err)
			}
			want := 1
			if parked {
				want = 2
				if err := inbox.RunOnce(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if th.Stolen() != 1 || runs != want {
				t.Errorf("%d replies were lost, the handler ran %d times", th.Stolen(), runs)
			}
			if err := h.Consume(msg(1)); err != nil {
				t.Fatal(err)
			}
			direct.WantEffects(t, 1)
			if c := h.Counters(); c.Applied != 1 || c.CommitsUnknown != 1 || c.DuplicatesByWindow+c.DuplicatesByTable != 1 {
				t.Errorf("counters: %+v", c)
			}
		})
	}
}

// Connections are cut in the middle of handlers again and again, while many are
// handled.
func TestLostConnectionsCountNoAttemptsAndLoseNothing(t *testing.T) {
	t.Parallel()
	const messages = 60
	direct, address := newPostgres(t)
	db := openPostgres(t, with(t, address, "application_name", "victim").String())
	var calls atomic.Int64
	_, h := handle(t, db, consumer.Config{}, consumer.HandlerConfig{},
		func(ctx context.Context, w *consumer.Work[pgx.Tx], _ *message.Message) error {
			if n := calls.Add(1); n%20 == 10 && n < 90 {
				direct.Number(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
					WHERE application_name = 'victim' AND datname = current_database()`)
			}
			return db.Do(ctx, w)
		})
	var wg sync.WaitGroup
	for worker := range 6 {
		wg.Go(func() {
			for n := worker; n < messages; n += 6 {
				if err := h.Consume(msg(n)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	direct.WantEffects(t, messages)
	c := h.Counters()
	if c.Applied != messages || c.Failed != 0 || c.Parked != 0 || c.DatabaseErrors == 0 {
		t.Errorf("counters: %+v", c)
	}
}

func TestErrorOfPostgresThatAHandlerSwallowsIsNoSuccess(t *testing.T) {
	t.Parallel()
	db, _ := newPostgres(t)
	in, h := handle(t, db, consumer.Config{}, consumer.HandlerConfig{Retry: consumer.RetryConfig{QuickAttempts: 1}},
		func(ctx context.Context, w *consumer.Work[pgx.Tx], _ *message.Message) error {
			if err := db.Do(ctx, w); err != nil {
				return err
			}
			_, _ = w.DB().Exec(ctx, `INSERT INTO effects VALUES (NULL, NULL)`)
			return nil
		})
	if err := h.Consume(msg(1)); err != nil {
		t.Fatal(err)
	}
	db.WantEffects(t, 0)
	found, err := in.ListParked(t.Context(), inbox.Filter{})
	if err != nil || len(found) != 1 || !strings.Contains(found[0].LastError, "rolled the transaction back") {
		t.Errorf("parked: %+v, %v", found, err)
	}
}
