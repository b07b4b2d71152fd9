package consumer_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
)

// apartRig is a rig whose messages share transactions from the beginning, and whose handler can be held.
type apartRig struct {
	*rig
	mu   sync.Mutex
	held map[int]chan struct{} // messages whose handler waits
	next int                   // the number of the next message
	done sync.WaitGroup
}

func newApartRig(t *testing.T, store *fakeStore) *apartRig {
	t.Helper()
	return newApartRigOf(t, store, consumer.GroupConfig{})
}

func newApartRigOf(t *testing.T, store *fakeStore, group consumer.GroupConfig) *apartRig {
	t.Helper()
	r := &apartRig{held: map[int]chan struct{}{}}
	r.rig = newRig(t, setup{store: store, handler: consumer.HandlerConfig{Group: group}, fn: func(ctx context.Context, w *work, _ *message.Message) error {
		r.mu.Lock()
		var gate chan struct{}
		for n, c := range r.held {
			if w.Event().ID == number(n) {
				gate = c
			}
		}
		r.mu.Unlock()
		if gate == nil {
			return nil
		}
		select {
		case <-gate:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}})
	r.handler.Share(1)
	return r
}

// arrive has the next n messages handled, and returns how many handlers are begun before all wait.
func (r *apartRig) arrive(n int) int {
	before := r.calls.Load()
	for range n {
		m := msg(r.next)
		r.next++
		r.done.Go(func() { r.consume(m) })
		synctest.Wait() // in this order
	}
	return int(r.calls.Load() - before)
}

// holdNext lets the handler of the next message wait until release is called.
func (r *apartRig) holdNext() (release func()) {
	gate := make(chan struct{})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held[r.next] = gate
	return func() { close(gate) }
}

// hold has a group run whose handler waits until release is called.
func (r *apartRig) hold() (release func()) {
	r.t.Helper()
	release = r.holdNext()
	if n := r.arrive(1); n != 1 {
		r.t.Fatalf("%d handlers begun, want one that waits", n)
	}
	return release
}

// beside tells whether a group runs beside another one.
func (r *apartRig) beside() bool {
	r.t.Helper()
	r.handler.Share(1) // after a rollback, too
	release := r.hold()
	n := r.arrive(16)
	release()
	r.settle()
	return n > 0
}

// settle waits until all messages are handled, and checks their effects.
func (r *apartRig) settle() {
	r.t.Helper()
	r.done.Wait()
	r.wantEachOnce(r.next)
}

func TestGroupsOfAHandlerRunBesideEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newApartRig(t, newFake())
		release := []func(){r.hold()}
		for group := 2; group <= 3; group++ { // a full group has four members at first
			release = append(release, r.holdNext())
			if n := r.arrive(3); n != 0 {
				t.Errorf("group %d: %d handlers begun for three messages, want none", group, n)
			}
			if n := r.arrive(1); n != 1 {
				t.Errorf("group %d: %d handlers begun for four messages, want the first", group, n)
			}
		}
		if n := r.arrive(20); n != 0 {
			t.Errorf("%d handlers begun beside three groups, want none", n)
		}
		for _, f := range release {
			f()
		}
		r.settle()
		r.wantCalls(int64(r.next))
		if c := r.handler.Counters(); c.GroupsUndone != 0 || c.Failed != 0 {
			t.Errorf("counters: %+v", c)
		}
	})
}

// TestGroupsBeginBesideOthersBeforeTheyAreFull: a subscriber has 64 messages in flight, which is one full
// group.
func TestGroupsBeginBesideOthersBeforeTheyAreFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newApartRig(t, oneDisk(time.Millisecond))
		r.flood(256, 0, 10_000) // so that groups grow to 64
		r.next = 10_000
		release := r.hold()
		if n := r.arrive(15); n != 0 {
			t.Errorf("%d handlers begun for 15 messages beside a group, want none", n)
		}
		r.arrive(1)
		time.Sleep(5 * time.Millisecond) // for the COMMIT
		synctest.Wait()
		if n := r.calls.Load(); n != 10_000+1+16 {
			t.Errorf("%d handlers run for 16 messages beside a group, want 16", n-10_001)
		}
		release()
		r.settle()
	})
}

func TestGroupsThatWaitForEachOtherRunApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var fail bool
		store := newFake()
		store.fault = func(step string) error {
			if step == "commit" && fail {
				fail = false
				return errConflict
			}
			return nil
		}
		r := newApartRig(t, store)
		conflict := func() {
			t.Helper()
			fail = true
			if !r.beside() || fail {
				t.Fatal("no conflict of groups beside each other")
			}
		}
		conflict()
		r.wantLog("level=INFO", "one runs at a time", "for=15m")
		if r.beside() {
			t.Error("groups run beside each other after a conflict")
		}
		time.Sleep(15*time.Minute - time.Second)
		if r.beside() {
			t.Error("groups run beside each other a quarter of an hour after a conflict")
		}
		time.Sleep(time.Second)
		conflict()
		time.Sleep(30*time.Minute - time.Second)
		if r.beside() {
			t.Error("groups run beside each other half an hour after a second conflict")
		}
		time.Sleep(time.Second)
		if !r.beside() {
			t.Error("groups run one at a time for over half an hour")
		}
		for range 8 { // for a day at most
			conflict()
			time.Sleep(24 * time.Hour)
		}
		conflict()
		r.wantEachOnce(r.next)
		if c := r.handler.Counters(); c.GroupsUndone != 11 || c.Failed != 0 {
			t.Errorf("counters: %+v", c)
		}
	})
}

func TestConflictOfAGroupWithoutCompanyKeepsGroupsBesideEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		r := newApartRig(t, store)
		release := r.hold()
		r.arrive(3)                                  // the next group
		store.failCalls("commit", 2, 2, errConflict) // its commit, when no other group runs
		release()
		r.settle()
		if c := r.handler.Counters(); c.GroupsUndone != 1 {
			t.Fatalf("counters: %+v", c)
		}
		if !r.beside() {
			t.Error("groups run one at a time after a conflict with no other group")
		}
	})
}

// TestGroupThatWaitedForAnotherOneUntilItEndedKeepsGroupsApart: of two groups that wait for each other, one
// may be rolled back when the other has ended.
func TestGroupThatWaitedForAnotherOneUntilItEndedKeepsGroupsApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conflict := make(chan struct{})
		store := newFake()
		r := newApartRig(t, store)
		release := r.hold()
		store.setFault(func(step string) error {
			if step == "commit" && store.called("commit") == 1 {
				<-conflict
				return errConflict
			}
			return nil
		})
		r.arrive(4) // a group beside the held one
		time.Sleep(time.Millisecond)
		release()
		time.Sleep(time.Millisecond)
		close(conflict)
		r.settle()
		if c := r.handler.Counters(); c.GroupsUndone != 1 {
			t.Fatalf("counters: %+v", c)
		}
		r.wantLog("one runs at a time")
	})
}

// TestTwoGroupsThatAreLateKeepGroupsApartOnce: of two groups that wait for each other, both may be late.
func TestTwoGroupsThatAreLateKeepGroupsApartOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newApartRig(t, newFake())
		opened := r.hold()
		r.holdNext()
		r.arrive(4)
		r.holdNext()
		r.arrive(4)
		r.mu.Lock()
		clear(r.held) // for the next attempts
		r.mu.Unlock()
		time.Sleep(time.Second)
		opened()
		r.settle()
		if c := r.handler.Counters(); c.GroupsUndone != 2 || c.Failed != 0 {
			t.Errorf("counters: %+v", c)
		}
		if r.beside() {
			t.Error("groups run beside each other after two were late")
		}
		time.Sleep(15 * time.Minute)
		if !r.beside() {
			t.Error("groups run one at a time a quarter of an hour after two were late together")
		}
	})
}

