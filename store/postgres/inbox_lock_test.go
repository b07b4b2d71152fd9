package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/storetest"
)

var isolations = []inbox.Isolation{inbox.ReadCommitted, inbox.RepeatableRead, inbox.Serializable}

// Poolers in transaction mode have no prepared statements for their clients.
func TestConsumerContractWithoutPreparedStatements(t *testing.T) {
	t.Parallel()
	storetest.Consumer(t, inboxFixture(newPool(t, func(cfg *pgxpool.Config) {
		cfg.MaxConns = 40
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	}), `p"x_`))
}

func TestClaimWorksInEveryQueryMode(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec} {
		cfg := r.pool.Config()
		cfg.ConnConfig.DefaultQueryExecMode = mode
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		r.ok(err)
		t.Cleanup(pool.Close)
		r.Store, err = postgres.New(pool, postgres.Config{Schema: r.names.Schema()})
		r.ok(err)
		for _, level := range isolations {
			c := r.keyed("key " + mode.String() + string(rune('0'+level)))
			c.Isolation = level
			r.expectVerdict(c, inbox.Applied)
			r.expectVerdict(c, inbox.Duplicate)
			head := &inbox.Message{ID: uuid.New(), Topic: "topic", Key: c.Key}
			_, err := r.ParkMessage(r.ctx(), inbox.Parking{Consumer: r.consumer, Message: head, State: inbox.Retrying, Ordered: true})
			r.ok(err)
			next := r.keyed(c.Key)
			next.Isolation = level
			r.expectVerdict(next, inbox.Followed)
			for range 2 {
				seqs, _, err := r.DueMessages(r.ctx(), r.consumer, 1)
				r.ok(err)
				done, err := r.ApplyParked(r.ctx(), next, seqs[0], func(ctx context.Context, tx pgx.Tx, _ *inbox.Parked) error {
					return effect(ctx, tx)
				})
				if err != nil || !done {
					t.Fatalf("mode %v, level %v: handling gives %v, %v", mode, level, done, err)
				}
			}
		}
	}
	r.expectEffects(3 * 3 * 3)
}

func TestHandlerRunsUnderTheSettingsOfTheSession(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	cfg := r.pool.Config()
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "SET lock_timeout = '4321ms'; SET enable_seqscan = off")
		return err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	r.ok(err)
	t.Cleanup(pool.Close)
	store, err := postgres.New(pool, postgres.Config{Schema: r.names.Schema()})
	r.ok(err)
	for _, test := range []struct {
		store   *postgres.Store
		timeout string
		seqscan string
	}{{store, "4321ms", "off"}, {r.Store, "0", "on"}} {
		for _, level := range isolations {
			c := r.keyed("key")
			c.IdleTimeout, c.LockTimeout, c.Isolation = 1234*time.Second, 77*time.Millisecond, level
			check := func(ctx context.Context, tx pgx.Tx) error {
				var timeout, seqscan, idle string
				err := tx.QueryRow(ctx, `SELECT current_setting('lock_timeout'), current_setting('enable_seqscan'),
					current_setting('idle_in_transaction_session_timeout')`).Scan(&timeout, &seqscan, &idle)
				if timeout != test.timeout || seqscan != test.seqscan || idle != "1234s" {
					t.Errorf("level %v: lock timeout is %s, enable_seqscan %s, idle timeout %s", level, timeout, seqscan, idle)
				}
				return err
			}
			_, err := test.store.Apply(r.ctx(), c, check)
			r.ok(err)
			_, err = r.ParkMessage(r.ctx(), inbox.Parking{Consumer: r.consumer, Message: r.keyed("key").Message, State: inbox.Retrying, Ordered: true})
			r.ok(err)
			seqs, _, err := r.DueMessages(r.ctx(), r.consumer, 1)
			r.ok(err)
			_, err = test.store.ApplyParked(r.ctx(), c, seqs[0], func(ctx context.Context, tx pgx.Tx, _ *inbox.Parked) error {
				return check(ctx, tx)
			})
			r.ok(err)
		}
	}
	if got := value[string](r.rig, "SELECT current_setting('idle_in_transaction_session_timeout')"); got != "0" {
		t.Errorf("idle timeout of a session is %s after the transactions", got)
	}
}

