package core

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/producer/relay/internal/memstore"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

func TestAFailedKeyIsSentFromItsParkedEventsInOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var want []int64
	for range 40 {
		want = append(want, r.store.Add("topic", "key"))
	}
	for i := range 10 {
		r.store.Add("topic", fmt.Sprint("other", i))
	}
	r.outcomes(map[int64]transport.Outcome{want[3]: transport.Refused})
	rel := r.start(Options{MaxPerKey: 10, Backoff: Backoff{Initial: 2 * time.Second}})
	r.run(50 * time.Millisecond)
	if queued, live := r.store.Left(); queued != 0 || live != 37 {
		t.Errorf("%d queued, %d parked", queued, live)
	}
	for range 5 { // these come behind
		want = append(want, r.store.Add("topic", "key"))
	}
	rel.core.Wake(r.now, wakeup.All)
	r.broker = confirmAll
	r.run(time.Minute)
	r.drained()
	var got []int64
	for _, s := range r.sends {
		if s.key == "key" && s.outcome == transport.Confirmed {
			got = append(got, s.seq)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("sent %v, want %v", got, want)
	}
	if sent := r.store.Calls["Sent"]; sent > 20 {
		t.Errorf("%d statements to record what was sent", sent)
	}
}

func TestAnEventThatAClockAheadParkedDoesNotWaitForThatTime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	seq := r.store.Add("topic", "key")
	r.outcomes(map[int64]transport.Outcome{seq: transport.Refused})
	rel := r.start(Options{Backoff: Backoff{Initial: time.Hour}})
	r.run(50 * time.Millisecond)
	parked := r.store.Parked[seq]
	if parked == nil {
		t.Fatal("it is not parked")
	}
	parked.Due = r.now + 10*time.Hour
	r.broker = confirmAll
	rel.core.due.soon(r.now)
	r.run(time.Minute)
	r.drained()
}

func TestAFreshEventWaitsUntilTheLastParkedOneOfItsKeyHasGone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first := r.store.Add("topic", "key")
	second := r.store.Add("topic", "key")
	other := r.store.Add("topic", "other")
	r.outcomes(map[int64]transport.Outcome{first: transport.Refused})
	rel := r.start(Options{Backoff: Backoff{Initial: 2 * time.Second}})
	r.run(20 * time.Millisecond)
	r.broker = confirmAll
	rel.hold = func(cl *Call) bool { return cl.Op() == statement.OpSent }
	r.run(5 * time.Second)
	fresh := r.store.Add("topic", "key")
	rel.core.Wake(r.now, wakeup.All)
	r.run(time.Second)
	if got, want := r.sent(transport.Confirmed), []int64{other, first}; !slices.Equal(got, want) {
		t.Errorf("sent %v, want %v", got, want)
	}
	rel.free()
	r.run(time.Second)
	if got, want := r.sent(transport.Confirmed), []int64{other, first, second, fresh}; !slices.Equal(got, want) {
		t.Errorf("sent %v, want %v", got, want)
	}
	r.drained()
}

func TestAFailureIsParkedAfterTheMarksOfItsPredecessors(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first, second := r.store.Add("topic", "key"), r.store.Add("topic", "key")
	for i := range 10 {
		r.store.Add("topic", fmt.Sprint("other", i))
	}
	r.outcomes(map[int64]transport.Outcome{second: transport.Refused})
	rel := r.start(Options{})
	rel.hold = func(cl *Call) bool { return cl.Op() == statement.OpMark }
	r.run(time.Second)
	if slices.Contains(rel.calls, statement.OpPark) {
		t.Error("parked with a predecessor in the queue")
	}
	rel.free()
	r.run(10 * time.Millisecond)
	if r.store.State(second) != outbox.Retrying || r.store.Receipts[first] != 1 {
		t.Error("not parked")
	}
}

func TestAnInvalidEventIsDeadAtOnce(t *testing.T) {
	t.Parallel()
	for _, hold := range []bool{false, true} {
		r := newRig(t)
		bad, next := r.store.Add("topic", "key"), r.store.Add("topic", "key")
		r.outcomes(map[int64]transport.Outcome{bad: transport.Invalid})
		rel := r.start(Options{HoldDeadKeys: hold})
		r.run(time.Minute)
		if r.store.State(bad) != outbox.Dead || len(r.store.Attempts(bad)) != 1 || rel.noted("event is dead") != 1 {
			t.Errorf("hold %v: state %q", hold, r.store.State(bad))
		}
		if went := slices.Contains(r.sent(transport.Confirmed), next); went == hold {
			t.Errorf("hold %v: the next event of the key went: %v", hold, went)
		}
	}
}

