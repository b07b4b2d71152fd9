package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
)

// Effects tests that a store keeps the contract of [inbox.EffectStore]. The fixture's store must
// implement it. open returns a new, empty inbox for each test. The tests run in parallel.
func Effects[TX any](t *testing.T, open func(t *testing.T) InboxFixture[TX]) {
	t.Helper()
	for fact, test := range map[string]func(*ledger[TX]){
		"intent is recorded with its transaction or not at all":                 (*ledger[TX]).recorded,
		"equal intent is a no-op and another one a conflict":                    (*ledger[TX]).conflicts,
		"effect comes as it was prepared, and once":                             (*ledger[TX]).takenOnce,
		"takers at the same time share the effects":                             (*ledger[TX]).shared,
		"effects of a key come one after another, in order":                     (*ledger[TX]).ordered,
		"finished effect is done with its result":                               (*ledger[TX]).finished,
		"failure of what follows leaves nothing of it":                          (*ledger[TX]).finishFails,
		"lost process makes an effect uncertain, or has it tried again":         (*ledger[TX]).lost,
		"lost process does not make a known result uncertain":                   (*ledger[TX]).lostAnswer,
		"earlier run changes nothing":                                           (*ledger[TX]).fenced,
		"result that comes late settles what is uncertain":                      (*ledger[TX]).late,
		"operator redrives, resolves and discards, and what is in flight loses": (*ledger[TX]).operators,
		"what ended long ago is forgotten, and nothing else":                    (*ledger[TX]).forgotten,
		"filter selects effects":                                                (*ledger[TX]).filters,
	} {
		t.Run(fact, func(t *testing.T) {
			t.Parallel()
			i := &inboxRig[TX]{rig: rig{t}, InboxFixture: open(t)}
			i.consumer = i.register("service/handler")
			store, ok := i.Store.(inbox.EffectStore[TX])
			if !ok {
				t.Fatal("the store is no inbox.EffectStore")
			}
			test(&ledger[TX]{inboxRig: i, effects: store})
		})
	}
}

// ledger is a test with its ledger.
type ledger[TX any] struct {
	*inboxRig[TX]
	effects inbox.EffectStore[TX]
}

const lease = time.Hour

func (l *ledger[TX]) intent(m *inbox.Message) inbox.EffectIntent {
	return inbox.EffectIntent{
		Consumer: l.consumer, ID: m.ID, Key: uuid.NewSHA1(m.ID, nil), Topic: m.Topic, OrderKey: m.Key, Ordered: m.Key != "",
		Metadata: m.Metadata, Intent: []byte("intent\x00"),
	}
}

// prepare applies messages with a handler that records an intent.
func (l *ledger[TX]) prepare(messages ...*inbox.Message) {
	l.Helper()
	for _, m := range messages {
		_, err := l.Store.Apply(l.ctx(), l.claim(m), func(ctx context.Context, tx TX) error {
			return l.effects.PrepareEffect(ctx, tx, l.intent(m))
		})
		l.ok(err)
	}
}

func (l *ledger[TX]) takeWith(t inbox.EffectTake) []inbox.EffectRun {
	l.Helper()
	t.Consumer = l.consumer
	if t.Limit == 0 {
		t.Limit = 100
	}
	if t.MaxAttempts == 0 {
		t.MaxAttempts = 10
	}
	runs, _, err := l.effects.TakeEffects(l.ctx(), t)
	l.ok(err)
	return runs
}

// take takes due effects, and checks the messages of the effects.
func (l *ledger[TX]) take(want ...*inbox.Message) []inbox.EffectRun {
	l.Helper()
	runs := l.takeWith(inbox.EffectTake{Lease: lease})
	if len(runs) != len(want) {
		l.Fatalf("%d effects are taken, want %d: %+v", len(runs), len(want), runs)
	}
	for n, m := range want {
		if runs[n].ID != m.ID {
			l.Fatalf("effect %d is of %s, want %s", n, runs[n].ID, m.ID)
		}
	}
	return runs
}

