package postgres_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// blockQueue makes statements that change a queue row wait until the returned
// function is called.
func (r *rig) blockQueue(q outbox.Queued) (unblock func()) {
	r.Helper()
	tx := r.begin()
	_, err := tx.Exec(r.ctx(), "SELECT FROM "+r.names.Table("outbox_queue")+" WHERE id = $1 FOR UPDATE", q.Seq)
	r.ok(err)
	return func() { r.ok(tx.Rollback(r.ctx())) }
}

func TestTakeoverPassesOverAShardWhereAFencedStatementRuns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	q := r.write(event("key", "1"))[0]
	lease := r.acquire("a", time.Millisecond)[q.Shard]
	unblock := r.blockQueue(q)
	marking := r.async(func() error {
		lost, err := r.Mark(r.ctx(), "a", []outbox.Mark{markOf(lease, q)})
		if len(lost) != 0 {
			t.Errorf("shards %v are lost", lost)
		}
		return err
	})
	r.waitsForLock(1)
	taken := r.acquire("b", time.Hour)
	if _, ok := taken[q.Shard]; ok || len(taken) != idgen.Shards-1 {
		t.Errorf("%d shards were taken over, the one where a statement runs among them: %t", len(taken), ok)
	}
	unblock()
	r.ok(r.result(marking))
	if taken := r.acquire("b", time.Hour); taken[q.Shard].Epoch <= lease.Epoch {
		t.Errorf("afterwards %v were taken over", taken)
	}
	if left := r.queue(); len(left) != 0 {
		t.Errorf("queue holds %v", left)
	}
}

func TestStatementOfAStoppedRelayWaitsForATakeoverAndChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	events := r.write(event("key", "1"), event("key", "2"), event("key", "3"), event("key", "4"))
	shard := events[0].Shard
	lease := r.acquire("a", time.Hour)[shard]
	failure := outbox.Failure{Seq: events[0].Seq, Round: events[0].Round, Attempts: 2, Dead: true}
	for _, park := range []func() (bool, error){
		func() (bool, error) {
			return r.Park(r.ctx(), "a", lease, []outbox.Failure{{Seq: events[0].Seq, Round: events[0].Round, Attempts: 1}})
		},
		func() (bool, error) {
			return r.Follow(r.ctx(), "a", lease, []outbox.Mark{markOf(lease, events[1])})
		},
	} {
		_, err := park()
		r.ok(err)
	}
	before := r.everything()

	takeover := r.begin()
	_, err := takeover.Exec(r.ctx(), "SELECT FROM "+r.names.Table("outbox_shards")+" WHERE shard = $1 FOR UPDATE", shard)
	r.ok(err)
	type answer struct {
		lost bool
		err  error
	}
	statements := map[string]func() (bool, error){
		"mark": func() (bool, error) {
			lost, err := r.Mark(r.ctx(), "a", []outbox.Mark{markOf(lease, events[2])})
			return slices.Equal(lost, []int{shard}), err
		},
		"park": func() (bool, error) {
			return r.Park(r.ctx(), "a", lease, []outbox.Failure{{Seq: events[2].Seq, Round: events[2].Round, Attempts: 1}})
		},
		"follow": func() (bool, error) { return r.Follow(r.ctx(), "a", lease, []outbox.Mark{markOf(lease, events[3])}) },
		"retry":  func() (bool, error) { return r.Retry(r.ctx(), "a", lease, []outbox.Failure{failure}, false) },
		"sent": func() (bool, error) {
			lost, err := r.Sent(r.ctx(), "a", []outbox.Mark{markOf(lease, events[0])}, false)
			return slices.Equal(lost, []int{shard}), err
		},
		"heal": func() (bool, error) { return true, r.Heal(r.ctx(), "a", []outbox.Lease{lease}, false) },
		"renew": func() (bool, error) {
			renewals, err := r.Renew(r.ctx(), "a", time.Hour, []outbox.Lease{lease})
			return len(renewals) == 0, err
		},
		"release": func() (bool, error) { return true, r.Release(r.ctx(), "a", []outbox.Lease{lease}, false) },
	}
	answers := make(map[string]*answer)
	var results []<-chan error
	for name, statement := range statements {
		a := &answer{}
		answers[name] = a
		results = append(results, r.async(func() error {
			a.lost, a.err = statement()
			return a.err
		}))
	}
	r.waitsForLock(len(statements))
	_, err = takeover.Exec(r.ctx(), "UPDATE "+r.names.Table("outbox_shards")+" SET owner = 'b', epoch = epoch + 1 WHERE shard = $1", shard)
	r.ok(err)
	r.ok(takeover.Commit(r.ctx()))
	for _, result := range results {
		r.ok(r.result(result))
	}
	for name, a := range answers {
		if !a.lost {
			t.Errorf("%s does not report the shard as lost", name)
		}
	}
	if after := r.everything(); after != before {
		t.Errorf("a stopped relay changed\n%s\nto\n%s", before, after)
	}
	owner := value[string](r, "SELECT owner FROM "+r.names.Table("outbox_shards")+" WHERE shard = $1", shard)
	if owner != "b" {
		t.Errorf("shard belongs to %s", owner)
	}
}

