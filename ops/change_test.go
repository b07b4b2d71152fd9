package ops_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/ops"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

var inboxDead = inbox.Filter{States: []inbox.State{inbox.Dead}}

// asDana lets every request come from dana.
func asDana(c *ops.Config) {
	c.Authorize = func(*http.Request) (ops.Role, string, error) { return ops.Operator, "dana", nil }
}

func TestReasonIsRequired(t *testing.T) {
	t.Parallel()
	r := over(t, newScene(t, true), asDana)
	for _, target := range changes {
		for reason, want := range map[string]string{"": "Reason: is required", " \t": "Reason: is required", strings.Repeat("x", 1015): "Reason: has 1025 bytes", "a\x00b": "without NUL"} {
			status, body := r.post(target, "reason", reason, "source", "shop")
			if status != http.StatusBadRequest || !strings.Contains(body, want) {
				t.Errorf("%s, %d bytes: status %d", target, len(reason), status)
			}
		}
	}
}

// firstOf returns the dispatch ID of a dead event of a topic.
func firstOf(r *rig, topic string) uuid.UUID {
	r.Helper()
	list, err := r.scene.Outbox.ListParked(r.Context(), outbox.Filter{Topic: topic, States: []outbox.State{outbox.Dead}})
	if err != nil || len(list) == 0 {
		r.Fatal(list, err)
	}
	return list[0].ID
}

func TestCauseIsRedrivenWithReasonAndUser(t *testing.T) {
	onEachStore(t, func(t *testing.T, newScene scenes) {
		r := over(t, newScene(t, true), asDana)
		id := firstOf(r, "report.rendered")
		status, body := r.post("/dead/redrive", "kind", "outbox", "source", "shop", "id", id.String(), "scope", "cause", "reason", "limit is raised", "back", "/dead")
		if status != http.StatusSeeOther || !strings.Contains(body, "3 of 3 were redriven.") {
			t.Fatalf("status %d: %s", status, body)
		}
		left, err := r.scene.Outbox.ListParked(t.Context(), outbox.Filter{States: []outbox.State{outbox.Dead}})
		if err != nil || len(left) != 14 {
			t.Errorf("%d are still dead, %v", len(left), err)
		}
		attempts, err := r.scene.Outbox.Attempts(t.Context(), id, 10)
		if err != nil || len(attempts) == 0 || attempts[len(attempts)-1].Error != "limit is raised (by dana)" {
			t.Errorf("history is %+v, %v", attempts, err)
		}
		r.shows("/events/shop/"+id.String(), "Redriven", "limit is raised (by dana)")
		if status, body := r.post("/dead/redrive", "kind", "outbox", "source", "shop", "id", id.String(), "scope", "cause", "reason", "again"); status != http.StatusConflict ||
			!strings.Contains(body, "Nothing was changed") {
			t.Errorf("a second time: status %d: %s", status, body)
		}
		r.shows("/events/shop/"+id.String(), "Retry now…")
		if status, body := r.post("/dead/redrive", "source", "shop", "id", id.String(), "reason", "at once"); !strings.Contains(body, "1 of 1 were redriven.") {
			t.Errorf("a retry now: status %d: %s", status, body)
		}
	})
}

func TestOneEventIsDiscarded(t *testing.T) {
	onEachStore(t, func(t *testing.T, newScene scenes) {
		r := over(t, newScene(t, true), asDana)
		id := firstOf(r, "mail.requested")
		if status, body := r.post("/dead/discard", "kind", "outbox", "source", "shop", "id", id.String(), "reason", "a test order"); status != http.StatusSeeOther || !strings.Contains(body, "1 of 1 were discarded.") {
			t.Fatalf("status %d: %s", status, body)
		}
		list, err := r.scene.Outbox.ListParked(t.Context(), outbox.Filter{States: []outbox.State{outbox.Discarded}})
		if err != nil || len(list) != 1 || list[0].ID != id || list[0].Reason != "a test order (by dana)" {
			t.Errorf("discarded are %+v, %v", list, err)
		}
		if status, body := r.post("/dead/discard", "kind", "outbox", "source", "shop", "id", id.String(), "reason", "again"); status != http.StatusConflict || !strings.Contains(body, "Nothing was changed") {
			t.Errorf("a second time: status %d", status)
		}
		if body := r.shows("/events/shop/"+id.String(), "Undo the discard…"); strings.Contains(body, "Discard…") {
			t.Error("what is discarded can be discarded again")
		}
		if status, body := r.post("/dead/redrive", "source", "shop", "id", id.String(), "reason", "no test"); !strings.Contains(body, "1 of 1 were redriven.") {
			t.Errorf("undo: status %d: %s", status, body)
		}
	})
}

