package ui

import (
	"sync/atomic"
	"testing"

	"github.com/chromedp/cdproto/fetch"
	"github.com/chromedp/chromedp"

	"github.com/boxpair/boxpair/ops"
)

// logIn answers the questions of the browser for a name and a password, the first one with the first
// password, and so on. It returns how often the browser has asked.
func (p *tab) logIn(user string, passwords ...string) *atomic.Int64 {
	p.Helper()
	asked := &atomic.Int64{}
	err := chromedp.Listen(p.ctx, func(event any) {
		switch e := event.(type) {
		case *fetch.EventRequestPaused:
			go func() { // a listener must not wait for an answer; after the end of the test there is none
				_, _ = chromedp.Call(p.ctx, fetch.ContinueRequest, fetch.ContinueRequestParams{RequestID: e.RequestID})
			}()
		case *fetch.EventAuthRequired:
			n := min(int(asked.Add(1)), len(passwords))
			answer := &fetch.AuthChallengeResponse{Response: "ProvideCredentials", Username: user, Password: passwords[n-1]}
			go func() {
				_, _ = chromedp.Call(p.ctx, fetch.ContinueWithAuth, fetch.ContinueWithAuthParams{RequestID: e.RequestID, AuthChallengeResponse: answer})
			}()
		}
	})
	if err != nil {
		p.Fatal(err)
	}
	handle := true
	call(p, fetch.Enable, fetch.EnableParams{HandleAuthRequests: &handle})
	return asked
}

// TestTokenLogsAnOperatorIn: the browser asks for a name and the token, and sends both from then on.
func TestTokenLogsAnOperatorIn(t *testing.T) {
	t.Parallel()
	const token = "a token of 24 characters"
	p := open(t, func(c *ops.Config) { c.Loopback, c.Token = ops.Reader, token })
	p.look(1280, 900, "light")
	asked := p.logIn("night shift", "another token than that", token)
	p.visit("/dead")
	if n := asked.Load(); n != 2 {
		t.Errorf("the browser has asked %d times: for a wrong token, and again", n)
	}
	p.fill("article:nth-of-type(1)", "Redrive…", "reason", "the queue is back")
	p.sees("14 of 14 were redriven.")
	p.visit("/")
	p.sees("night shift")
	p.sees("operator")
}