// everything returns the state of all events as text.
func (r *rig) everything() string {
	r.Helper()
	return value[string](r, `SELECT concat_ws(' ',
		(SELECT string_agg(q::text, ' ' ORDER BY q.id) FROM `+r.names.Table("outbox_queue")+` q),
		(SELECT string_agg(p::text, ' ' ORDER BY p.id) FROM `+r.names.Table("outbox_parked")+` p),
		(SELECT string_agg(a::text, ' ' ORDER BY a.n) FROM `+r.names.Table("outbox_attempts")+` a),
		(SELECT string_agg(c::text, ' ' ORDER BY c.id) FROM `+r.names.Table("outbox_receipts")+` c))`)
}

func TestRenewalWaitsForNoFencedStatementAndReleaseDoes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	q := r.write(event("key", "1"))[0]
	lease := r.acquire("a", time.Hour)[q.Shard]
	unblock := r.blockQueue(q)
	marking := r.async(func() error {
		_, err := r.Mark(r.ctx(), "a", []outbox.Mark{markOf(lease, q)})
		return err
	})
	r.waitsForLock(1)
	renewed := r.async(func() error {
		renewals, err := r.Renew(r.ctx(), "a", time.Hour, []outbox.Lease{lease})
		if len(renewals) != 1 {
			t.Errorf("renewed are %v", renewals)
		}
		return err
	})
	r.ok(r.result(renewed))
	releasing := r.async(func() error { return r.Release(r.ctx(), "a", []outbox.Lease{lease}, false) })
	r.waitsForLock(2)
	unblock()
	r.ok(r.result(marking))
	r.ok(r.result(releasing))
}

func TestDiscardDuringASentLeavesNoKeyWithoutAHeadOnceItIsHealed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	events := r.write(event("key", "1"), event("key", "2"), event("key", "3"))
	shard := events[0].Shard
	lease := r.acquire("a", time.Hour)[shard]
	_, err := r.Park(r.ctx(), "a", lease, []outbox.Failure{{Seq: events[0].Seq, Round: events[0].Round, Attempts: 1}})
	r.ok(err)
	_, err = r.Follow(r.ctx(), "a", lease, []outbox.Mark{markOf(lease, events[1]), markOf(lease, events[2])})
	r.ok(err)

	// The relay's statement has looked at the key before the operator discards
	// what it is about to promote.
	operator := r.begin()
	_, err = operator.Exec(r.ctx(), "SELECT FROM "+r.names.Table("outbox_shards")+" WHERE shard = $1 FOR UPDATE", shard)
	r.ok(err)
	sending := r.async(func() error {
		_, err := r.Sent(r.ctx(), "a", []outbox.Mark{markOf(lease, events[0])}, false)
		return err
	})
	r.waitsForLock(1)
	_, err = operator.Exec(r.ctx(), "UPDATE "+r.names.Table("outbox_parked")+" SET state = 'discarded', reason = 'x' WHERE id = $1", events[1].Seq)
	r.ok(err)
	r.ok(operator.Commit(r.ctx()))
	r.ok(r.result(sending))

	r.ok(r.Heal(r.ctx(), "a", []outbox.Lease{lease}, false))
	due, _, err := r.Due(r.ctx(), []int{shard}, false, outbox.DuePoint{}, 24*time.Hour, 10)
	r.ok(err)
	if len(due) != 1 || due[0].Seq != events[2].Seq {
		t.Errorf("due are %v", due)
	}
}