// TestGroupsOfAConfiguredSizeBeginBesideOthersWhenFull, also after a conflict.
func TestGroupsOfAConfiguredSizeBeginBesideOthersWhenFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size = 20
		store := newFake()
		r := newApartRigOf(t, store, consumer.GroupConfig{Size: size})
		store.failCalls("commit", 1, 1, errConflict)
		release := r.hold()
		for range 2 {
			if n := r.arrive(size - 1); n != 0 {
				t.Errorf("%d handlers begun for %d messages beside a group, want none", n, size-1)
			}
			if n := r.arrive(1); n < size {
				t.Errorf("%d handlers begun for %d messages beside a group", n, size)
			}
		}
		release()
		r.settle()
		if strings.Contains(r.log.String(), "one runs at a time") {
			t.Errorf("groups that were asked for are kept apart:\n%s", r.log)
		}
	})
}

// TestConflictOfOneMessageBesideAGroupKeepsGroupsApart: a group of one may be what the database rolls back.
func TestConflictOfOneMessageBesideAGroupKeepsGroupsApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		r := newApartRig(t, store)
		release := r.hold()
		time.Sleep(time.Millisecond)
		r.arrive(4) // a group that is committed beside the held one
		store.failCalls("commit", 2, 2, errConflict)
		release()
		r.settle()
		r.wantLog("one runs at a time")
	})
}

func TestGroupsThatWaitToBeginStayLarge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		store.fault = func(step string) error {
			if step == "begin" { // a store with one writer waits for others here
				time.Sleep(25 * time.Millisecond)
			}
			return nil
		}
		r := newApartRig(t, store)
		r.flood(64, 0, 5000)
		if n := r.handler.Counters().Groups; n < 200 || n > 500 { // small groups are slow, and are given up
			t.Errorf("%d groups of 5000 messages, want 200 to 500", n)
		}
		r.wantEachOnce(5000)
	})
}

// TestGroupsThatDeadlockApplyEachMessageOnce has two groups lock two rows in different orders.
func TestGroupsThatDeadlockApplyEachMessageOnce(t *testing.T) {
	t.Parallel()
	db, _ := newPostgres(t)
	const members, round = 4, 9                     // a round has two groups, and an opener that lets them gather
	for sent := 0; sent < 20*round; sent += round { // on a machine that stands still, no groups gather
		undone := deadlockOnce(t, db, sent, members)
		db.WantEffects(t, sent+round)
		if undone {
			return
		}
	}
	t.Fatal("no group was rolled back in 20 rounds")
}

// deadlockOnce has two groups of that many messages each, and an opener before them, handled. It tells
// whether a group was rolled back.
func deadlockOnce(t *testing.T, db *database[pgx.Tx], first, members int) bool {
	t.Helper()
	opener, opened, locked := make(chan struct{}), make(chan struct{}), make(chan struct{})
	began := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	var calls [2]atomic.Int64 // of the groups
	_, h := handle(t, db, consumer.Config{}, consumer.HandlerConfig{}, func(ctx context.Context, w *consumer.Work[pgx.Tx], _ *message.Message) error {
		n := int(w.Event().ID[15]) - 1 - first
		if n == 2*members {
			close(opener)
			<-opened
			return db.Do(ctx, w)
		}
		group := n / members
		call := calls[group].Add(1)
		if call == 1 {
			close(began[group])
		}
		if call <= 2 {
			if _, err := w.DB().Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, (group+int(call))%2); err != nil {
				return err
			}
		}
		if call == 1 {
			select { // until both groups have a lock
			case locked <- struct{}{}:
			case <-locked:
			case <-time.After(2 * time.Second): // the other group was rolled back before
			}
		}
		return db.Do(ctx, w)
	})
	h.Share(1)
	var wg sync.WaitGroup
	send := func(n int) {
		wg.Go(func() {
			if err := h.Consume(msg(first + n)); err != nil {
				t.Error(err)
			}
		})
	}
	send(2 * members)
	<-opener
	for group := range began {
		for n := range members {
			send(group*members + n)
		}
		<-began[group]
	}
	close(opened)
	wg.Wait()
	c := h.Counters()
	if c.Failed != 0 || c.Applied != int64(2*members+1) {
		t.Errorf("counters: %+v", c)
	}
	return c.GroupsUndone > 0
}
