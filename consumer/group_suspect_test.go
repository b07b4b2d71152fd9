package consumer_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/inbox"
)

// redelivered returns n messages that were delivered before.
func redelivered(n int) []*message.Message {
	all := msgs(n)
	for _, m := range all {
		again(m)
	}
	return all
}

// wantStarts checks how many starts of the first messages are recorded.
func (r *rig) wantStarts(want ...int) {
	r.t.Helper()
	for n := range want {
		if got := r.store.starts(n); got != want[n] {
			r.t.Errorf("%d starts of message %d are recorded, want %d", got, n, want[n])
		}
	}
}

// begun puts a start of a message there, as of a process that died.
func (r *rig) begun(n int) {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	r.store.attempts[claimKey{1, number(n)}] = attemptRow{starts: 1}
}

func TestStartsOfAGroupAreRecordedInOneStatementBeforeItBegins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r *rig
		r = newRig(t, grouped(func(_ context.Context, w *work, _ *message.Message) error {
			if w.Event().ID == number(0) {
				r.wantStarts(1, 0, 1, 1)
			}
			return nil
		}))
		r.wantAll(r.crowd(again(msg(0)), msg(1), again(msg(2)), again(msg(3))))
		r.wantGroups(1, 0)
		if started, back := r.store.called("started"), r.store.called("unstarted"); started != 1 || back != 0 {
			t.Errorf("%d statements record starts and %d take some back, want one and none", started, back)
		}
		if c := r.handler.Counters(); c.SoloStarts != 3 || c.Applied != 5 {
			t.Errorf("counters: %+v", c)
		}
	})
}

func TestBatchRecordsTheStartsOfItsRedeliveredMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{})
		var sizes []int
		h, err := r.inbox.HandleBatch("batch", func(_ context.Context, b *consumer.Batch[*fakeTx], _ []*message.Message) error {
			if sizes = append(sizes, b.Len()); len(sizes) == 1 {
				r.wantStarts(1, 1, 1, 1)
				return errHandler
			}
			return nil
		}, consumer.HandlerConfig{Topic: "orders", Group: consumer.GroupConfig{Wait: time.Second, Size: 4}})
		if err != nil {
			t.Fatal(err)
		}
		r.handler = h
		r.together(redelivered(4))
		// What came back has killed nobody: the halves need no start.
		if n := r.store.called("started"); len(sizes) != 3 || n != 1 {
			t.Errorf("batches of %v, %d statements have recorded starts", sizes, n)
		}
		r.wantStarts(0, 0, 0, 0)
	})
}

func TestMemberThatWasBegunBeforeLeavesItsGroupAndRunsAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Int64
		r := newRig(t, grouped(func(_ context.Context, w *work, _ *message.Message) error {
			n := running.Add(1)
			defer running.Add(-1)
			time.Sleep(time.Second)
			if w.Event().ID == number(1) && (n != 1 || running.Load() != 1) {
				t.Error("a message that was begun before is not alone")
			}
			return nil
		}))
		r.begun(1)
		r.wantAll(r.crowd(redelivered(4)...))
		r.wantGroups(1, 0)
		for n := range 4 {
			r.wantDone(number(n), 1)
		}
		r.wantCalls(5)
		if n := r.store.called("begin"); n != 3 { // the opener's, the group's and the one's
			t.Errorf("%d transactions", n)
		}
		r.wantStarts(0, 0, 0, 0)
	})
}

func TestMemberThatWasBegunTooOftenIsDeadAndItsGroupIsNot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, grouped(nil))
		r.store.attempts[claimKey{1, number(1)}] = attemptRow{starts: 4}
		r.wantAll(r.crowd(redelivered(4)...))
		r.wantGroups(1, 0)
		r.wantStates(inbox.Dead)
		r.wantCalls(4)
		for n, want := range []int{1, 0, 1, 1} {
			r.wantDone(number(n), want)
		}
	})
}

func TestStartsOfAGroupThatCameBackAreTakenBackBeforeOthersAreLetIn(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]struct {
		step string
		err  error
	}{
		"failed handler": {}, "failed commit": {"commit", errConflict}, "unknown commit": {"answer", inbox.ErrCommitUnknown},
		"no transaction": {"begin", errOutage},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var r *rig
				failed := false
				r = newRig(t, grouped(func(_ context.Context, w *work, _ *message.Message) error {
					if w.Event().ID == number(2) && fault.step == "" && !failed {
						failed = true
						return errHandler
					}
					return nil
				}))
				faulty := true
				var seen atomic.Int64
				r.store.setFault(func(step string) error {
					switch {
					case step == fault.step && r.store.called("started") > 0 && faulty:
						faulty = false
						return fault.err
					case step == "unstarted":
						if seen.Add(1) > 1 {
							break
						}
						if errors.Is(fault.err, inbox.ErrCommitUnknown) { // it was committed, and they are gone with it
							r.wantStarts(0, 0, 0, 0)
							break
						}
						r.wantStarts(1, 1, 1, 1) // and none of them is begun again yet
					}
					return nil
				})
				r.wantAll(r.crowd(redelivered(4)...))
				for n := range 4 {
					r.wantDone(number(n), 1)
				}
				if seen.Load() == 0 {
					t.Error("no start was taken back")
				}
				for n := range 4 {
					if got := r.store.starts(n); got > 1 {
						t.Errorf("%d starts of message %d are recorded", got, n)
					}
				}
			})
		})
	}
}

