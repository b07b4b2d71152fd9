package postgres_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
)

// session is one that listens with a witness.
type session struct {
	witness int64
	told    <-chan int64 // what comes after the witness
	ended   <-chan error
}

func (r *rig) listen() session {
	r.Helper()
	told := make(chan int64, 3)
	ended := r.async(func() error {
		return r.ListenWitnessed(r.ctx(), func(witness int64) { told <- witness }, func(string) {})
	})
	r.eventually("witness", func() bool { return len(told) > 0 })
	return session{<-told, told, ended}
}

// end has the server end the session of a witness.
func (r *rig) end(s session) {
	r.Helper()
	r.exec(`SELECT pg_terminate_backend(pid) FROM pg_locks
		WHERE locktype = 'advisory' AND objsubid = 1 AND (classid::bigint << 32) | objid::bigint = $1`, s.witness)
	if err := r.result(s.ended); err == nil {
		r.Error("the session goes on")
	}
	if told := <-s.told; told != 0 {
		r.Errorf("told of the witness %d", told)
	}
	r.eventually("end of the session", func() bool { return slices.Equal(r.endedWitnesses(), []int64{s.witness}) || r.free(s.witness) })
}

// free tells whether the lock of a witness is free.
func (r *rig) free(witness int64) bool {
	r.Helper()
	return value[bool](r, "SELECT pg_try_advisory_xact_lock_shared($1)", witness)
}

func (r *rig) endedWitnesses() []int64 {
	r.Helper()
	ended, err := r.EndedWitnesses(r.ctx())
	r.ok(err)
	return ended
}

// attested has relay own all shards with a witness.
func (r *rig) attested(relay string, witness int64, ttl time.Duration) []outbox.Lease {
	r.Helper()
	var leases []outbox.Lease
	for _, lease := range r.acquire(relay, ttl) {
		leases = append(leases, lease)
	}
	r.ok(r.Attest(r.ctx(), relay, leases, witness))
	return leases
}

func TestLeasesOfAnEndedWitnessCanBeTakenOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.listen()
	_, err := r.Heartbeat(r.ctx(), "a", time.Hour)
	r.ok(err)
	leases := r.attested("a", s.witness, time.Hour)
	if ended := r.endedWitnesses(); len(leases) != idgen.Shards || len(ended) != 0 {
		t.Errorf("%d leases, and %v have ended", len(leases), ended)
	}
	r.end(s)
	if ended := r.endedWitnesses(); !slices.Equal(ended, []int64{s.witness}) {
		t.Errorf("%v have ended, want %d", ended, s.witness)
	}
	if early := r.acquire("b", time.Hour); len(early) != 0 {
		t.Errorf("%d shards were taken over from a relay that was not given up", len(early))
	}
	r.ok(r.Expire(r.ctx(), []int64{s.witness, 1}))
	if live, err := r.Heartbeat(r.ctx(), "b", time.Hour); err != nil || live != 1 {
		t.Errorf("%d relays are visible, %v", live, err)
	}
	grants, err := r.Acquire(r.ctx(), "b", time.Hour, idgen.Shards)
	r.ok(err)
	if len(grants) != idgen.Shards || !grants[0].Abrupt {
		t.Errorf("%d shards were taken over", len(grants))
	}
	if ended := r.endedWitnesses(); len(ended) != 0 {
		t.Errorf("the witness %d counts for the next owner", ended)
	}
	r.ok(r.Expire(r.ctx(), []int64{s.witness}))
	if again := r.acquire("c", time.Hour); len(again) != 0 {
		t.Errorf("%d shards were taken from the next owner", len(again))
	}
}

func TestRelayWithANewWitnessKeepsItsLeases(t *testing.T) {
	t.Parallel()
	for what, attest := range map[string]bool{"a new one": true, "none": false} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			old, next := r.listen(), session{}
			leases := r.attested("a", old.witness, time.Hour)
			if attest {
				next = r.listen()
			}
			r.ok(r.Attest(r.ctx(), "a", leases, next.witness))
			r.end(old)
			r.ok(r.Expire(r.ctx(), []int64{old.witness}))
			if ended, taken := r.endedWitnesses(), r.acquire("b", time.Hour); len(ended)+len(taken) != 0 {
				t.Errorf("%v have ended, and %d shards were taken over", ended, len(taken))
			}
		})
	}
}

