package ui

import (
	_ "embed"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/ops"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

//go:embed audit.js
var audit string

// pages returns the addresses of all pages of a dashboard.
func pages(p *tab) []string {
	p.Helper()
	dead, _ := p.dead("mail.requested")
	rejected, err := p.scene.Inbox.ListParked(p.Context(), inbox.Filter{States: []inbox.State{inbox.Dead}, Limit: 1})
	if err != nil || len(rejected) == 0 {
		p.Fatal(rejected, err)
	}
	return []string{
		"/", "/events", "/events?state=dead&topic=mail.requested", "/events/shop/" + dead.String(), "/events/shop/" + rejected[0].ID.String(), "/messages",
		"/dead", "/deferred", "/routes", "/relays", "/consumers", "/effects", "/pauses", "/nothing",
	}
}

// dead returns the first dead event of a topic, and the number of all.
func (p *tab) dead(topic string) (uuid.UUID, int) {
	p.Helper()
	list, err := p.scene.Outbox.ListParked(p.Context(), outbox.Filter{States: []outbox.State{outbox.Dead}, Topic: topic})
	if err != nil {
		p.Fatal(err)
	}
	if len(list) == 0 {
		return uuid.Nil, 0
	}
	return list[0].ID, len(list)
}

// TestPagesFitAndCanBeRead opens each page in each width and theme, with every form unfolded. The page
// audits itself: nothing is wider than the window, every text has the contrast of WCAG AA against what
// is behind it, every field has a label, and every link and button a name.
func TestPagesFitAndCanBeRead(t *testing.T) {
	t.Parallel()
	for _, width := range []int64{390, 1280, 1600} {
		t.Run(fmt.Sprint(width), func(t *testing.T) {
			t.Parallel()
			p := open(t, nil)
			for _, page := range pages(p) {
				p.visit(page)
				if page == "/nothing" {
					p.mu.Lock()
					p.problems = nil // the browser reports the status 404
					p.mu.Unlock()
				}
				for _, theme := range []string{"light", "dark"} {
					if p.look(width, 900, theme); width == 1600 && theme == "light" {
						continue
					}
					for _, problem := range eval[[]string](p, audit) {
						t.Errorf("%s, %d pixels, %s: %s", page, width, theme, problem)
					}
				}
			}
		})
	}
}

func TestAuditFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	p := open(t, nil)
	p.look(1280, 900, "light")
	p.visit("/dead")
	p.run(chromedp.Evaluate[chromedp.Void](`{
		const main = document.getElementById("main");
		const pale = document.createElement("p"); pale.textContent = "pale"; pale.style.color = "#bbb"; main.append(pale);
		const wide = document.createElement("div"); wide.style.width = "3000px"; wide.textContent = "wide"; main.append(wide);
		const card = document.createElement("div"); card.className = "card"; card.style.width = "100px"; main.append(card);
		card.innerHTML = "<table><tr><td>unbreakable".padEnd(80, "x");
		const field = document.createElement("input"); main.append(field);
		const button = document.createElement("button"); main.append(button);
	}`))
	found := strings.Join(eval[[]string](p, audit), "\n")
	for _, want := range []string{"contrast", "pixels wide", "wider than its card", "no label", "no name"} {
		if !strings.Contains(found, want) {
			t.Errorf("the audit does not find %q:\n%s", want, found)
		}
	}
	p.mu.Lock()
	p.problems = nil
	p.mu.Unlock()
}

func TestOverviewRefreshesItselfAndDrawsTheRates(t *testing.T) {
	t.Parallel()
	p := open(t, nil)
	p.look(1280, 900, "dark")
	p.visit("/")
	p.sees("17 events have used up all attempts")
	p.waitFor(`document.querySelector(".plot canvas") !== null`)
	id, _ := p.dead("report.rendered")
	if _, err := p.scene.Outbox.Discard(t.Context(), outbox.Filter{IDs: []uuid.UUID{id}}, "a test"); err != nil {
		t.Fatal(err)
	}
	p.sees("16 events have used up all attempts")
}

func TestKeyboard(t *testing.T) {
	t.Parallel()
	p := open(t, nil)
	p.look(1280, 900, "light")
	p.visit("/dead")
	p.run(chromedp.KeyEvent("\t"))
	if got := eval[string](p, `document.activeElement.textContent`); got != "Skip to the content" {
		t.Errorf("the first stop is %q", got)
	}
	if got := eval[string](p, `getComputedStyle(document.activeElement).outlineStyle`); got != "solid" {
		t.Errorf("the focus is drawn as %q", got)
	}
	p.run(chromedp.KeyEvent("\r"))
	p.waitFor(`location.hash === "#main"`)
	p.run(chromedp.KeyEvent("/"))
	p.waitFor(`document.activeElement.id === "find"`)
	eval[chromedp.Void](p, `document.activeElement.value = ""`) // the driver sends the character although the page has taken the key
	p.run(chromedp.KeyEvent("order-4242\r"))
	p.sees("order.shipped")
	if got := eval[string](p, `document.getElementById("find").value`); got != "order-4242" {
		t.Errorf("the search is for %q", got)
	}
}

func TestReaderSeesNoForms(t *testing.T) {
	t.Parallel()
	p := open(t, func(c *ops.Config) { c.Loopback, c.Payloads = ops.Reader, false })
	for _, page := range pages(p)[:13] {
		p.visit(page)
		if n := eval[int](p, `document.querySelectorAll("main form[method=post]").length`); n > 0 {
			t.Errorf("%s has %d forms", page, n)
		}
	}
}
