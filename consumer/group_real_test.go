package consumer_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
)

func TestGroupsRacingOverTheSameDispatchesApplyEachOnce(t *testing.T) {
	t.Parallel()
	onEach(t, groupsRacing[pgx.Tx], groupsRacing[*sql.Tx])
}

// groupsRacing has processes with groups, at all levels, and some without, handle the same
// messages of a few keys. Handlers fail at random.
func groupsRacing[TX any](t *testing.T, db *database[TX]) {
	const dispatches = 60
	levels := db.Levels()
	var handlers []*consumer.Handler[TX]
	var begun sync.Map // of every second dispatch, the first attempt fails whatever chance says
	for n, level := range append(levels, levels...) {
		hc := consumer.HandlerConfig{Isolation: level, Retry: consumer.RetryConfig{QuickAttempts: 1000, MaxAttempts: 1000, QuickBackoff: 1}, Order: consumer.OrderConfig{ByKey: n%2 == 0}}
		if n < len(levels) {
			hc.Group.Size, hc.Group.Concurrency = 8, 2
		}
		_, h := handle(t, db, consumer.Config{CacheSize: 1}, hc,
			func(ctx context.Context, w *consumer.Work[TX], _ *message.Message) error {
				if err := db.Do(ctx, w); err != nil {
					return err
				}
				if _, err := w.Write(ctx, producer.Event{Topic: "reserved"}); err != nil {
					return err
				}
				if _, again := begun.LoadOrStore(w.Event().ID, true); rand.N(4) == 0 || !again && w.Event().ID[15]%2 == 0 {
					return errHandler
				}
				return nil
			})
		handlers = append(handlers, h)
	}
	var wg sync.WaitGroup
	var next atomic.Int64
	for range 8 * len(handlers) {
		wg.Go(func() {
			for {
				n := int(next.Add(1)) - 1
				if n >= dispatches*len(handlers) {
					return
				}
				if err := handlers[n%len(handlers)].Consume(keyed(n/len(handlers), fmt.Sprint(n/len(handlers)%7))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	db.WantEffects(t, dispatches)
	if n := db.Number(`SELECT count(*) FROM ` + db.Table("outbox_events")); n != dispatches {
		t.Errorf("%d events written, want %d", n, dispatches)
	}
	var c consumer.Counters
	for _, h := range handlers {
		c.Applied += h.Counters().Applied
		c.Groups += h.Counters().Groups
		c.GroupsUndone += h.Counters().GroupsUndone
	}
	if c.Applied != dispatches || c.Groups == 0 || c.GroupsUndone == 0 {
		t.Errorf("applied %d, groups %d, undone %d", c.Applied, c.Groups, c.GroupsUndone)
	}
}

func TestFailedStatementInAGroupFailsNoNeighbour(t *testing.T) {
	t.Parallel()
	onEach(t, failedStatement[pgx.Tx], failedStatement[*sql.Tx])
}

func failedStatement[TX any](t *testing.T, db *database[TX]) {
	_, h := handle(t, db, consumer.Config{}, consumer.HandlerConfig{Group: consumer.GroupConfig{Size: 6, Wait: 20 * time.Second}, Retry: consumer.RetryConfig{QuickAttempts: 1}},
		func(ctx context.Context, w *consumer.Work[TX], _ *message.Message) error {
			if err := db.Do(ctx, w); err != nil {
				return err
			}
			if w.Event().ID == number(2) {
				return db.Exec(ctx, w.DB(), `INSERT INTO effects (seq) VALUES (NULL)`)
			}
			return nil
		})
	consumeAll(t, h, msgs(6)...)
	db.WantEffects(t, 5)
	stats, err := h.Stats(t.Context())
	if c := h.Counters(); err != nil || stats.Retrying != 1 || c.Applied != 5 || c.Failed != 1 || c.Groups != 1 || c.GroupsUndone != 1 {
		t.Errorf("stats: %+v, %v; counters: %+v", stats, err, c)
	}
	for n := range 6 { // acknowledged, each of them: nothing may be lost or run again
		if err := h.Consume(msg(n)); err != nil {
			t.Error(err)
		}
	}
	db.WantEffects(t, 5)
}

func TestSavepointOfAnotherMessageIsOutOfReach(t *testing.T) {
	t.Parallel()
	onEach(t, foreignSavepoint[pgx.Tx], foreignSavepoint[*sql.Tx])
}

func foreignSavepoint[TX any](t *testing.T, db *database[TX]) {
	_, h := handle(t, db, consumer.Config{}, consumer.HandlerConfig{Group: consumer.GroupConfig{Size: 4, Wait: 20 * time.Second}, Retry: consumer.RetryConfig{QuickAttempts: 1}},
		func(ctx context.Context, w *consumer.Work[TX], _ *message.Message) error {
			if err := db.Exec(ctx, w.DB(), `SAVEPOINT mine`); err != nil {
				return err
			}
			if err := db.Do(ctx, w); err != nil {
				return err
			}
			if w.Event().ID == number(2) {
				_ = db.Exec(ctx, w.DB(), `RELEASE SAVEPOINT mine`)
				_ = db.Exec(ctx, w.DB(), `ROLLBACK TO SAVEPOINT mine`) // in a group, that of the message before
			}
			return nil
		})
	consumeAll(t, h, msgs(4)...)
	c := h.Counters()
	if n := db.Number(`SELECT count(*) FROM effects`); int64(n) != int64(c.Applied) && c.Applied != 4 || n < 3 || c.Groups != 0 {
		t.Errorf("%d effects, counters: %+v", n, c)
	}
}

func TestSettingsOfAMessageAreNotThoseOfTheNext(t *testing.T) {
	t.Parallel()
	db, _ := newPostgres(t)
	_, h := handle(t, db, consumer.Config{}, consumer.HandlerConfig{Group: consumer.GroupConfig{Size: 4, Wait: 20 * time.Second}},
		func(ctx context.Context, w *consumer.Work[pgx.Tx], _ *message.Message) error {
			var tenant string
			if err := w.DB().QueryRow(ctx, `SELECT coalesce(current_setting('shop.tenant', true), '')`).Scan(&tenant); err != nil {
				return err
			}
			if tenant != "" {
				t.Errorf("a handler has the tenant %q of another", tenant)
			}
			set := `SET LOCAL shop.tenant = 'one'`
			if w.Event().ID == number(2) {
				set = `SELECT set_config('shop.tenant', 'two', true)`
			}
			if err := db.Exec(ctx, w.DB(), set); err != nil {
				return err
			}
			return db.Do(ctx, w)
		})
	consumeAll(t, h, msgs(4)...)
	db.WantEffects(t, 4)
}

// consumeAll has messages handled at the same time.
func consumeAll[TX any](t *testing.T, h *consumer.Handler[TX], all ...*message.Message) {
	t.Helper()
	var wg sync.WaitGroup
	for _, m := range all {
		wg.Go(func() {
			if err := h.Consume(m); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// envGroup makes a child process handle a group.
const envGroup = "BOXPAIR_TEST_GROUP"

// TestGroupChild is what a child process runs; see [TestProcessKilledInAGroupLeavesOneEffectEach].
// It dies in the third handler of a group of four, which may be redelivered ones, or after the
// group was committed.
func TestGroupChild(t *testing.T) {
	if os.Getenv(envGroup) != "" {
		asChild(t, dyingGroup[pgx.Tx], dyingGroup[*sql.Tx])
	}
}

func dyingGroup[TX any](t *testing.T, db *database[TX], point string) {
	all := msgs(4)
	if point == "redelivered" {
		all = redelivered(4)
	}
	handled := 0
	_, h := handle(t, db, consumer.Config{}, consumer.HandlerConfig{Group: consumer.GroupConfig{Size: 4, Wait: 20 * time.Second}},
		func(ctx context.Context, w *consumer.Work[TX], _ *message.Message) error {
			if err := db.Do(ctx, w); err != nil {
				return err
			}
			if handled++; handled == 3 && point != "committed" {
				kill()
			}
			return nil
		})
	consumeAll(t, h, all...)
	if h.Counters().Groups != 1 {
		t.Fatalf("there was no group: %+v", h.Counters())
	}
	kill()
}

func TestProcessKilledInAGroupLeavesOneEffectEach(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"effects", "committed", "redelivered"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			t.Run("postgres", func(t *testing.T) {
				t.Parallel()
				db, url := newPostgres(t)
				killedGroup(t, db, url, point)
			})
			t.Run("sqlite", func(t *testing.T) {
				t.Parallel()
				db, path := newSQLite(t)
				killedGroup(t, db, path, point)
			})
		})
	}
}

func killedGroup[TX any](t *testing.T, db *database[TX], where, point string) {
	dieIn(t, "TestGroupChild", where, point, envGroup+"=1")
	want := map[string]int{"committed": 4}[point]
	if db.Snapshots { // the server may still be at it
		waitFor(t, func() bool {
			return db.Number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'`) == 0
		})
	}
	db.WantEffects(t, want)
	starts := db.Number(`SELECT count(*) FROM ` + db.Table("inbox_attempts") + ` WHERE starts = 1`)
	if wantStarts := map[string]int{"redelivered": 4}[point]; starts != wantStarts {
		t.Errorf("starts of %d messages are left, want %d", starts, wantStarts)
	}
	var running atomic.Int64
	_, h := handle(t, db, consumer.Config{}, consumer.HandlerConfig{Group: consumer.GroupConfig{Size: 4, Wait: 20 * time.Second}},
		func(ctx context.Context, w *consumer.Work[TX], _ *message.Message) error {
			if running.Add(1) != 1 {
				t.Error("a message that may have killed the process twice is not alone")
			}
			defer running.Add(-1)
			return db.Do(ctx, w)
		})
	consumeAll(t, h, redelivered(4)...)
	db.WantEffects(t, 4)
	// What was committed is remembered, and of what was begun twice each may be the one that kills:
	// it is alone.
	wantGroups := map[string]int64{"effects": 1}[point]
	if c := h.Counters(); c.Applied != int64(4-want) || c.Groups != wantGroups {
		t.Errorf("counters: %+v", c)
	}
}