func (l *ledger[TX]) one(m *inbox.Message) inbox.Effect {
	l.Helper()
	list, err := l.effects.ListEffects(l.ctx(), inbox.EffectFilter{IDs: messageIDs(m)})
	l.ok(err)
	if len(list) != 1 {
		l.Fatalf("%d effects are listed", len(list))
	}
	return list[0]
}

func (l *ledger[TX]) want(m *inbox.Message, state inbox.EffectState, uncertain bool, attempts int, result string) {
	l.Helper()
	if e := l.one(m); e.State != state || e.Uncertain != uncertain || e.Attempts != attempts || string(e.Result) != result {
		l.Errorf("effect is %+v; want %s, uncertain %v, %d attempts, result %q", e, state, uncertain, attempts, result)
	}
}

func (l *ledger[TX]) settle(r *inbox.EffectRun, o inbox.EffectOutcome) bool {
	l.Helper()
	ok, err := l.effects.SettleEffect(l.ctx(), r, o)
	l.ok(err)
	return ok
}

func (l *ledger[TX]) finish(r *inbox.EffectRun, result string) bool {
	l.Helper()
	ok, err := l.effects.FinishEffect(l.ctx(), l.terms(), r, []byte(result), func(ctx context.Context, tx TX) error {
		return l.Effect(ctx, tx, "followed "+r.ID.String())
	})
	l.ok(err)
	return ok
}

func (l *ledger[TX]) terms() inbox.Claim {
	return inbox.Claim{Consumer: l.consumer, IdleTimeout: patience, LockTimeout: patience}
}

func (l *ledger[TX]) wantFollowed(want ...*inbox.Message) {
	l.Helper()
	names := make([]string, len(want))
	for n, m := range want {
		names[n] = "followed " + m.ID.String()
	}
	got, err := l.Effects(l.ctx())
	l.ok(err)
	if !slices.Equal(got, names) && len(got)+len(names) > 0 {
		l.Errorf("effects of Finish are %q, want %q", got, names)
	}
}

func (l *ledger[TX]) recorded() {
	m := message("")
	_, err := l.Store.Apply(l.ctx(), l.claim(m), func(ctx context.Context, tx TX) error {
		return errors.Join(l.effects.PrepareEffect(ctx, tx, l.intent(m)), errHandler)
	})
	if !errors.Is(err, errHandler) {
		l.Fatal(err)
	}
	l.take()
	l.prepare(m)
	l.want(m, inbox.EffectPending, false, 0, "")
}

func (l *ledger[TX]) conflicts() {
	m, other := message(""), message("")
	l.prepare(m)
	again := func(change func(*inbox.EffectIntent)) error {
		_, err := l.Store.Apply(l.ctx(), l.claim(other), func(ctx context.Context, tx TX) error {
			e := l.intent(m)
			change(&e)
			return errors.Join(l.effects.PrepareEffect(ctx, tx, e), errHandler)
		})
		return err
	}
	if err := again(func(*inbox.EffectIntent) {}); errors.Is(err, inbox.ErrEffectConflict) {
		l.Error(err)
	}
	if err := again(func(e *inbox.EffectIntent) { e.Intent = []byte("other") }); !errors.Is(err, inbox.ErrEffectConflict) {
		l.Errorf("preparing another intent gives %v", err)
	}
}

func (l *ledger[TX]) takenOnce() {
	m := message("")
	m.Metadata["raw"] = "\xff\x00"
	l.prepare(m)
	r := l.take(m)[0]
	e := l.intent(m)
	if r.Key != e.Key || r.Topic != m.Topic || r.OrderKey != "" || string(r.Intent) != "intent\x00" || r.Result != nil ||
		r.Metadata["raw"] != "\xff\x00" || r.Attempts != 1 || r.State != inbox.EffectDoing || r.Consumer != "service/handler" ||
		time.Since(r.PreparedAt).Abs() > time.Minute || time.Until(r.LeaseUntil) < lease-time.Minute {
		l.Errorf("run is %+v", r)
	}
	l.take()
	l.settle(&r, inbox.EffectOutcome{State: inbox.EffectPending, Attempts: 1, In: time.Hour, Noted: "effect_failed", LastError: "no"})
	l.want(m, inbox.EffectPending, false, 1, "")
	_, next, err := l.effects.TakeEffects(l.ctx(), inbox.EffectTake{Consumer: l.consumer, Limit: 1, Lease: lease, MaxAttempts: 9})
	if err != nil || next < 50*time.Minute || next > time.Hour {
		l.Errorf("the next effect is due in %v, %v", next, err)
	}
	l.wantHistory(m, "effect_failed", "no")
}