// A relay that lives after all goes on with the leases that nobody has taken.
func TestExpiredLeasesCanBeRenewed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.listen()
	leases := r.attested("a", s.witness, time.Hour)
	r.end(s)
	r.ok(r.Expire(r.ctx(), []int64{s.witness}))
	r.ok(r.Attest(r.ctx(), "a", leases, 0))
	renewed, err := r.Renew(r.ctx(), "a", time.Hour, leases)
	if err != nil || len(renewed) != len(leases) {
		t.Errorf("%d leases were renewed, %v", len(renewed), err)
	}
	if taken := r.acquire("b", time.Hour); len(taken) != 0 {
		t.Errorf("%d shards were taken over", len(taken))
	}
}

// The statement may have been under way for long, while its relay has recorded that it has none.
func TestEndedWitnessIsNotRecorded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.listen()
	r.end(s)
	r.attested("a", s.witness, time.Hour)
	if ended := r.endedWitnesses(); len(ended) != 0 {
		t.Errorf("%v was recorded", ended)
	}
}

func TestRelayAttestsOnlyItsOwnLeases(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.listen()
	leases := r.attested("a", 0, time.Hour)
	r.ok(r.Attest(r.ctx(), "b", leases, s.witness))
	for i := range leases {
		leases[i].Epoch--
	}
	r.ok(r.Attest(r.ctx(), "a", leases, s.witness))
	r.end(s)
	if ended := r.endedWitnesses(); len(ended) != 0 {
		t.Errorf("%v was recorded", ended)
	}
}

// The connections of the pool go through a pooler, and the session that listens does not.
func TestRelayListensPastAPooler(t *testing.T) {
	t.Parallel()
	direct := testenv.Postgres(t)
	newStore(t, poolOn(t, direct, nil), postgres.Config{})
	for name, past := range map[string]string{"prepares": direct, "only executes": direct + "&default_query_exec_mode=exec", "keeps no descriptions": direct + "&description_cache_capacity=0"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newStore(t, poolOn(t, testenv.PgBouncer(t, direct)+"&default_query_exec_mode=cache_describe", nil), postgres.Config{
				Direct: func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, past) },
			})
			r := &rig{T: t, Store: store, pool: poolOn(t, direct, nil)}
			s := r.listen()
			if s.witness == 0 || r.free(s.witness) {
				t.Errorf("the witness %d is free", s.witness)
			}
			var woken atomic.Bool
			ctx, cancel := context.WithCancel(r.ctx())
			listening := r.async(func() error { return store.Listen(ctx, func(string) { woken.Store(true) }) })
			r.eventually("wake-up", func() bool {
				r.ok(store.Notify(r.ctx(), "news"))
				return woken.Load()
			})
			cancel()
			_ = r.result(listening)
			r.end(s)
		})
	}
}

// A relay polls until Direct succeeds.
func TestListeningTellsOfAFailureOfDirect(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	for want, direct := range map[string]func(context.Context) (*pgx.Conn, error){
		"listen: refused": func(context.Context) (*pgx.Conn, error) { return nil, refused },
		"listen: postgres.Config.Direct returned no connection": func(context.Context) (*pgx.Conn, error) { return nil, nil },
	} {
		store := newStore(t, newPool(t, nil), postgres.Config{Direct: direct})
		if err := store.Listen(t.Context(), func(string) {}); err == nil || err.Error() != want {
			t.Errorf("%v, not %s", err, want)
		}
	}
}

// The session behind a pooler outlives its client, and its end is not told.
func TestThereIsNoWitnessBehindAPooler(t *testing.T) {
	t.Parallel()
	direct := testenv.Postgres(t)
	newStore(t, poolOn(t, direct, nil), postgres.Config{})
	store := newStore(t, poolOn(t, testenv.PgBouncer(t, direct), nil), postgres.Config{})
	r := &rig{T: t, Store: store, pool: poolOn(t, direct, nil)}
	ctx, cancel := context.WithCancel(r.ctx())
	defer cancel()
	listening := r.async(func() error {
		return store.ListenWitnessed(ctx, func(witness int64) {
			if witness != 0 {
				t.Errorf("the witness is %d", witness)
			}
		}, func(string) {})
	})
	r.eventually("LISTEN", func() bool {
		return value[int](r, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'") == 1
	})
	if n := value[int](r, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"); n != 0 {
		t.Errorf("%d locks are held", n)
	}
	cancel()
	_ = r.result(listening)
}