func TestNoLockOfAKeyOutlivesItsTransaction(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	locks := func() int {
		return value[int](r.rig, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
	}
	for _, level := range isolations {
		c := r.keyed("key")
		c.Isolation = level
		r.expectVerdict(c, inbox.Applied)
		r.expectVerdict(c, inbox.Duplicate)
		fails := r.keyed("key")
		fails.Isolation = level
		_, err := r.Apply(r.ctx(), fails, func(context.Context, pgx.Tx) error {
			if n := locks(); n != 1 {
				t.Errorf("level %v: handler runs with %d locks, want 1", level, n)
			}
			return fmt.Errorf("error")
		})
		r.expectClass(err, inbox.HandlerError)

		// A claim that gives up while it waits for the key.
		begun, goOn := make(chan struct{}), make(chan struct{})
		first := r.async(func() error {
			_, err := r.Apply(r.ctx(), r.keyed("key"), func(context.Context, pgx.Tx) error { close(begun); <-goOn; return nil })
			return err
		})
		<-begun
		fails.LockTimeout = 20 * time.Millisecond
		_, err = r.Apply(r.ctx(), fails, effect)
		r.expectClass(err, inbox.Conflict)
		ctx, cancel := context.WithTimeout(r.ctx(), 50*time.Millisecond)
		fails.LockTimeout = patience
		_, err = r.Apply(ctx, fails, effect)
		cancel()
		r.expectClass(err, inbox.Infrastructure)
		close(goOn)
		r.ok(r.result(first))
		r.eventually("end of all locks", func() bool { return locks() == 0 })
	}
}

func TestKeyedClaimReadsNoTableFromEndToEnd(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	cfg := r.pool.Config()
	cfg.MaxConns = 1 // one set of kept plans
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	r.ok(err)
	t.Cleanup(pool.Close)
	store, err := postgres.New(pool, postgres.Config{Schema: r.names.Schema()})
	r.ok(err)
	apply := func() (scans int) {
		_, err := store.Apply(r.ctx(), r.keyed("key"), func(ctx context.Context, tx pgx.Tx) error {
			return tx.QueryRow(ctx, `SELECT coalesce(sum(seq_scan), 0) FROM pg_stat_xact_user_tables WHERE relname LIKE 'inbox%'`).Scan(&scans)
		})
		r.ok(err)
		return scans
	}
	r.exec("ANALYZE")
	for range 10 { // until the plan is one for all parameters, of empty tables
		apply()
	}
	r.exec(`INSERT INTO ` + r.names.Table("inbox_parked") + ` (consumer, dispatch_id, digest, topic, key, ordered, claimed, state, metadata, payload, next_attempt_at)
		SELECT ` + fmt.Sprint(r.consumer) + `, gen_random_uuid(), decode(repeat('00', 16), 'hex'), 't', 'k' || n, true, true, 'retrying', '{}', '', now() FROM generate_series(1, 1000) n`)
	if scans := apply(); scans != 0 {
		t.Errorf("claim has read %d tables from end to end", scans)
	}
}

func TestParkingWaitsForTheLockOfItsKey(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	var parking <-chan error
	_, err := r.Apply(r.ctx(), r.keyed("key"), func(ctx context.Context, tx pgx.Tx) error {
		parking = r.async(func() error {
			_, err := r.ParkMessage(r.ctx(), inbox.Parking{
				Consumer: r.consumer, Message: r.keyed("key").Message, State: inbox.Retrying, Ordered: true,
			})
			return err
		})
		r.waitsForLock(1)
		return effect(ctx, tx)
	})
	r.ok(err)
	r.ok(r.result(parking))
}

func TestHandlerSeesWhatTheOneBeforeItOfItsKeyHasDone(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	sees := func(ctx context.Context, tx pgx.Tx) (n int, err error) {
		err = tx.QueryRow(ctx, "SELECT count(*) FROM effects").Scan(&n)
		return n, err
	}
	for round, level := range isolations {
		begun, goOn := make(chan struct{}), make(chan struct{})
		first := r.async(func() error {
			_, err := r.Apply(r.ctx(), r.keyed("key"), func(ctx context.Context, tx pgx.Tx) error {
				close(begun)
				<-goOn
				return effect(ctx, tx)
			})
			return err
		})
		<-begun
		second := r.keyed("key")
		second.Isolation = level
		seen := 0
		waiting := r.async(func() error {
			_, err := r.Apply(r.ctx(), second, func(ctx context.Context, tx pgx.Tx) (err error) {
				seen, err = sees(ctx, tx)
				return err
			})
			return err
		})
		r.waitsForLock(1)
		close(goOn)
		r.ok(r.result(first))
		r.ok(r.result(waiting))
		if seen != round+1 {
			t.Errorf("level %v: handler sees %d effects, want %d", level, seen, round+1)
		}
	}
}

// deleting removes a claim in a transaction that stays open, and advances what is forgotten before.
func (r *inboxRig) deleting(id uuid.UUID) pgx.Tx {
	r.Helper()
	until := r.advance()
	tx := r.begin()
	tag, err := tx.Exec(r.ctx(), "DELETE FROM "+r.names.Table("inbox")+" WHERE dispatch_id = $1 AND stamp < $2", id.String(), until)
	r.ok(err)
	if tag.RowsAffected() != 1 {
		r.Fatalf("%d claims were deleted, want 1", tag.RowsAffected())
	}
	return tx
}

func (r *inboxRig) advance() (until time.Time) {
	r.Helper()
	r.eventually("advance", func() bool {
		var err error
		until, err = r.AdvanceForgotten(r.ctx(), r.consumer, time.Microsecond, time.Hour)
		r.ok(err)
		return !until.IsZero()
	})
	return until
}

func TestCopyThatWaitsWhileItsClaimIsForgottenIsTooOld(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	for _, level := range isolations {
		for _, key := range []string{"", "key"} {
			r.exec("UPDATE "+r.names.Table("inbox_consumers")+" SET forgotten_until = NULL WHERE id = $1", r.consumer)
			c := r.claim()
			c.Stamp = time.Now().Add(-time.Hour)
			r.expectVerdict(c, inbox.Applied)
			deleter := r.deleting(c.ID)
			copied := c
			copied.Isolation = level
			if key != "" {
				copied.Key, copied.Message = key, &inbox.Message{ID: c.ID, Topic: "topic", Key: key}
			}
			var v inbox.Verdict
			waiting := r.async(func() (err error) {
				v, err = r.Apply(r.ctx(), copied, effect)
				return err
			})
			r.waitsForLock(1)
			r.ok(deleter.Commit(r.ctx()))
			r.ok(r.result(waiting))
			if v != inbox.TooOld {
				t.Errorf("level %v: verdict on the copy is %v", level, v)
			}
		}
	}
	r.expectEffects(6)
}

// Nobody here removes a claim and moves what is forgotten on in one transaction, but a claim that
// reads the latter behind its wait is exact even then.
func TestCopyThatWaitsWhileWhatIsForgottenMovesOnIsTooOld(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	c := r.claim()
	c.Stamp = time.Now().Add(-time.Hour)
	r.expectVerdict(c, inbox.Applied)
	deleter := r.begin()
	_, err := deleter.Exec(r.ctx(), "DELETE FROM "+r.names.Table("inbox")+" WHERE dispatch_id = $1", c.ID.String())
	r.ok(err)
	_, err = deleter.Exec(r.ctx(), "UPDATE "+r.names.Table("inbox_consumers")+" SET forgotten_until = clock_timestamp() WHERE id = $1", r.consumer)
	r.ok(err)
	var v inbox.Verdict
	waiting := r.async(func() (err error) {
		v, err = r.Apply(r.ctx(), c, effect)
		return err
	})
	r.waitsForLock(1)
	r.ok(deleter.Commit(r.ctx()))
	r.ok(r.result(waiting))
	if v != inbox.TooOld {
		t.Errorf("verdict on the copy is %v", v)
	}
	r.expectEffects(1)
}

// What is forgotten moves on while a copy waits that has taken its snapshot already.
func TestAdvanceBehindASnapshotIsAConflict(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	for _, level := range isolations[1:] {
		c := r.claim()
		c.Stamp = time.Now().Add(-time.Hour)
		r.exec("UPDATE "+r.names.Table("inbox_consumers")+" SET forgotten_until = NULL WHERE id = $1", r.consumer)
		r.expectVerdict(c, inbox.Applied)
		deleter := r.begin()
		_, err := deleter.Exec(r.ctx(), "DELETE FROM "+r.names.Table("inbox")+" WHERE dispatch_id = $1", c.ID.String())
		r.ok(err)
		c.Isolation = level
		waiting := r.async(func() error {
			_, err := r.Apply(r.ctx(), c, effect)
			return err
		})
		r.waitsForLock(1)
		r.advance()
		r.ok(deleter.Commit(r.ctx()))
		r.expectClass(r.result(waiting), inbox.Conflict)
		r.expectVerdict(c, inbox.TooOld)
	}
	r.expectEffects(2)
}

func TestHandlersAndForgettingDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	for _, level := range isolations {
		c := r.keyed("key")
		c.Isolation = level
		c.Stamp = time.Now().Add(time.Hour)
		_, err := r.Apply(r.ctx(), c, func(ctx context.Context, tx pgx.Tx) error {
			r.advance()
			if _, err := r.Forget(r.ctx(), r.consumer, 0, time.Time{}, 100); err != nil {
				return err
			}
			if _, err := r.Register(r.ctx(), "service/handler", time.Hour); err != nil {
				return err
			}
			return effect(ctx, tx)
		})
		r.ok(err)
	}
	r.expectEffects(3)
}

func TestErrorsShowNeitherPayloadNorMetadata(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	m := &inbox.Message{
		ID: uuid.New(), Topic: "top\x00secret", Key: "key", // no text: the contract rules it out
		Metadata: map[string]string{"name": "secret"}, Payload: []byte("secret"),
	}
	for _, state := range []inbox.State{inbox.Dead, inbox.TooOldState} {
		_, err := r.ParkMessage(r.ctx(), inbox.Parking{Consumer: r.consumer, Message: m, State: state, LastError: "a\x00b\xff"})
		r.expectClass(err, inbox.Infrastructure)
		if strings.Contains(fmt.Sprintf("%v %+v", err, err), "secret") {
			t.Errorf("error shows content: %v", err)
		}
	}
}