func TestADeadHeadHoldsItsKeyUntilAnOperatorActs(t *testing.T) {
	t.Parallel()
	for _, redrive := range []bool{true, false} {
		r := newRig(t)
		bad := r.store.Add("topic", "key")
		next := r.store.Add("topic", "key")
		outcomes := map[int64]transport.Outcome{bad: transport.Refused}
		r.outcomes(outcomes)
		r.start(Options{HoldDeadKeys: true, MaxAttempts: 2})
		r.run(time.Minute)
		r.kill(r.relays[0])
		rel := r.start(Options{HoldDeadKeys: true, MaxAttempts: 2}) // holds it too
		r.run(time.Minute)
		last := r.store.Add("topic", "key")
		rel.core.Wake(r.now, wakeup.All)
		r.run(time.Minute)
		if got := r.sent(transport.Confirmed); len(got) != 0 {
			t.Fatalf("sent %v past a dead event", got)
		}
		r.broker = confirmAll
		want := []int64{next, last}
		if redrive {
			want = []int64{bad, next, last}
			r.store.Redrive(bad)
		} else {
			r.store.Discard(bad)
		}
		r.run(time.Minute)
		r.drained()
		if got := r.sent(transport.Confirmed); !slices.Equal(got, want) {
			t.Errorf("redrive %v: sent %v, want %v", redrive, got, want)
		}
	}
}

func TestARedrivenEventIsSentAndTheRewindCleared(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bad := r.store.Add("topic", "key")
	r.outcomes(map[int64]transport.Outcome{bad: transport.Refused})
	r.start(Options{MaxAttempts: 1})
	r.run(time.Second)
	r.broker = confirmAll
	if !r.store.Redrive(bad) {
		t.Fatal("not dead")
	}
	r.run(5 * time.Second) // a third of the lease, and a moment
	r.drained()
	if got := r.sent(transport.Confirmed); !slices.Equal(got, []int64{bad}) {
		t.Errorf("sent %v", got)
	}
	if ticket := r.store.Shards[r.store.Log[bad].Shard].Ticket; ticket != 0 {
		t.Error("the rewind was not cleared")
	}
}

func TestARewindOfTwoAnswersToTheSecond(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := r.store.Add("topic", "key"), r.store.Add("topic", "key")
	rel := r.start(Options{})
	r.run(time.Second)
	r.store.Replay(b)
	rel.hold = func(cl *Call) bool { return cl.Op() == statement.OpHeal }
	r.run(4 * time.Second)
	r.store.Replay(a) // while the first rewind is under way
	r.run(4 * time.Second)
	rel.free()
	r.run(10 * time.Second)
	r.drained()
	if r.store.Receipts[a] != 2 || r.store.Receipts[b] != 2 {
		t.Errorf("delivered %d and %d times", r.store.Receipts[a], r.store.Receipts[b])
	}
	if ticket := r.store.Shards[r.store.Log[a].Shard].Ticket; ticket != 0 {
		t.Error("the rewind was not cleared")
	}
}

func TestWhatIsMarkedDuringAReadIsNotSentAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{})
	r.run(time.Second)
	rel.mute = func(rigSend) bool { return true }
	r.store.Add("topic", "key")
	rel.core.Wake(r.now, wakeup.All)
	r.run(time.Second)
	rel.delay = func(cl *Call) bool { return cl.Op() == statement.OpFetch }
	sh := rel.core.shards[r.store.Log[1].Shard]
	sh.rewind(0) // as after a rewind: the next read brings it
	rel.core.Wake(r.now, wakeup.All)
	r.run(time.Second)
	muted := rel.muted
	rel.muted, rel.mute = nil, nil
	for _, s := range muted {
		rel.answer(s)
	}
	r.run(time.Second) // marked
	if queued, _ := r.store.Left(); queued != 0 || len(rel.delayed) == 0 {
		t.Fatal("no read was under way")
	}
	rel.free()
	r.run(time.Second)
	if got := len(r.sends); got != 1 {
		t.Errorf("%d sends", got)
	}
	r.drained()
}

func TestEventsWithoutAKeyAreRetriedAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bad := r.store.Add("topic", "")
	var others []int64
	for range 10 {
		others = append(others, r.store.Add("topic", ""))
	}
	r.outcomes(map[int64]transport.Outcome{bad: transport.Refused})
	r.start(Options{MaxAttempts: 3})
	r.run(30 * time.Millisecond)
	if got := r.sent(transport.Confirmed); len(got) != len(others) || r.store.State(bad) != outbox.Retrying {
		t.Errorf("sent %v, state %q", got, r.store.State(bad))
	}
	r.broker = confirmAll
	r.run(10 * time.Second)
	r.drained()
	if !slices.Contains(r.sent(transport.Confirmed), bad) {
		t.Error("not retried")
	}
}

func TestAFollowerWithoutAHeadBecomesTheHead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first, second := r.store.Add("topic", "key"), r.store.Add("topic", "key")
	for _, seq := range []int64{first, second} { // as a zombie's park without a fence would leave it
		shard := r.store.Log[seq].Shard
		r.store.Take(shard, seq, 0)
		r.store.Parked[seq] = &memstore.Parked{Shard: shard, Key: "key", State: outbox.Following}
	}
	third := r.store.Add("topic", "key")
	r.start(Options{})
	r.run(5 * time.Second)
	r.drained()
	if got := r.sent(); !slices.Equal(got, []int64{first, second, third}) {
		t.Errorf("sent %v", got)
	}
}

func TestAQueueRowWithoutAnEventIsLoudAndDead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	seq := r.store.Add("topic", "key")
	after := r.store.Add("topic", "key")
	delete(r.store.Log, seq)
	rel := r.start(Options{})
	r.run(time.Second)
	if r.store.State(seq) != outbox.Dead || rel.noted("queue row has no event in the log") != 1 {
		t.Errorf("state %q", r.store.State(seq))
	}
	if got := r.sent(); !slices.Equal(got, []int64{after}) {
		t.Errorf("sent %v", got)
	}
}

func TestAHotKeyDoesNotStarveItsNeighboursAndKeepsItsOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var hot []int64
	for range 3000 {
		hot = append(hot, r.store.Add("topic", "hot"))
	}
	neighbour := r.store.Add("topic", sameShard("hot"))
	rel := r.start(Options{Window: 100, MaxPerKey: 20})
	rel.mute = func(s rigSend) bool { return s.key == "hot" }
	r.run(5 * time.Second)
	if got := r.sent(); !slices.Equal(got, []int64{neighbour}) {
		t.Fatalf("sent %v", got)
	}
	if n := rel.core.keys.buffered; n > 20 {
		t.Errorf("%d events in memory", n)
	}
	rel.free()
	r.run(10 * time.Second)
	r.drained()
	if got := r.sent()[1:]; !slices.Equal(got, hot) {
		t.Error("the hot key's order is broken")
	}
}

func TestStatementsAreRepeatedUntilTheyWork(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bad := r.store.Add("topic", "bad")
	r.store.Add("topic", "bad")
	for i := range 50 {
		r.store.Add("topic", fmt.Sprint("key", i%7))
	}
	r.outcomes(map[int64]transport.Outcome{bad: transport.Refused})
	rnd := rand.New(rand.NewPCG(1, 2)) // a fixed pattern could hit one statement each time
	r.store.Fail = func(string) error {
		if rnd.IntN(3) != 0 {
			return errors.New("connection refused")
		}
		return nil
	}
	rel := r.start(Options{MaxAttempts: 2})
	r.run(3 * time.Minute)
	r.store.Fail = nil
	r.drained()
	if rel.noted("statement failed") == 0 || len(r.store.Attempts(bad)) != 2 {
		t.Errorf("%d attempts counted", len(r.store.Attempts(bad)))
	}
	if got := len(r.sent(transport.Confirmed)); got != 51 {
		t.Errorf("%d deliveries of 51", got)
	}
}

func TestAFailingDatabaseIsAskedAtGrowingIntervals(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{})
	r.store.Add("topic", "key")
	r.run(time.Second)
	before := len(rel.calls)
	r.store.Fail = func(string) error { return errors.New("connection refused") }
	r.run(5 * time.Minute)
	// Leases are asked for ten times in a lease's time, the rest less and less often.
	if calls := len(rel.calls) - before; calls < 100 || calls > 1000 {
		t.Errorf("%d statements in five minutes", calls)
	}
	r.store.Fail = nil
	r.run(20 * time.Second)
	r.drained()
}

