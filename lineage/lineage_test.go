package lineage_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/lineage"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// waits is a goroutine of watermill's router that waits for handlers to stop, for ever if the router is
// closed before it runs.
const waits = "github.com/ThreeDotsLabs/watermill/message.(*Router).watchAllHandlersStopped.func1"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(waits)) }

// world is a database with events and messages in any state. It calls looked, if set, for each
// search.
type world struct {
	events   map[uuid.UUID]outbox.Found
	messages []inbox.Found
	every    bool // every event exists that is looked for
	looked   func(what string)
	searches int
}

func newWorld() *world { return &world{events: make(map[uuid.UUID]outbox.Found)} }

func (w *world) look(what string) {
	w.searches++
	if w.looked != nil {
		w.looked(what)
	}
}

func (w *world) Search(_ context.Context, q outbox.Query) (r outbox.Results, err error) {
	w.look("events")
	for _, id := range q.IDs {
		e, known := w.events[id]
		if w.every && !known {
			e, known = event(id, "topic", outbox.DeliveredState), true
		}
		if known {
			r.Events = append(r.Events, e)
		}
	}
	return r, nil
}

func (w *world) SearchMessages(_ context.Context, q inbox.Query) (r inbox.Results, err error) {
	w.look("messages")
	for _, m := range w.messages {
		if slices.Contains(q.IDs, m.ID) {
			r.Messages = append(r.Messages, m)
		}
	}
	if w.every {
		for _, id := range q.IDs {
			r.Messages = append(r.Messages, got(id, "a/handler", inbox.AppliedState))
		}
	}
	return r, nil
}

func event(id uuid.UUID, topic string, state outbox.State) outbox.Found {
	var e outbox.Found
	e.ID, e.Topic, e.State, e.Why = id, topic, state, "reason of the event"
	return e
}

func got(id uuid.UUID, name string, state inbox.State) inbox.Found {
	var m inbox.Found
	m.ID, m.Consumer, m.State, m.Why = id, name, state, "reason of the message"
	return m
}

// write adds an event.
func (w *world) write(id uuid.UUID, topic string, state outbox.State) uuid.UUID {
	w.events[id] = event(id, topic, state)
	return id
}

// handled adds a message.
func (w *world) handled(id uuid.UUID, name string, state inbox.State) {
	w.messages = append(w.messages, got(id, name, state))
}