// TestRelaysAndOperatorsDoNotDeadlock lets a relay work on a few keys while
// operators redrive and discard at random.
func TestRelaysAndOperatorsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var records []outbox.Record
	for i := range 120 {
		records = append(records, event("key "+strconv.Itoa(i%12), strconv.Itoa(i)))
	}
	events := r.write(records...)
	leases := r.acquire("a", time.Hour)
	for _, q := range events {
		lost, err := r.Park(r.ctx(), "a", leases[q.Shard], []outbox.Failure{{Seq: q.Seq, Round: q.Round, Attempts: 1, Dead: q.Seq%3 == 0}})
		if err != nil || lost {
			t.Fatal(lost, err)
		}
	}
	var group sync.WaitGroup
	defer group.Wait()
	run := func(step func() error) {
		group.Go(func() {
			for range 60 {
				if err := step(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	run(func() error { return r.workOnce(leases) })
	run(func() error {
		_, _, err := r.Redrive(r.ctx(), outbox.Filter{Limit: 30}, "reason")
		return err
	})
	run(func() error {
		_, err := r.Discard(r.ctx(), outbox.Filter{Limit: 3, After: rand.Int64N(120)}, "reason")
		return err
	})
	run(func() error {
		all := make([]outbox.Lease, 0, len(leases))
		for _, lease := range leases {
			all = append(all, lease)
		}
		renewals, err := r.Renew(r.ctx(), "a", time.Hour, all)
		if err == nil && len(renewals) != len(all) {
			err = errors.New("lease is lost")
		}
		return err
	})
	group.Wait()
	all := make([]outbox.Lease, 0, len(leases))
	for _, lease := range leases {
		all = append(all, lease)
	}
	r.ok(r.Heal(r.ctx(), "a", all, false))
	headless := value[int](r, `SELECT count(*) FROM (
		SELECT (array_agg(state ORDER BY id))[1] AS head FROM `+r.names.Table("outbox_parked")+`
		WHERE state IN ('retrying', 'following') GROUP BY shard, key) k WHERE head <> 'retrying'`)
	if headless != 0 {
		t.Errorf("%d keys have no head", headless)
	}
}

// workOnce sends some of the due events and fails others.
func (r *rig) workOnce(leases map[int]outbox.Lease) error {
	shards := make([]int, 0, len(leases))
	for shard := range leases {
		shards = append(shards, shard)
	}
	due, _, err := r.Due(r.ctx(), shards, false, outbox.DuePoint{}, 24*time.Hour, 10)
	if err != nil {
		return err
	}
	for _, q := range due {
		if rand.IntN(2) == 0 {
			_, err = r.Sent(r.ctx(), "a", []outbox.Mark{markOf(leases[q.Shard], q)}, false)
		} else {
			_, err = r.Retry(r.ctx(), "a", leases[q.Shard], []outbox.Failure{{
				Seq: q.Seq, Attempts: q.Attempts + 1, Dead: q.Attempts > 1, Outcome: transport.Refused,
			}}, false)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