func TestMemberWhoseHandlerCameBackNeedsNoStartAnyMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, grouped(failingAt(2)))
		r.wantAll(r.crowd(redelivered(5)...))
		// Five for the group, and two of members that it has not come to.
		if c := r.handler.Counters(); c.SoloStarts != 7 || c.Failed != 1 {
			t.Errorf("counters: %+v", c)
		}
		r.wantStarts(0, 0, 0, 0, 0)
	})
}

func TestDuplicateInAGroupKeepsNoStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := grouped(nil)
		s.config.CacheSize = -1
		r := newRig(t, s)
		r.consume(msg(1))
		r.wantAll(r.crowd(redelivered(3)...))
		r.wantStarts(0, 0, 0)
		if c := r.handler.Counters(); c.DuplicatesByTable != 1 || c.Groups != 1 {
			t.Errorf("counters: %+v", c)
		}
	})
}

func TestStartsThatCannotBeRecordedLetNoSuspectRunAndKeepNobodyElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		down.Store(true)
		r := newRig(t, grouped(func(_ context.Context, w *work, _ *message.Message) error {
			if down.Load() && (w.Event().ID == number(0) || w.Event().ID == number(2)) {
				t.Error("a message was begun without its start")
			}
			return nil
		}))
		r.store.setFault(func(step string) error {
			if step == "started" && down.Load() {
				return errOutage
			}
			return nil
		})
		time.AfterFunc(time.Second, func() { down.Store(false) })
		r.wantAll(r.crowd(again(msg(0)), msg(1), again(msg(2)), msg(3)))
		for n := range 4 {
			r.wantDone(number(n), 1)
		}
		r.wantGroups(1, 0)
		if c := r.handler.Counters(); c.Failed != 0 {
			t.Errorf("counters: %+v", c)
		}
	})
}

func TestLaterMembersOfAKeyWaitForOneThatHasLeftTheirGroup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := grouped(failingAt(1))
		s.handler.Order.ByKey = true
		r := newRig(t, s)
		r.begun(1)
		r.wantAll(r.crowd(again(keyed(0, "a")), again(keyed(1, "b")), again(keyed(2, "b")), keyed(3, "b"), again(keyed(4, "a"))))
		r.wantStates(inbox.Retrying, inbox.Following, inbox.Following)
		if p := r.store.parked[0]; p.ID != number(1) {
			t.Errorf("the first one parked is %v", p.ID)
		}
		r.wantDone(number(0), 1)
		r.wantDone(number(4), 1)
		r.wantStarts(0, 0, 0, 0, 0)
	})
}

func TestReturnedMemberThatHasLeftItsGroupReturnsThoseBehindIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := grouped(failingAt(1))
		s.handler.Order.ByKey = true
		s.config.MaxHold = time.Second
		r := newRig(t, s)
		r.begun(1)
		r.store.fail("failed", errOutage)
		errs := r.crowd(again(keyed(0, "a")), again(keyed(1, "b")), again(keyed(2, "b")))
		if errs[0] != nil || errs[1] == nil || errs[2] == nil {
			t.Errorf("Consume: %v", errors.Join(errs...))
		}
		r.wantDone(number(0), 1)
		r.wantDone(number(2), 0)
	})
}

// A group that dies leaves a start on each of its members. Each of them is alone after that, and
// the one that kills is dead in the end.
func TestGroupThatDiesConvictsItsKillerOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		runs := 0 // of the killer
		for process := 1; len(store.states()) == 0; process++ {
			if process > 6 {
				t.Fatalf("the killer is not dead, after %d runs", runs)
			}
			s := grouped(func(_ context.Context, w *work, _ *message.Message) error {
				if w.Event().ID == number(2) {
					runs++
					store.setFault(func(string) error { return errOutage }) // the process is gone: nothing reaches the database any more
					return errHandler
				}
				return nil
			})
			s.store, s.config.MaxHold, s.config.CacheSize = store, time.Nanosecond, -1
			r := newRig(t, s)
			store.setFault(nil)
			r.crowd(redelivered(5)...)
		}
		if runs != 4 { // in the group, and MaxSoloStarts times alone
			t.Errorf("the killer has run %d times", runs)
		}
		store.setFault(nil)
		r := newRig(t, setup{store: store})
		for _, n := range []int{0, 1, 3, 4} {
			r.consume(again(msg(n)))
			r.wantDone(number(n), 1)
		}
		r.wantStates(inbox.Dead)
	})
}