func (w *world) lineage(t *testing.T, change func(*lineage.Config)) *lineage.Lineage {
	t.Helper()
	cfg := lineage.Config{
		Outboxes: []lineage.Outbox{{Name: "shop", Events: w}}, Inboxes: []lineage.Inbox{{Name: "shop", Messages: w}},
		Consumers: map[string][]string{"stock/reserve": {"order.*"}, "mail/send": {"order.placed", "stock.#"}},
	}
	if change != nil {
		change(&cfg)
	}
	l, err := lineage.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// shop is an order that was reserved, and about which mails were sent.
func shop() (w *world, order, reserved uuid.UUID) {
	w = newWorld()
	order = w.write(uuid.New(), "order.placed", outbox.DeliveredState)
	w.handled(order, "stock/reserve", inbox.AppliedState)
	w.handled(order, "mail/send", inbox.AppliedState)
	reserved = w.write(idgen.Child("stock/reserve", order, 0), "stock.reserved", outbox.DeliveredState)
	w.handled(reserved, "mail/send", inbox.AppliedState)
	return w, order, reserved
}

func TestTreeHasAllThatFollows(t *testing.T) {
	t.Parallel()
	w, order, reserved := shop()
	second := w.write(idgen.Child("stock/reserve", order, 1), "stock.low", outbox.PendingState)
	w.handled(second, "stock/unknown", inbox.Retrying)
	l := w.lineage(t, nil)
	root, err := l.Tree(t.Context(), order)
	if err != nil {
		t.Fatal(err)
	}
	if root.Event.ID != order || root.Outbox != "shop" || len(root.Messages) != 2 || root.Messages[0].Consumer != "mail/send" || len(root.Missing) != 0 {
		t.Errorf("root is %+v", root)
	}
	if len(root.Children) != 2 || root.Children[0].Event.ID != reserved || root.Children[1].Event.ID != second {
		t.Fatalf("children are %+v", root.Children)
	}
	child := root.Children[1]
	if child.Consumer != "stock/reserve" || child.Index != 1 || !slices.Equal(child.Missing, []string{"mail/send"}) || child.Messages[0].State != inbox.Retrying {
		t.Errorf("second child is %+v", child)
	}
	p := root.Progress()
	if p.Done() || p.Events != 3 || p.Cut || len(p.Open) != 3 {
		t.Fatalf("progress is %+v", p)
	}
	for i, want := range []lineage.Open{
		{State: "pending", Why: "reason of the event"}, {Consumer: "stock/unknown", State: "retrying", Why: "reason of the message"},
		{Consumer: "mail/send", State: "missing", Why: "has not got it"},
	} {
		want.ID, want.Topic, want.Outbox = second, "stock.low", "shop"
		if p.Open[i] != want {
			t.Errorf("open is %+v, want %+v", p.Open[i], want)
		}
	}
	if w.searches != 1+2*2 { // the event; then messages and children of two generations
		t.Errorf("%d searches", w.searches)
	}
}

func TestManyChildrenAreFound(t *testing.T) {
	t.Parallel()
	w, order, _ := shop()
	for i := range 100 {
		w.write(idgen.Child("stock/reserve", order, i), "other", outbox.DeliveredState)
	}
	p, err := w.lineage(t, nil).Done(t.Context(), order)
	if err != nil || p.Events != 101 || !p.Done() {
		t.Errorf("progress is %+v, %v", p, err)
	}
}

// TestSearchesDependOnGenerationsOnly: many events of one generation are looked up together.
func TestSearchesDependOnGenerationsOnly(t *testing.T) {
	t.Parallel()
	searches := func(width int) int {
		w := newWorld()
		order := w.write(uuid.New(), "order.placed", outbox.DeliveredState)
		w.handled(order, "stock/reserve", inbox.AppliedState)
		for i := range width {
			child := w.write(idgen.Child("stock/reserve", order, i), "stock.reserved", outbox.DeliveredState)
			w.handled(child, "mail/send", inbox.AppliedState)
			w.write(idgen.Child("mail/send", child, 0), "mail.sent", outbox.DeliveredState)
		}
		p, err := w.lineage(t, nil).Done(t.Context(), order)
		if err != nil || p.Events != 1+2*width {
			t.Fatalf("progress is %+v, %v", p, err)
		}
		return w.searches
	}
	if one, many := searches(1), searches(60); many > one+2 { // all of 4, and all of 16 further ones exist
		t.Errorf("%d searches for many events, %d for one", many, one)
	}
}

func TestTreesAreReadTogether(t *testing.T) {
	t.Parallel()
	w, order, reserved := shop()
	other := w.write(uuid.New(), "order.placed", outbox.DeliveredState)
	w.handled(other, "stock/reserve", inbox.AppliedState)
	w.write(idgen.Child("stock/reserve", other, 0), "stock.reserved", outbox.DeliveredState)
	unknown := uuid.New()
	trees, err := w.lineage(t, nil).Trees(t.Context(), order, unknown, other, reserved, order)
	if err != nil || len(trees) != 5 {
		t.Fatalf("%d trees, %v", len(trees), err)
	}
	for i, want := range []struct {
		id       uuid.UUID
		children int
		messages int
	}{{order, 1, 2}, {}, {other, 1, 1}, {reserved, 0, 1}, {order, 1, 2}} {
		switch tree := trees[i]; {
		case (tree == nil) != (want.id == uuid.Nil):
			t.Errorf("tree %d is %+v", i, tree)
		case tree != nil && (tree.Event.ID != want.id || len(tree.Children) != want.children || len(tree.Messages) != want.messages):
			t.Errorf("tree %d has %d children and %d messages: %+v", i, len(tree.Children), len(tree.Messages), tree)
		}
	}
	if w.searches != 1+2*2 { // as many as of the first
		t.Errorf("%d searches", w.searches)
	}
}

// TestTreeIsCutAtItsSize follows an event to which every event leads that is looked for. No event
// leads to itself: that would take a dispatch ID that is computed from itself.
func TestTreeIsCutAtItsSize(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.every = true
	l := w.lineage(t, func(c *lineage.Config) { c.MaxEvents, c.Consumers = 50, nil })
	p, err := l.Done(t.Context(), uuid.New())
	if err != nil || p.Events != 50 || !p.Cut || len(p.Open) > 0 || p.Done() {
		t.Errorf("progress is %+v, %v", p, err)
	}
	if err := l.WaitDone(t.Context(), uuid.New()); !errors.Is(err, lineage.ErrCut) {
		t.Errorf("wait ended with %v", err)
	}
}

func TestTreeIsCutAtItsDepth(t *testing.T) {
	t.Parallel()
	for depth, want := range map[int]lineage.Progress{1: {Events: 2, Cut: true}, 2: {Events: 3}, 3: {Events: 3}} {
		w := newWorld()
		first := w.write(uuid.New(), "x", outbox.DeliveredState)
		w.handled(first, "a/b", inbox.AppliedState)
		second := w.write(idgen.Child("a/b", first, 0), "x", outbox.DeliveredState)
		w.handled(second, "a/b", inbox.AppliedState)
		w.write(idgen.Child("a/b", second, 0), "x", outbox.DeliveredState)
		p, err := w.lineage(t, func(c *lineage.Config) { c.MaxDepth = depth }).Done(t.Context(), first)
		if err != nil || p.Events != want.Events || p.Cut != want.Cut || p.Done() == want.Cut {
			t.Errorf("depth %d: progress is %+v, %v, want %+v", depth, p, err, want)
		}
	}
}

// TestInboxesAreReadBeforeOutboxes: a handler commits between two reads. Whichever reads that are,
// its children are not missed.
func TestInboxesAreReadBeforeOutboxes(t *testing.T) {
	t.Parallel()
	for at := 1; ; at++ {
		w := newWorld()
		order := w.write(uuid.New(), "order.cancelled", outbox.DeliveredState)
		committed := false
		w.looked = func(string) {
			if w.searches == at { // before the answer of this search
				committed = true
				w.handled(order, "stock/reserve", inbox.AppliedState)
				w.write(idgen.Child("stock/reserve", order, 0), "stock.freed", outbox.PendingState)
			}
		}
		p, err := w.lineage(t, nil).Done(t.Context(), order)
		if err != nil {
			t.Fatal(err)
		}
		if p.Done() {
			t.Errorf("done with a pending child: handler committed at search %d", at)
		}
		if !committed {
			return
		}
	}
}

func TestUnknownEventIsAnError(t *testing.T) {
	t.Parallel()
	l := newWorld().lineage(t, nil)
	id := uuid.New()
	for name, do := range map[string]func() error{
		"tree":    func() error { _, err := l.Tree(t.Context(), id); return err },
		"done":    func() error { _, err := l.Done(t.Context(), id); return err },
		"wait":    func() error { return l.WaitDone(t.Context(), id) },
		"applied": func() error { return l.WaitApplied(t.Context(), id, "stock/reserve") },
	} {
		if err := do(); !errors.Is(err, lineage.ErrUnknown) || !strings.Contains(err.Error(), id.String()) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWaitEndsWithWhatNeedsAnOperator(t *testing.T) {
	t.Parallel()
	for _, state := range []inbox.State{inbox.Dead, inbox.TooOldState, inbox.AlteredState, inbox.Discarded, "effect_dead", "effect_discarded"} {
		w, order, reserved := shop()
		w.messages[len(w.messages)-1].State = state
		l := w.lineage(t, nil)
		var failed *lineage.FailedError
		for id, err := range map[uuid.UUID]error{order: l.WaitDone(t.Context(), order), reserved: l.WaitApplied(t.Context(), reserved, "mail/send")} {
			if !errors.As(err, &failed) || failed.ID != reserved || failed.Consumer != "mail/send" || failed.State != string(state) || !failed.Failed ||
				!strings.Contains(err.Error(), "reason of the message") {
				t.Errorf("wait for %s ended with %v", id, err)
			}
		}
	}
	for _, state := range []outbox.State{outbox.Dead, outbox.Discarded, outbox.Cancelled} {
		w := newWorld()
		order := w.write(uuid.New(), "order.placed", state)
		l := w.lineage(t, nil)
		var failed *lineage.FailedError
		for name, err := range map[string]error{"done": l.WaitDone(t.Context(), order), "applied": l.WaitApplied(t.Context(), order)} {
			if !errors.As(err, &failed) || failed.Consumer != "" || failed.State != string(state) || !strings.Contains(err.Error(), "reason of the event") {
				t.Errorf("%s of %s ended with %v", name, state, err)
			}
		}
	}
}

// TestCopyWithOtherContentIsNotWaitedFor: the message of the dispatch ID is applied; a copy with
// other content is set aside.
func TestCopyWithOtherContentIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	w, order, reserved := shop()
	w.messages = slices.Insert(w.messages, 0, got(order, "mail/send", inbox.AlteredState))
	w.handled(reserved, "mail/send", inbox.AlteredState)
	if err := w.lineage(t, nil).WaitDone(t.Context(), order); err != nil {
		t.Error(err)
	}
}

func TestWaitEndsOnceAllIsDone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, order, reserved := shop()
		w.messages = w.messages[:2]
		begin := time.Now()
		w.looked = func(what string) {
			if what == "messages" && time.Since(begin) > time.Minute && len(w.messages) == 2 {
				w.handled(reserved, "mail/send", inbox.AppliedState)
			}
		}
		l := w.lineage(t, func(c *lineage.Config) { c.MaxInterval = time.Second })
		if err := l.WaitApplied(t.Context(), order); err != nil || time.Since(begin) > 0 {
			t.Errorf("waited %v for what is applied, %v", time.Since(begin), err)
		}
		if err := l.WaitDone(t.Context(), order); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took < time.Minute || took > time.Minute+2*time.Second || w.searches > 400 {
			t.Errorf("waited %v with %d searches", took, w.searches)
		}
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, order, _ := shop()
		w.messages[0].State = "effect_uncertain"
		l := w.lineage(t, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		for name, err := range map[string]error{
			"applied": l.WaitApplied(ctx, order, "mail/send", "stock/reserve"), "done": l.WaitDone(ctx, order),
			"other": l.WaitApplied(ctx, order, "service/other"),
		} {
			if !errors.Is(err, context.DeadlineExceeded) || name != "other" && !strings.Contains(err.Error(), `is effect_uncertain at consumer "stock/reserve"`) ||
				name == "other" && !strings.Contains(err.Error(), `is missing at consumer "service/other"`) {
				t.Errorf("%s ended with %v", name, err)
			}
		}
	})
}

