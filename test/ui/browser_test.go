package ui

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/boxpair/boxpair/internal/opsscene"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/internal/testenv/service"
	"github.com/boxpair/boxpair/ops"
	"github.com/boxpair/boxpair/test/shop"
)

// browser is the one Chromium of the tests; each test has a tab of its own.
var browser context.Context

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	say := func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
	path, err := service.Chromium(ctx, say)
	if err != nil {
		say("%v", err)
		return 1
	}
	dir, err := os.MkdirTemp("", "boxpair-chromium-")
	if err != nil {
		say("%v", err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	flags := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(path), chromedp.UserDataDir(dir), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("disable-quic", true),
		chromedp.Flag("no-first-run", true), chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true), chromedp.Flag("hide-scrollbars", true))
	allocator, stop := chromedp.NewExecAllocator(context.Background(), flags...)
	defer stop()
	var closed context.CancelFunc
	browser, closed = chromedp.NewContext(allocator)
	defer closed()
	if err := chromedp.Do(browser); err != nil {
		say("start %s: %v", path, err)
		return 1
	}
	defer shop.Cleanup()
	return m.Run()
}

// tab is a tab of the browser on a dashboard.
type tab struct {
	*testing.T
	ctx   context.Context
	scene *opsscene.Scene // nil if the dashboard shows something else
	url   string

	mu       sync.Mutex
	problems []string
}

// open serves a scene with something in every state, on SQLite.
func open(t *testing.T, change func(c *ops.Config)) *tab {
	t.Helper()
	scene, err := opsscene.New(t.Context(), t.TempDir())
	return openScene(t, scene, err, change)
}

// openPostgres is open on PostgreSQL.
func openPostgres(t *testing.T, change func(c *ops.Config)) *tab {
	t.Helper()
	scene, err := opsscene.NewPostgres(t.Context(), testenv.Postgres(t))
	return openScene(t, scene, err, change)
}

func openScene(t *testing.T, scene *opsscene.Scene, err error, change func(c *ops.Config)) *tab {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = scene.Close() })
	if err := scene.Fill(t.Context()); err != nil {
		t.Fatal(err)
	}
	cfg := ops.Config{
		Title: "Shop", Payloads: true,
		Outboxes: []ops.Outbox{{Name: "shop", Operator: scene.Outbox, Parts: []any{scene.Store}}},
		Inboxes:  []ops.Inbox{{Name: "stock", Operator: scene.Inbox, Effects: scene.Ledger, Parts: []any{scene.Store, scene.Auditor}}},
		Loopback: ops.Operator,
	}
	if change != nil {
		change(&cfg)
	}
	p := serve(t, cfg)
	p.scene = scene
	return p
}

// serve serves a dashboard, and opens a tab. The tab fails the test if a page reports an error, or asks
// another server.
func serve(t *testing.T, cfg ops.Config) *tab {
	t.Helper()
	cfg.Logger, cfg.Path = slog.New(slog.DiscardHandler), "/ops"
	handler, err := ops.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	ctx, closed := chromedp.NewContext(browser, chromedp.WithNewBrowserContext()) // cookies of its own: they do not heed ports
	t.Cleanup(closed)
	p := &tab{T: t, ctx: ctx, url: server.URL + "/ops"}
	p.run()
	var cancel context.CancelFunc
	p.ctx, cancel = context.WithTimeout(ctx, 10*time.Minute)
	t.Cleanup(cancel)
	if err := chromedp.Listen(p.ctx, p.listen); err != nil {
		t.Fatal(err)
	}
	call(p, network.Enable, network.EnableParams{})
	call(p, log.Enable, cdp.Empty{})
	call(p, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true}) // as if it were the only tab
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, problem := range p.problems {
			t.Error(problem)
		}
	})
	return p
}

// listen takes note of what a quiet page does not do.
func (p *tab) listen(event any) {
	problem := ""
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		problem = "exception: " + e.ExceptionDetails.Text
	case *runtime.EventConsoleAPICalled:
		problem = fmt.Sprintf("console.%s: %v", e.Type, e.Args)
	case *log.EventEntryAdded:
		problem = fmt.Sprintf("%s: %s (%s)", e.Entry.Level, e.Entry.Text, e.Entry.URL)
	case *network.EventRequestWillBeSent:
		if u := e.Request.URL; !strings.HasPrefix(u, p.url) && !strings.HasPrefix(u, "data:") {
			problem = "asks " + u
		}
	}
	if problem != "" {
		p.mu.Lock()
		p.problems = append(p.problems, problem)
		p.mu.Unlock()
	}
}

// run runs steps in the tab.
func (p *tab) run(steps ...chromedp.Action[chromedp.Void]) {
	p.Helper()
	if err := chromedp.Do(p.ctx, steps...); err != nil {
		p.Fatal(err)
	}
}

// call sends a command of the protocol to the tab.
func call[P, R any](p *tab, command cdp.Command[P, R], params P) {
	p.Helper()
	if _, err := chromedp.Call(p.ctx, command, params); err != nil {
		p.Fatal(err)
	}
}

// visit opens a page.
func (p *tab) visit(page string) {
	p.Helper()
	p.run(chromedp.Navigate(p.url+page), chromedp.WaitReady("#main"))
}

// look sets the size of the window and the preferred theme.
func (p *tab) look(width, height int64, theme string) {
	p.Helper()
	p.run(chromedp.EmulateViewport(width, height))
	call(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: theme}, {Name: "prefers-reduced-motion", Value: "reduce"}, // colours change at once
	}})
}

// eval evaluates an expression in the page.
func eval[T any](p *tab, expression string) T {
	p.Helper()
	value, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		p.Fatal(err)
	}
	return value
}

// waitFor waits until an expression is true in the page. It asks again and again: what waits within a
// page does not survive a navigation, and does not run without scripts.
func (p *tab) waitFor(expression string) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		done, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("!!("+expression+")"))
		if err == nil && done {
			return
		}
		select {
		case <-again.C: // an error comes between two pages
		case <-ctx.Done():
			p.Fatalf("%s: %v, %v\n%s", expression, ctx.Err(), err, eval[string](p, `document.body.innerText`))
		}
	}
}

// sees waits until the page shows a text.
func (p *tab) sees(text string) {
	p.Helper()
	p.waitFor(fmt.Sprintf("document.body && document.body.innerText.includes(%q)", text))
}
