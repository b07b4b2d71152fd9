package ui

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/ops"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// click clicks the first element of a selector whose text begins with text, if a user could: it is in
// the window after scrolling, and nothing covers it. The page's own click is taken, since mouse events
// to one of many tabs get lost now and then.
func (p *tab) click(selector, text string) {
	p.Helper()
	p.waitFor(`document.readyState === "complete"`) // on a busy machine a page has its notice before its rows
	problem := eval[string](p, fmt.Sprintf(`(() => {
		const e = [...document.querySelectorAll(%q)].find((e) => e.textContent.trim().startsWith(%q));
		if (!e) return "is not there";
		e.scrollIntoView({ block: "center" });
		const box = e.getBoundingClientRect();
		const top = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
		if (!top || !e.contains(top)) return "is covered by " + (top && top.outerHTML.slice(0, 80));
		e.click();
		return "";
	})()`, selector, text))
	if problem != "" {
		p.Fatalf("%s %q %s", selector, text, problem)
	}
}

// fill clicks the first summary with a text, fills in the fields of its form by name, and sends the
// form with its button. Without a summary, within is the form.
func (p *tab) fill(within, summary string, fields ...string) {
	p.Helper()
	form := within
	if summary != "" {
		p.click(within+" summary", summary)
		form = within + " details.act[open] form"
	}
	for i := 0; i+1 < len(fields); i += 2 {
		eval[chromedp.Void](p, fmt.Sprintf(`document.querySelector(%q).value = %q`, fmt.Sprintf("%s [name=%s]", form, fields[i]), fields[i+1]))
	}
	p.click(form+" > button", "")
}

// actions makes every change of the dashboard by clicks, and looks what the stores have then.
func actions(p *tab) {
	p.Helper()
	ctx := p.Context()
	parked := func(state outbox.State) []outbox.Parked {
		p.Helper()
		list, err := p.scene.Outbox.ListParked(ctx, outbox.Filter{States: []outbox.State{state}})
		if err != nil {
			p.Fatal(err)
		}
		return list
	}

	p.visit("/dead")
	p.fill("article:nth-of-type(1)", "Redrive…", "reason", "the queue is back")
	p.sees("14 of 14 were redriven.")
	id, left := p.dead("")
	if left != 3 {
		p.Errorf("%d events are dead after the redrive", left)
	}

	p.visit("/events/shop/" + id.String())
	p.fill("main > .actions", "Discard…", "reason", "a test order")
	p.sees("1 of 1 were discarded.")
	if list := parked(outbox.Discarded); len(list) != 1 || list[0].ID != id || list[0].Reason != "a test order (by loopback)" {
		p.Errorf("discarded are %+v", list)
	}

	p.fill("main > .actions", "Undo the discard…", "reason", "no test")
	p.sees("1 of 1 were redriven.")
	p.sees("Retry now…")
	if list := parked(outbox.Discarded); len(list) != 0 {
		p.Errorf("discarded after the undo are %+v", list)
	}

	edits(p)

	shipped := func() outbox.Parked {
		p.Helper()
		list := parked(outbox.Retrying)
		at := slices.IndexFunc(list, func(e outbox.Parked) bool { return e.Topic == "order.shipped" })
		if at < 0 {
			p.Fatalf("retrying are %+v", list)
		}
		return list[at]
	}
	before := shipped()
	p.visit("/events/shop/" + before.ID.String())
	p.fill("main > .actions", "Retry now…", "reason", "the queue has room")
	p.sees("1 of 1 were redriven.")
	if after := shipped(); !after.NextAttemptAt.Before(before.NextAttemptAt) {
		p.Errorf("the event is retried at %v, before at %v", after.NextAttemptAt, before.NextAttemptAt)
	}

	laterActions(p)
	messages(p)

	p.visit("/dead?source=shop")
	p.fill("article:nth-of-type(1)", "Discard…", "reason", "reports are obsolete")
	p.sees(" were discarded.")
	if list := parked(outbox.Dead); len(list) != 0 {
		p.Errorf("dead after the discard of the cause are %+v", list)
	}

	p.visit("/dead")
	p.click(`.theme [value="dark"]`, "")
	p.waitFor(`document.documentElement.dataset.theme === "dark"`)
	p.click(`.theme [value="auto"]`, "")
	p.waitFor(`document.documentElement.dataset.theme === undefined`)
}