func TestMessagesOfACauseAreRedriven(t *testing.T) {
	onEachStore(t, func(t *testing.T, newScene scenes) {
		r := over(t, newScene(t, true), asDana)
		list, err := r.scene.Inbox.ListParked(t.Context(), inboxDead)
		if err != nil || len(list) != 3 {
			t.Fatal(list, err)
		}
		status, body := r.post("/dead/redrive", "kind", "inbox", "source", "stock", "consumer", "stock/reserve", "id", list[0].ID.String(), "scope", "cause", "reason", "sold again")
		if status != http.StatusSeeOther || !strings.Contains(body, "3 of 3 were redriven.") {
			t.Fatalf("status %d: %s", status, body)
		}
		attempts, err := r.scene.Inbox.Attempts(t.Context(), list[2].ID, 10)
		if err != nil || attempts[len(attempts)-1].Error != "sold again (by dana)" {
			t.Errorf("history is %+v, %v", attempts, err)
		}
	})
}

func TestOtherCausesAreLeftAlone(t *testing.T) {
	onEachStore(t, func(t *testing.T, newScene scenes) {
		s := newScene(t, false)
		ctx := t.Context()
		for _, why := range []string{"timeout", "timeout: the card was charged", "timeout of 12345678 ms", "timeout of 87654321 ms", ""} {
			if _, err := s.Write(ctx, "charge", "", 1, time.Time{}, `{}`); err != nil {
				t.Fatal(err)
			}
			queued, err := s.Queued(ctx, 10)
			if err != nil || len(queued) != 1 {
				t.Fatal(queued, err)
			}
			if err := s.Fail(ctx, &queued[0], 10, true, why); err != nil {
				t.Fatal(err)
			}
		}
		r := over(t, s, asDana)
		list, err := s.Outbox.ListParked(ctx, outbox.Filter{})
		if err != nil || len(list) != 5 {
			t.Fatal(list, err)
		}
		for i, want := range []string{"1 of 1", "1 of 1", "2 of 2", "", "1 of 1"} {
			if want == "" {
				continue
			}
			if status, body := r.post("/dead/discard", "source", "shop", "id", list[i].ID.String(), "scope", "cause", "reason", "x"); status != http.StatusSeeOther || !strings.Contains(body, want+" were discarded.") {
				t.Errorf("%q: status %d, not %s", list[i].LastError, status, want)
			}
		}
	})
}

func TestDeferredEventIsMovedAndCancelled(t *testing.T) {
	onEachStore(t, func(t *testing.T, newScene scenes) {
		r := over(t, newScene(t, true), asDana)
		list, err := r.scene.Outbox.ListDeferred(t.Context(), outbox.DeferredFilter{})
		if err != nil || len(list) != 3 {
			t.Fatal(list, err)
		}
		id := list[0].ID.String()
		if status, body := r.post("/deferred/move", "source", "shop", "id", id, "at", "2031-02-03T04:05", "reason", "later"); status != http.StatusSeeOther || !strings.Contains(body, "due at 2031-02-03 04:05:00 UTC") {
			t.Errorf("move: status %d: %s", status, body)
		}
		moved, err := r.scene.Outbox.ListDeferred(t.Context(), outbox.DeferredFilter{IDs: []uuid.UUID{list[0].ID}})
		if err != nil || len(moved) != 1 || !moved[0].DueAt.Equal(time.Date(2031, 2, 3, 4, 5, 0, 0, time.UTC)) {
			t.Errorf("moved is %+v, %v", moved, err)
		}
		for at, want := range map[string]string{"": "At: is required", "soon": "At: want a time"} {
			if status, body := r.post("/deferred/move", "source", "shop", "id", id, "at", at, "reason", "later"); status != http.StatusBadRequest || !strings.Contains(body, want) {
				t.Errorf("move to %q: status %d", at, status)
			}
		}
		for _, want := range []string{"The event is cancelled", "Nothing was changed"} {
			if status, body := r.post("/deferred/cancel", "source", "shop", "id", id, "reason", "not wanted"); status != http.StatusSeeOther || !strings.Contains(body, want) {
				t.Errorf("cancel: status %d, not %s", status, want)
			}
		}
		gone, err := r.scene.Outbox.ListParked(t.Context(), outbox.Filter{States: []outbox.State{outbox.Cancelled}})
		if err != nil || len(gone) != 1 || gone[0].Reason != "not wanted (by dana)" {
			t.Errorf("cancelled is %+v, %v", gone, err)
		}
	})
}