func TestWaitNeedsSomebodyToWaitFor(t *testing.T) {
	t.Parallel()
	w := newWorld()
	id := w.write(uuid.New(), "nobody", outbox.DeliveredState)
	if err := w.lineage(t, nil).WaitApplied(t.Context(), id); !errors.Is(err, lineage.ErrNoConsumer) {
		t.Errorf("wait ended with %v", err)
	}
}

// broken is a database that does not answer.
type broken struct{}

var errBroken = errors.New("no answer")

func (broken) Search(context.Context, outbox.Query) (outbox.Results, error) {
	return outbox.Results{}, errBroken
}

func (broken) SearchMessages(context.Context, inbox.Query) (inbox.Results, error) {
	return inbox.Results{}, errBroken
}

func TestErrorNamesTheDatabase(t *testing.T) {
	t.Parallel()
	w, order, _ := shop()
	for what, change := range map[string]func(*lineage.Config){
		`outbox "far"`: func(c *lineage.Config) {
			c.Outboxes = append(c.Outboxes, lineage.Outbox{Name: "far", Events: broken{}})
		},
		`inbox "far"`: func(c *lineage.Config) { c.Inboxes = append(c.Inboxes, lineage.Inbox{Name: "far", Messages: broken{}}) },
	} {
		if err := w.lineage(t, change).WaitDone(t.Context(), order); !errors.Is(err, errBroken) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestConfigNamesEveryWrongField(t *testing.T) {
	t.Parallel()
	_, err := lineage.New(lineage.Config{
		Inboxes: []lineage.Inbox{{Name: "none"}}, MaxDepth: -1, MaxEvents: -1, MaxInterval: -1,
		Consumers: map[string][]string{"": {"a"}, "b": nil, "c": {"x*"}},
	})
	for _, want := range []string{
		"Outboxes: at least one", `Inboxes: 0 ("none")`, "MaxDepth: -1", "MaxEvents: -1", "MaxInterval: -1", "Consumers: a consumer has no name",
		`consumer "b": a topic is missing`, `consumer "c": in "x*"`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %q", err, want)
		}
	}
	if _, err := lineage.New(lineage.Config{Outboxes: []lineage.Outbox{{Name: "o"}}, Consumers: map[string][]string{"a": {"#"}}}); err == nil ||
		!strings.Contains(err.Error(), `Outboxes: 0 ("o")`) || !strings.Contains(err.Error(), "Consumers: there is no inbox") {
		t.Errorf("error is %v", err)
	}
}