func (l *ledger[TX]) shared() {
	const n = 30
	for range n {
		l.prepare(message(""))
	}
	var mu sync.Mutex
	seen := make(map[int64]int)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range n {
				runs, _, err := l.effects.TakeEffects(l.ctx(), inbox.EffectTake{Consumer: l.consumer, Limit: 3, Lease: lease, MaxAttempts: 9})
				if err != nil {
					l.Error(err)
					return
				}
				mu.Lock()
				for _, r := range runs {
					seen[r.Seq]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for seq, times := range seen {
		if times != 1 {
			l.Errorf("effect %d was taken %d times", seq, times)
		}
	}
	if len(seen) != n {
		l.Errorf("%d effects were taken", len(seen))
	}
}

func (l *ledger[TX]) ordered() {
	a1, b1, a2, a3 := message("a"), message("b"), message("a"), message("a")
	l.prepare(a1, b1, a2, a3)
	runs := l.take(a1, b1)
	l.settle(&runs[0], inbox.EffectOutcome{State: inbox.EffectPending, Attempts: 1, In: time.Hour})
	l.take()
	ids, err := l.effects.ChangeEffects(l.ctx(), inbox.EffectFilter{IDs: messageIDs(a1)}, inbox.EffectChange{State: inbox.EffectDiscarded, Reason: "r"})
	if err != nil || len(ids) != 1 {
		l.Fatal(ids, err)
	}
	r := l.take(a2)[0]
	l.settle(&r, inbox.EffectOutcome{State: inbox.EffectUncertain, Uncertain: true, Attempts: 1})
	l.take()
	_, err = l.effects.ChangeEffects(l.ctx(), inbox.EffectFilter{IDs: messageIDs(a2)}, inbox.EffectChange{State: inbox.EffectPending})
	l.ok(err)
	r = l.take(a2)[0]
	l.settle(&r, inbox.EffectOutcome{State: inbox.EffectDead, Attempts: 1})
	l.take(a3)
}

func (l *ledger[TX]) finished() {
	m := message("")
	l.prepare(m)
	r := l.take(m)[0]
	if !l.finish(&r, "result") {
		l.Error("the effect was not finished")
	}
	if l.finish(&r, "again") || l.settle(&r, inbox.EffectOutcome{State: inbox.EffectPending}) {
		l.Error("the effect was finished twice")
	}
	l.wantFollowed(m)
	l.want(m, inbox.EffectDone, false, 1, "result")
	l.take()
}

func (l *ledger[TX]) finishFails() {
	m := message("")
	l.prepare(m)
	r := l.take(m)[0]
	ok, err := l.effects.FinishEffect(l.ctx(), l.terms(), &r, []byte("result"), func(ctx context.Context, tx TX) error {
		return errors.Join(l.Effect(ctx, tx, "half"), errHandler)
	})
	if ok || !errors.Is(err, errHandler) {
		l.Fatal(ok, err)
	}
	l.wantFollowed()
	l.settle(&r, inbox.EffectOutcome{State: inbox.EffectAnswered, Attempts: 1, Result: []byte("result")})
	l.want(m, inbox.EffectAnswered, false, 1, "result")
	r = l.take(m)[0]
	if string(r.Result) != "result" || !l.finish(&r, "result") {
		l.Errorf("run is %+v", r)
	}
	l.wantFollowed(m)
}

// expire takes the effect of m under a lease that has ended.
func (l *ledger[TX]) expire(m *inbox.Message) inbox.EffectRun {
	l.Helper()
	runs := l.takeWith(inbox.EffectTake{Lease: -time.Second})
	if len(runs) != 1 || runs[0].ID != m.ID {
		l.Fatalf("taken up: %+v", runs)
	}
	return runs[0]
}

func (l *ledger[TX]) lost() {
	m := message("")
	l.prepare(m)
	l.expire(m)
	l.want(m, inbox.EffectUncertain, false, 1, "") // before a call has ended the lease
	if runs := l.takeWith(inbox.EffectTake{Lease: -time.Second, Again: true}); len(runs) != 1 || !runs[0].Uncertain || runs[0].Attempts != 2 {
		l.Fatalf("taken up: %+v", runs)
	}
	if runs := l.takeWith(inbox.EffectTake{Lease: lease, Again: true, MaxAttempts: 2}); len(runs) != 0 {
		l.Errorf("taken after the last attempt: %+v", runs)
	}
	l.want(m, inbox.EffectUncertain, true, 2, "")
	other := message("")
	l.prepare(other)
	l.expire(other)
	l.take()
	l.want(other, inbox.EffectUncertain, true, 1, "")
	st, err := l.effects.EffectStats(l.ctx(), l.consumer)
	if err != nil || st.Uncertain != 2 || st.Pending+st.Doing+st.Answered+st.Dead != 0 || st.Oldest <= 0 {
		l.Errorf("stats are %+v, %v", st, err)
	}
	l.wantHistory(other, "effect_uncertain", inbox.ErrLeaseEnded.Error())
}

func (l *ledger[TX]) lostAnswer() {
	m := message("")
	l.prepare(m)
	r := l.take(m)[0]
	l.settle(&r, inbox.EffectOutcome{State: inbox.EffectAnswered, Attempts: 1, Result: []byte("result")})
	l.expire(m)
	l.want(m, inbox.EffectDoing, false, 2, "result")
	r = l.take(m)[0]
	if r.Uncertain || string(r.Result) != "result" {
		l.Errorf("run is %+v", r)
	}
}

func (l *ledger[TX]) fenced() {
	m := message("")
	l.prepare(m)
	zombie := l.expire(m)
	runs := l.takeWith(inbox.EffectTake{Lease: lease, Again: true})
	if len(runs) != 1 {
		l.Fatalf("taken up: %+v", runs)
	}
	if l.finish(&zombie, "zombie's") || l.settle(&zombie, inbox.EffectOutcome{State: inbox.EffectDead}) {
		l.Error("an earlier run changed something")
	}
	l.wantFollowed()
	l.want(m, inbox.EffectDoing, true, 2, "")
	if !l.finish(&runs[0], "result") {
		l.Error("the later run could not finish")
	}
}

func (l *ledger[TX]) late() {
	m := message("")
	l.prepare(m)
	r := l.expire(m)
	l.take()
	l.want(m, inbox.EffectUncertain, true, 1, "")
	if !l.finish(&r, "result") {
		l.Error("the effect was not finished")
	}
	l.want(m, inbox.EffectDone, false, 1, "result")
}

func (l *ledger[TX]) change(f inbox.EffectFilter, c inbox.EffectChange, want ...*inbox.Message) {
	l.Helper()
	ids, err := l.effects.ChangeEffects(l.ctx(), f, c)
	l.ok(err)
	l.expectMessages("changed", ids, want)
}

func (l *ledger[TX]) operators() {
	m := message("")
	l.prepare(m)
	of := inbox.EffectFilter{IDs: messageIDs(m)}
	redrive := inbox.EffectChange{State: inbox.EffectPending, Reason: "it was not"}
	resolve := inbox.EffectChange{State: inbox.EffectAnswered, Result: []byte("told"), Reason: "it was"}
	discard := inbox.EffectChange{State: inbox.EffectDiscarded, Reason: "because"}
	l.change(of, redrive)
	l.change(of, resolve)
	r := l.expire(m) // listed as uncertain
	l.change(of, redrive, m)
	if l.finish(&r, "zombie's") {
		l.Error("a run in flight has changed the effect")
	}
	l.want(m, inbox.EffectPending, false, 0, "")
	r = l.take(m)[0]
	l.change(of, discard) // the effect is doing
	l.settle(&r, inbox.EffectOutcome{State: inbox.EffectUncertain, Uncertain: true, Attempts: 1})
	l.change(inbox.EffectFilter{Keys: []uuid.UUID{r.Key}}, resolve, m)
	l.want(m, inbox.EffectAnswered, true, 0, "told")
	if e := l.one(m); e.Reason != "" { // Reason is for discarded effects only
		l.Errorf("effect that was resolved has the reason %q", e.Reason)
	}
	r = l.take(m)[0]
	l.settle(&r, inbox.EffectOutcome{State: inbox.EffectDead, Attempts: 1})
	l.change(of, resolve) // the result is known
	l.change(of, redrive, m)
	l.want(m, inbox.EffectAnswered, false, 0, "told")
	l.change(of, discard, m)
	l.change(of, redrive)
	if e := l.one(m); e.State != inbox.EffectDiscarded || e.Reason != "because" || e.EndedAt.IsZero() {
		l.Errorf("effect is %+v", e)
	}
	l.wantHistory(m, "effect_redriven", "it was not", "effect_resolved", "it was", "effect_redriven", "it was not", "effect_discarded", "because")
}

func (l *ledger[TX]) forgotten() {
	var all []*inbox.Message
	for range 4 {
		all = append(all, message(""))
	}
	l.prepare(all...)
	runs := l.take(all...)
	for n := range 3 {
		l.finish(&runs[n], "result")
	}
	forget := func(age time.Duration, limit, want int) {
		n, err := l.effects.ForgetEffects(l.ctx(), l.consumer, age, limit)
		if err != nil || n != want {
			l.Errorf("%d effects are forgotten, %v; want %d", n, err, want)
		}
	}
	forget(time.Hour, 10, 0)
	forget(-time.Hour, 2, 2)
	forget(-time.Hour, 2, 1)
	l.want(all[3], inbox.EffectDoing, false, 1, "")
}

func (l *ledger[TX]) filters() {
	a, b := message(""), message("")
	l.prepare(a, b)
	l.take(a, b)
	for name, f := range map[string]inbox.EffectFilter{
		"consumer": {Consumer: "service/handler"}, "states": {States: []inbox.EffectState{inbox.EffectDoing, inbox.EffectDone}},
		"since": {Since: time.Now().Add(-time.Hour)}, "until": {Until: time.Now().Add(time.Hour)}, "all": {},
	} {
		if list, err := l.effects.ListEffects(l.ctx(), f); err != nil || len(list) != 2 || list[0].ID != a.ID {
			l.Errorf("%s: %+v, %v", name, list, err)
		}
	}
	first := l.one(a)
	for name, f := range map[string]inbox.EffectFilter{
		"consumer": {Consumer: "other"}, "states": {States: []inbox.EffectState{inbox.EffectUncertain}}, "ID": {IDs: []uuid.UUID{uuid.New()}},
		"key": {Keys: []uuid.UUID{a.ID}}, "since": {Since: time.Now().Add(time.Hour)}, "until": {Until: time.Now().Add(-time.Hour)},
	} {
		if list, err := l.effects.ListEffects(l.ctx(), f); err != nil || len(list) != 0 {
			l.Errorf("%s: %+v, %v", name, list, err)
		}
	}
	for name, f := range map[string]inbox.EffectFilter{"after": {After: first.Seq}, "key": {Keys: []uuid.UUID{l.intent(b).Key}}} {
		if list, err := l.effects.ListEffects(l.ctx(), f); err != nil || len(list) != 1 || list[0].ID != b.ID {
			l.Errorf("%s: %+v, %v", name, list, err)
		}
	}
	if list, err := l.effects.ListEffects(l.ctx(), inbox.EffectFilter{Limit: 1}); err != nil || len(list) != 1 {
		l.Error(fmt.Sprint(list), err)
	}
}