func TestPausesBeginAndEnd(t *testing.T) {
	onEachStore(t, func(t *testing.T, newScene scenes) {
		r := over(t, newScene(t, false), asDana)
		for _, p := range []struct {
			kind, source, what, name string
		}{{"outbox", "shop", "topic", "order.*"}, {"outbox", "shop", "downstream", "billing"}, {"inbox", "stock", "consumer", "stock/reserve"}} {
			same := []string{"kind", p.kind, "source", p.source, "what", p.what, "name", p.name}
			if status, body := r.post("/pauses/begin", append(same, "reason", "maintenance", "for", "1h")...); status != http.StatusSeeOther || !strings.Contains(body, "is paused") {
				t.Errorf("%s %s: status %d: %s", p.what, p.name, status, body)
			}
			if body := r.shows("/pauses", "by dana", "maintenance", "in 59 min"); !strings.Contains(body, p.name) {
				t.Errorf("%s is not shown", p.name)
			}
			for _, want := range []string{"goes on within a second", "Nothing was changed"} {
				if status, body := r.post("/pauses/end", append(same, "reason", "done")...); status != http.StatusSeeOther || !strings.Contains(body, want) {
					t.Errorf("%s %s: status %d, not %s", p.what, p.name, status, want)
				}
			}
		}
		for name, fields := range map[string][]string{
			"Name": {"what", "topic", "name", ""}, "Kind": {"what", "odd", "name", "x"}, "For: want": {"what", "topic", "name", "x", "for", "ages"},
			"Until: want": {"what", "topic", "name", "x", "until", "soon"}, "is over": {"what", "topic", "name", "x", "until", "2001-01-01T00:00"},
		} {
			if status, body := r.post("/pauses/begin", append(fields, "kind", "outbox", "source", "shop", "reason", "r")...); status != http.StatusBadRequest || !strings.Contains(body, name) {
				t.Errorf("%s: status %d", name, status)
			}
		}
		if pauses, err := r.scene.Outbox.Pauses(t.Context()); err != nil || len(pauses) > 0 {
			t.Errorf("pauses are %+v, %v", pauses, err)
		}
	})
}

func TestConsumerPausesShowOnItsPage(t *testing.T) {
	t.Parallel()
	s := newScene(t, false)
	if err := s.Inbox.Pause(t.Context(), control.Pause{Kind: control.Consumer, Name: "stock/*", Reason: "r"}); err != nil {
		t.Fatal(err)
	}
	if body := over(t, s, nil).page("/consumers"); strings.Count(body, "Resume…") != 3 {
		t.Error("not every consumer of the service is shown as paused")
	}
}

func TestUncertainEffectsAreSettled(t *testing.T) {
	onEachStore(t, func(t *testing.T, newScene scenes) {
		r := over(t, newScene(t, true), asDana)
		keys := regexp.MustCompile(`name="key" value="([0-9a-f-]+)"`).FindAllStringSubmatch(r.page("/effects"), -1)
		list, err := r.scene.Ledger.List(t.Context(), inbox.EffectFilter{States: []inbox.EffectState{inbox.EffectUncertain}})
		if err != nil || len(list) != 2 || len(keys) != 6 {
			t.Fatal(list, keys, err)
		}
		first, second := list[0].Key.String(), list[1].Key.String()
		if status, body := r.post("/effects/resolve", "source", "stock", "key", first, "result", "{", "reason", "found"); status != http.StatusBadRequest || !strings.Contains(body, "Result: want JSON") {
			t.Errorf("a bad result: status %d", status)
		}
		for _, want := range []string{"The result is recorded", "Nothing was changed"} {
			if status, body := r.post("/effects/resolve", "source", "stock", "key", first, "result", `{"Number":"R-1"}`, "reason", "found"); status != http.StatusSeeOther || !strings.Contains(body, want) {
				t.Errorf("resolve: status %d, not %s", status, want)
			}
		}
		if status, body := r.post("/effects/redrive", "source", "stock", "key", second, "reason", "not charged"); status != http.StatusSeeOther || !strings.Contains(body, "under the same key") {
			t.Errorf("redrive: status %d: %s", status, body)
		}
		if status, body := r.post("/effects/discard", "source", "stock", "key", second, "reason", "refunded"); status != http.StatusSeeOther || !strings.Contains(body, "is discarded") {
			t.Errorf("discard: status %d: %s", status, body)
		}
		after, err := r.scene.Ledger.List(t.Context(), inbox.EffectFilter{})
		if err != nil || len(after) != 2 || after[0].State != inbox.EffectAnswered || string(after[0].Result) != `{"Number":"R-1"}` ||
			after[1].State != inbox.EffectDiscarded || after[1].Reason != "refunded (by dana)" {
			t.Errorf("effects are %+v, %v", after, err)
		}
	})
}

func TestChangesAreLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	r := over(t, newScene(t, true), func(c *ops.Config) {
		asDana(c)
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	r.post("/pauses/end", "kind", "outbox", "source", "shop", "what", "topic", "name", "invoice.created", "reason", "migration is done")
	for _, text := range []string{"change=pauses/end", "user=dana", `reason="migration is done"`, "name=invoice.created", "source=shop"} {
		if !strings.Contains(log.String(), text) {
			t.Errorf("the log has no %s:\n%s", text, log.String())
		}
	}
}

func TestDeadEventIsEdited(t *testing.T) {
	onEachStore(t, func(t *testing.T, newScene scenes) {
		s := newScene(t, true)
		r := over(t, s, func(c *ops.Config) {
			asDana(c)
			c.Payloads = true
		})
		id := firstOf(r, "mail.requested").String()
		r.shows("/events/shop/"+id, "Edit…", "ada@example.org")
		status, body := r.post("/dead/edit", "source", "shop", "id", id, "payload", "{\r\n\"to\": \"bob@example.org\"}", "reason", "typo", "back", "/events/shop/"+id)
		if status != http.StatusSeeOther || !strings.Contains(body, "will be sent instead") || !strings.Contains(body, "(by dana)") {
			t.Fatalf("status %d: %s", status, body)
		}
		found, err := s.Outbox.Search(t.Context(), outbox.Query{Topic: "mail.requested", States: []outbox.State{outbox.PendingState}, Content: true})
		if err != nil || len(found.Events) != 1 || string(found.Events[0].Payload) != "{\n\"to\": \"bob@example.org\"}" {
			t.Errorf("pending are %+v, %v", found, err)
		}
		hidden := over(t, s, asDana)
		if status, _ := hidden.post("/dead/edit", "source", "shop", "id", id, "payload", "{}", "reason", "typo"); status != http.StatusForbidden {
			t.Errorf("without Payloads: status %d", status)
		}
		if strings.Contains(hidden.page("/events/shop/"+id), "Edit…") {
			t.Error("an edit is offered without Payloads")
		}
		pending := firstPending(r)
		if status, _ := r.post("/dead/edit", "source", "shop", "id", pending, "payload", "{}", "reason", "typo"); status != http.StatusConflict {
			t.Errorf("a pending event: status %d", status)
		}
	})
}

// firstPending returns the dispatch ID of an event in the queue.
func firstPending(r *rig) string {
	r.Helper()
	found, err := r.scene.Outbox.Search(r.Context(), outbox.Query{States: []outbox.State{outbox.PendingState}, Topic: "order.placed", Limit: 1})
	if err != nil || len(found.Events) == 0 {
		r.Fatal(found, err)
	}
	return found.Events[0].ID.String()
}

func TestDeadMessageIsEdited(t *testing.T) {
	onEachStore(t, func(t *testing.T, newScene scenes) {
		s := newScene(t, true)
		r := over(t, s, func(c *ops.Config) {
			asDana(c)
			c.Payloads = true
		})
		list, err := s.Inbox.ListParked(t.Context(), inboxDead)
		if err != nil || len(list) == 0 {
			t.Fatal(list, err)
		}
		id := list[0].ID.String()
		edit := []string{"kind", "inbox", "source", "stock", "consumer", "stock/reserve", "id", id, "payload", "{\"article\":\r\n4712}", "reason", "renamed", "back", "/events/shop/" + id}
		r.shows("/events/shop/"+id, "Edit…", "&#34;reject&#34;:true")
		status, body := r.post("/dead/edit", edit...)
		copied := regexp.MustCompile(`The edited copy ([0-9a-f-]{36}) will be handled instead`).FindStringSubmatch(body)
		if status != http.StatusSeeOther || copied == nil || !strings.Contains(body, "renamed (by dana)") {
			t.Fatalf("status %d: %s", status, body)
		}
		parked, err := s.Inbox.ListParked(t.Context(), inbox.Filter{IDs: []uuid.UUID{uuid.MustParse(copied[1])}})
		if err != nil || len(parked) != 1 || string(parked[0].Payload) != "{\"article\":\n4712}" {
			t.Errorf("the copy is %+v, %v", parked, err)
		}
		if err := s.Inbox.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.shows("/messages/"+copied[1], "stock/reserve", "applied")
		hidden := over(t, s, asDana)
		if status, _ := hidden.post("/dead/edit", edit...); status != http.StatusForbidden {
			t.Errorf("without Payloads: status %d", status)
		}
		if strings.Contains(hidden.page("/events/shop/"+id), "Edit…") {
			t.Error("an edit is offered without Payloads")
		}
		if status, _ := r.post("/dead/edit", "kind", "inbox", "source", "stock", "consumer", "stock/notify", "id", id, "payload", "{}", "reason", "x"); status != http.StatusConflict {
			t.Errorf("a message that is not dead: status %d", status)
		}
	})
}