// laterActions clicks the actions of deferred events, pauses and effects.
func laterActions(p *tab) {
	p.Helper()
	ctx := p.Context()
	p.visit("/deferred")
	p.fill("tbody tr:nth-of-type(1)", "Move…", "at", "2031-02-03T04:05", "reason", "later")
	p.sees("The event is due at 2031-02-03 04:05:00 UTC.")
	p.fill("tbody tr:nth-of-type(2)", "Cancel…", "reason", "not wanted")
	p.sees("The event is cancelled")
	cancelled, err := p.scene.Outbox.ListParked(ctx, outbox.Filter{States: []outbox.State{outbox.Cancelled}})
	if err != nil || len(cancelled) != 1 {
		p.Errorf("cancelled are %+v, %v", cancelled, err)
	}

	deferredFromItsPage(p)

	p.visit("/pauses")
	p.fill("article", "Resume…", "reason", "migrated")
	p.sees("Topic invoice.created goes on within a second.")
	p.fill("main > form:nth-of-type(1)", "", "name", "order.*", "for", "1h", "reason", "maintenance")
	p.sees("Topic order.* is paused.")
	p.visit("/pauses?source=stock&kind=consumer&name=stock/pay")
	p.fill(`main > form:nth-of-type(2)`, "", "reason", "provider is down")
	p.sees("Consumer stock/pay is paused.")
	if list, err := p.scene.Outbox.Pauses(ctx); err != nil || len(list) != 1 || list[0].Name != "order.*" || list[0].By != "loopback" || list[0].Until.IsZero() {
		p.Errorf("pauses are %+v, %v", list, err)
	}

	p.visit("/pauses")
	p.fill("main > form:nth-of-type(1)", "", "what", "downstream", "name", "analytics", "reason", "its broker is upgraded")
	p.sees("Downstream analytics is paused.")
	p.fill(`article:has(form input[name="name"][value="analytics"])`, "Resume…", "reason", "upgraded")
	p.sees("Downstream analytics goes on within a second.")

	p.visit("/effects")
	p.fill("article:nth-of-type(1)", "Record the result…", "result", `{"Number":"R-1"}`, "reason", "seen at the provider")
	p.sees("The result is recorded")
	p.fill("article:nth-of-type(1)", "Redrive…", "reason", "not charged")
	p.sees("tried again under the same key")
	p.visit("/effects?state=pending")
	p.fill("article:nth-of-type(1)", "Discard…", "reason", "refunded by hand")
	p.sees("The effect is discarded.")
	list, err := p.scene.Ledger.List(ctx, inbox.EffectFilter{})
	if err != nil || len(list) != 2 || list[0].State != inbox.EffectAnswered || list[1].State != inbox.EffectDiscarded {
		p.Errorf("effects are %+v, %v", list, err)
	}
}

// deferredFromItsPage moves and cancels a deferred event by clicks on its own page.
func deferredFromItsPage(p *tab) {
	p.Helper()
	list, err := p.scene.Outbox.ListDeferred(p.Context(), outbox.DeferredFilter{})
	if err != nil || len(list) == 0 {
		p.Fatal(list, err)
	}
	id := list[0].ID
	p.visit("/events/shop/" + id.String())
	p.fill("main > .actions", "Move…", "at", "2032-03-04T05:06", "reason", "later still")
	p.sees("The event is due at 2032-03-04 05:06:00 UTC.")
	p.fill("main > .actions", "Cancel…", "reason", "not wanted any more")
	p.sees("The event is cancelled")
	cancelled, err := p.scene.Outbox.ListParked(p.Context(), outbox.Filter{IDs: []uuid.UUID{id}})
	if err != nil || len(cancelled) != 1 || cancelled[0].State != outbox.Cancelled || cancelled[0].Reason != "not wanted any more (by loopback)" {
		p.Errorf("cancelled is %+v, %v", cancelled, err)
	}
}

// messages redrives one dead message and discards another one by clicks on their pages, and discards the
// rest of their cause.
func messages(p *tab) {
	p.Helper()
	dead := func() []inbox.Parked {
		p.Helper()
		list, err := p.scene.Inbox.ListParked(p.Context(), inbox.Filter{States: []inbox.State{inbox.Dead}})
		if err != nil {
			p.Fatal(err)
		}
		return list
	}
	state := func(id uuid.UUID) inbox.State {
		p.Helper()
		list, err := p.scene.Inbox.ListParked(p.Context(), inbox.Filter{IDs: []uuid.UUID{id}, Consumer: "stock/reserve"})
		if err != nil || len(list) != 1 {
			p.Fatal(list, err)
		}
		return list[0].State
	}
	first := dead()
	if len(first) < 2 {
		p.Fatalf("dead are %+v", first)
	}
	p.visit("/messages/" + first[0].ID.String())
	p.fill(".applied .actions", "Redrive…", "reason", "sold again")
	p.sees("1 of 1 were redriven.")
	if got := state(first[0].ID); got != inbox.Retrying {
		p.Errorf("the redriven message is %s", got)
	}
	p.visit("/messages/" + first[1].ID.String())
	p.fill(".applied .actions", "Discard…", "reason", "a test order")
	p.sees("1 of 1 were discarded.")
	if got := state(first[1].ID); got != inbox.Discarded {
		p.Errorf("the discarded message is %s", got)
	}
}