func TestAnOutcomeThatIsReportedTwiceCountsOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.store.Add("topic", "key")
	rel := r.start(Options{})
	r.run(time.Second)
	s := r.sends[0]
	second := r.store.Add("topic", "key")
	rel.mute = func(rigSend) bool { return true }
	rel.core.Wake(r.now, wakeup.All)
	r.run(time.Second) // the entry is used again
	rel.core.Outcome(r.now, SendResult{Entry: s.entry, Gen: s.gen, Result: transport.Result{Outcome: transport.Confirmed}})
	r.run(time.Second)
	if rel.noted("publisher reported the outcome of a message twice") != 1 || rel.core.dispatch.inflight != 1 {
		t.Errorf("%d in flight", rel.core.dispatch.inflight)
	}
	rel.free()
	r.run(time.Second)
	r.drained()
	if r.store.Receipts[second] != 1 {
		t.Error("not delivered")
	}
}

func TestStoredErrorsAreShortAndValid(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "short", strings.Repeat("x", 2000), strings.Repeat("é", 1000), "a\x00b\xff", strings.Repeat("\xff", 3000)} {
		got := storedError(errors.New(text))
		if len(got) > 1<<10 || !utf8.ValidString(got) || strings.Contains(got, "\x00") {
			t.Errorf("%.20q became %.40q of %d bytes", text, got, len(got))
		}
	}
	if storedError(nil) != "" {
		t.Error("no error has a text")
	}
}

func TestTheBackoffDoublesUpToItsBound(t *testing.T) {
	t.Parallel()
	b := Backoff{Initial: time.Second, Max: 5 * time.Minute}
	for attempts, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 5: 16 * time.Second, 9: 256 * time.Second, 10: 5 * time.Minute, 100: 5 * time.Minute} {
		if got := b.Bound(attempts); got != want {
			t.Errorf("after %d attempts: %v, want %v", attempts, got, want)
		}
	}
}

func TestNotesNameTheEventAndNeverItsPayload(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bad := r.store.Add("topic", "key")
	r.outcomes(map[int64]transport.Outcome{bad: transport.Refused})
	rel := r.start(Options{MaxAttempts: 2})
	r.run(time.Minute)
	for _, msg := range []string{"event not taken by the transport", "attempt failed", "event is dead"} {
		if rel.attr(msg, "dispatch_id").String() != r.store.ID(bad).String() || rel.attr(msg, "correlation_id").String() != "c" {
			t.Errorf("%q does not name the event", msg)
		}
	}
	for _, n := range rel.notes {
		if text := fmt.Sprint(n.Attrs); strings.Contains(text, "payload") {
			t.Errorf("a payload in %q", text)
		}
	}
}

func TestTheFakeHonoursTheFence(t *testing.T) {
	t.Parallel()
	f := memstore.New(func() time.Duration { return 0 })
	f.Add("topic", "key")
	l := outbox.Lease{Shard: f.Log[1].Shard, Epoch: 1}
	if lost, err := f.Mark(context.Background(), "nobody", []outbox.Mark{{Lease: l, Seq: 1}}); err != nil || len(lost) != 1 {
		t.Errorf("lost %v, %v", lost, err)
	}
}

func TestEventsThatAreMovedWhenTheirHeadHasGoneAreHealed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first, second := r.store.Add("topic", "key"), r.store.Add("topic", "key")
	for i := range 5 {
		r.store.Add("topic", fmt.Sprint("other", i))
	}
	refused := map[int64]transport.Outcome{first: transport.Refused, second: transport.Refused}
	r.outcomes(refused)
	rel := r.start(Options{MaxAttempts: 2, Backoff: Backoff{Initial: 100 * time.Millisecond}})
	rel.hold = func(cl *Call) bool { return cl.Op() == statement.OpFollow }
	r.run(10 * time.Millisecond)
	delete(refused, first)
	rel.hold = func(cl *Call) bool { return cl.Op() == statement.OpFollow } // the second is not moved yet
	r.run(time.Second)
	rel.free()
	r.run(time.Second)
	r.store.Add("topic", "another") // the route works
	rel.core.Wake(r.now, wakeup.All)
	r.run(time.Minute)
	r.drained()
	if n := len(r.store.Attempts(second)); n != 2 || r.store.State(second) != outbox.Dead {
		t.Errorf("%d attempts recorded, state %q", n, r.store.State(second))
	}
}
