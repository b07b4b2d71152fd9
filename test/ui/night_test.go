package ui

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/boxpair/boxpair/ops"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/test/shop"
)

// TestQueueThatIsGoneIsHealedByClicks goes through docs/at-night.md on the dashboard: what is wrong and
// since when, the command that heals it, and that it was all of it.
func TestQueueThatIsGoneIsHealedByClicks(t *testing.T) {
	t.Parallel()
	s := shop.New(t)
	auditor, err := postgres.NewAuditor(s.Pool, postgres.AuditorConfig{})
	if err != nil {
		t.Fatal(err)
	}
	relay, _ := s.StartRelay()
	s.LoseQueue()
	p := serve(t, ops.Config{
		Outboxes: []ops.Outbox{{Name: "shop", Operator: s.Outbox, Parts: []any{s.Store}}},
		Inboxes:  []ops.Inbox{{Name: "stock", Operator: s.Inbox, Parts: []any{s.Store, auditor}}},
	})
	p.look(1280, 900, "light")

	p.visit("/")
	p.sees("Something needs a look")
	p.waitFor(`/nothing can be sent to order\.placed, for \d+ (m?s|min).*: no queue took the message/.test(document.body.innerText)`)
	p.click("a.go", "See the routes")
	p.waitFor(`document.querySelector("#routes tbody")?.innerText.includes("refusing")`)
	p.sees("no queue took the message")
	p.find("42")
	p.waitFor(`document.querySelector("main").innerText.includes("is refusing since")`)
	p.click("tbody a", s.Latest.String()[:8])
	here := `location.pathname.endsWith("` + s.Latest.String() + `") && document.querySelector(".timeline")`
	p.waitFor(here)
	p.sees("is refusing since")
	p.click("a.go", "See the route")
	p.sees("What heals it")
	command := eval[string](p, `document.querySelector(".heal pre").textContent`)
	if command != "boxpair declare --topic order.placed --consumer …" {
		t.Fatalf("the page prints %q", command)
	}
	if out := s.Type(strings.Replace(command, "…", "stock --new", 1)); out != "queue order.placed_stock of topic order.placed is there\n" {
		t.Fatal(out)
	}

	p.waitFor(`document.querySelector("#routes tbody")?.innerText.includes("working") && !document.querySelector(".heal")`) // the page looks again
	p.click(".nav a", "Overview")
	p.sees("Everything is delivered in time")
	defer s.StartStock()()
	shop.Until(t, func() error {
		p.find("42")
		p.click("tbody a", s.Latest.String()[:8])
		p.waitFor(here)
		at := eval[string](p, `document.querySelector(".applied")?.innerText ?? ""`)
		if !strings.Contains(at, "applied") || !strings.Contains(at, shop.Consumer) {
			return errors.New("not applied: " + at)
		}
		return nil
	})
	p.sees("confirmed ")
	if err := relay.Stop(); err != nil {
		t.Error(err)
	}
}

// find searches for an event with the field that every page has.
func (p *tab) find(text string) {
	p.Helper()
	eval[chromedp.Void](p, fmt.Sprintf(`(() => { const f = document.getElementById("find"); f.value = %q; f.form.requestSubmit(); })()`, text))
	p.waitFor(fmt.Sprintf(`location.search.endsWith("q=%s") && document.querySelector("#results")`, text))
}