// TestManyLettersAreChangedWithOneClick: the page takes the next steps by itself.
func TestManyLettersAreChangedWithOneClick(t *testing.T) {
	t.Parallel()
	p := open(t, func(c *ops.Config) { c.Timeout = 2 * time.Second })
	p.look(390, 844, "light")
	const n = 700
	if _, err := p.scene.Write(p.Context(), "charge", "one", n, time.Time{}, `{}`); err != nil {
		t.Fatal(err)
	}
	queued, err := p.scene.Queued(p.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	for i := range queued {
		if queued[i].Topic == "charge" {
			if err := p.scene.Fail(p.Context(), &queued[i], 10, true, "declined"); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.visit("/dead")
	p.fill("article:nth-of-type(1)", "Redrive…", "reason", "the limit is raised")
	p.sees("700 of 700 were redriven.")
}

// edits edits a dead event and a dead message.
func edits(p *tab) {
	p.Helper()
	ctx := p.Context()
	id, _ := p.dead("report.rendered")
	p.visit("/events/shop/" + id.String())
	p.fill("main > .actions", "Edit…", "payload", `{"pages":12}`, "reason", "shortened")
	p.sees("will be sent instead; the event is discarded.")
	found, err := p.scene.Outbox.Search(ctx, outbox.Query{Topic: "report.rendered", States: []outbox.State{outbox.PendingState}, Content: true})
	if err != nil || len(found.Events) != 1 || string(found.Events[0].Payload) != `{"pages":12}` {
		p.Errorf("pending are %+v, %v", found, err)
	}

	dead, err := p.scene.Inbox.ListParked(ctx, inbox.Filter{States: []inbox.State{inbox.Dead}})
	if err != nil || len(dead) == 0 {
		p.Fatal(dead, err)
	}
	p.visit("/dead?source=stock")
	p.click("article:nth-of-type(1) a.go", "See all 3")
	p.waitFor(`location.pathname.endsWith("/messages") && document.querySelectorAll("tbody tr").length === 3`)
	p.click("tbody a", dead[0].ID.String()[:8])
	p.sees("What it has caused")
	p.fill(".applied .actions", "Edit…", "payload", `{"customer":"ada"}`, "reason", "another article")
	p.sees("will be handled instead; the message is discarded.")
	if err := p.scene.Inbox.RunOnce(ctx); err != nil {
		p.Fatal(err)
	}
	copied := eval[string](p, `document.querySelector(".notice").innerText.match(/copy ([0-9a-f-]{36})/)[1]`)
	p.visit("/messages/" + copied)
	p.sees("applied")
}

func TestEveryActionWorksByClicks(t *testing.T) {
	t.Parallel()
	for store, open := range map[string]func(*testing.T, func(*ops.Config)) *tab{"SQLite": open, "PostgreSQL": openPostgres} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			p := open(t, nil)
			p.look(1280, 900, "light")
			actions(p)
		})
	}
}

// TestEveryActionWorksOnAPhone: a form that is wider than the window, or covered, cannot be clicked.
func TestEveryActionWorksOnAPhone(t *testing.T) {
	t.Parallel()
	p := open(t, nil)
	p.look(390, 844, "dark")
	actions(p)
}

// TestEveryActionWorksWithoutJavaScript has the scripts of the pages refused by the policy of the
// browser: the driver's own expressions still run.
func TestEveryActionWorksWithoutJavaScript(t *testing.T) {
	t.Parallel()
	p := open(t, nil)
	p.look(1280, 900, "light")
	call(p, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	p.visit("/")
	if eval[string](p, `typeof htmx`) != "undefined" {
		t.Fatal("scripts run")
	}
	actions(p)
}

func TestSearchRefinesInPlace(t *testing.T) {
	t.Parallel()
	p := open(t, nil)
	p.look(1280, 900, "light")
	p.visit("/events")
	eval[chromedp.Void](p, `window.stays = true`)
	eval[chromedp.Void](p, `(() => {
		const state = document.querySelector('select[name="state"]');
		state.value = "dead";
		state.dispatchEvent(new Event("change", { bubbles: true }));
	})()`)
	p.waitFor(`location.search.includes("state=dead") && document.querySelectorAll("#results tbody tr").length === 17`)
	if !eval[bool](p, `window.stays === true`) {
		t.Error("the page was loaded anew")
	}
}
