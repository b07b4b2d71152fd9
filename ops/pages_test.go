package ops_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxpair/boxpair/ops"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// pages are the addresses of all pages that need no ID.
var pages = []string{"/", "/events", "/messages", "/dead", "/deferred", "/routes", "/relays", "/consumers", "/effects", "/pauses"}

func TestOverviewSaysWhatIsWrongAndWhereToHealIt(t *testing.T) {
	onEachStore(t, func(t *testing.T, newScene scenes) {
		r := over(t, newScene(t, true), nil)
		body := r.shows("/", "Something needs a look",
			"17 events have used up all attempts", `href="/dead?source=shop"`,
			"nothing can be sent to mail.requested, for 47 min: returned by the broker", `href="/routes"`,
			"3 messages wait for you to decide", `href="/dead?source=stock"`,
			"2 effects wait for you to decide: 2 may have been carried out", `href="/effects?consumer=stock%2Fpay"`,
			"the accounting system is being migrated", "64 of 64 shards", "stock/notify")
		if strings.Contains(body, "invoice.created, for") {
			t.Error("a paused topic counts as broken")
		}
	})
}

func TestEmptyPagesSayWhatIsFine(t *testing.T) {
	onEachStore(t, func(t *testing.T, newScene scenes) {
		r := over(t, newScene(t, false), nil)
		for target, text := range map[string]string{
			"/": "Everything is delivered in time", "/events": "No such event here", "/messages": "No such message here", "/dead": "No dead letters",
			"/deferred": "No event is deferred", "/routes": "Every route works", "/relays": "every event has a relay",
			"/effects": "No effect waits for an operator", "/pauses": "Nothing is paused",
		} {
			r.shows(target, text)
		}
	})
}

func TestEveryPageShowsItsPart(t *testing.T) {
	onEachStore(t, func(t *testing.T, newScene scenes) {
		r := over(t, newScene(t, true), nil)
		for target, texts := range map[string][]string{
			"/events?state=dead":                 {"mail.requested", "312 NO_ROUTE", "order-42"},
			"/events?q=order-4242":               {"order.shipped", "retrying", "following", "found by key"},
			"/events?q=order/4201":               {"found by source"},
			"/events?q=order%2F4201&key=another": {"No such event"},
			"/events?q=checkout-4201":            {"found by correlation ID"},
			"/events?q=mail.requested":           {"found by topic"},
			"/messages?inbox=stock":              {"stock/reserve", "article 4711", "stock is being counted"},
			"/messages?state=dead":               {"article 4711"},
			"/dead":                              {">14<", "312 NO_ROUTE", "The errors differ in numbers only", "order.placed", "article 4711"},
			"/deferred":                          {"reminder.due", "in 2 h", "Move…"},
			"/routes":                            {"mail.requested", "refusing", "47 min", "boxpair declare --topic mail.requested --consumer …", "invoice.created", "paused by dana"},
			"/relays":                            {"64", "visible by their heartbeats"},
			"/consumers":                         {"stock/reserve", "stock/pay", "Pause…"},
			"/effects":                           {"uncertain", "payment provider", "Record the result…"},
			"/pauses":                            {"invoice.created", "by dana", "Pause something"},
			"/pauses?source=stock&kind=consumer&name=stock%2Fpay": {`value="stock/pay"`},
		} {
			r.shows(target, texts...)
		}
	})
}

func TestUnknownThingsAreNotFound(t *testing.T) {
	t.Parallel()
	r := over(t, newScene(t, true), nil)
	for target, want := range map[string]int{
		"/nothing": 404, "/events?outbox=other": 404, "/messages?inbox=other": 404, "/live?outbox=other": 404, "/live": 404,
		"/events/shop/4b9d2a51-0000-4000-8000-000000000000": 404, "/messages/4b9d2a51-0000-4000-8000-000000000000": 404,
		"/events/shop/x": 400, "/messages/x": 400, "/events?state=odd": 400, "/messages?state=odd": 400, "/effects?state=odd": 400,
		"/events?since=soon": 400, "/events?before=x": 400, "/messages?id=xyz": 400, "/deferred?after=x": 400, "/effects?after=x": 400, "/effects?inbox=other": 404, "/messages?after=x": 400,
	} {
		if status, _, body := r.do(http.MethodGet, target, nil, nil); status != want || !strings.Contains(body, "To the overview") && !strings.HasPrefix(target, "/live") {
			t.Errorf("%s: status %d, want %d", target, status, want)
		}
	}
}

// deadEvent returns the address of the page of a dead event.
func deadEvent(r *rig) string {
	r.Helper()
	return "/events/shop/" + firstOf(r, "").String()
}

func TestEventHasItsTimeline(t *testing.T) {
	onEachStore(t, func(t *testing.T, newScene scenes) {
		s := newScene(t, true)
		r := over(t, s, nil)
		r.shows(deadEvent(r), "<span>its attempts are used up</span>", "Written", "Returned", "relay "+"relay-7c5d9", "312 NO_ROUTE", "checkout-42", "order/42")

		parked, err := s.Inbox.ListParked(t.Context(), inboxDead)
		if err != nil || len(parked) == 0 {
			t.Fatal(parked, err)
		}
		id := parked[0].ID.String()
		r.shows("/events/shop/"+id, "Confirmed by the broker", "stock/reserve", "article 4711")
	})
}

func TestContentIsHiddenUnlessAsked(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	closed, open := over(t, s, nil), over(t, s, func(c *ops.Config) { c.Payloads = true })
	page := deadEvent(closed)
	if body := closed.shows(page, "Payload and headers are not shown"); strings.Contains(body, "ada@example.org") || strings.Contains(body, "tenant") {
		t.Error("the content is shown")
	}
	open.shows(page, "ada@example.org", "tenant", "north")
	if strings.Contains(closed.page("/effects"), "4990") {
		t.Error("the intent of an effect is shown")
	}
	open.shows("/effects", "4990")
}

const hostile = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x1b[31m\u202e{{.}}"

func TestHostileTextsAreOnlyText(t *testing.T) {
	t.Parallel()
	s := newScene(t, false)
	ctx := t.Context()
	if _, err := s.Write(ctx, hostile, hostile, 2, time.Time{}, hostile); err != nil {
		t.Fatal(err)
	}
	queued, err := s.Queued(ctx, 10)
	if err != nil || len(queued) != 2 {
		t.Fatal(queued, err)
	}
	for i := range queued {
		if err := s.Fail(ctx, &queued[i], 10, true, hostile); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Write(ctx, hostile, hostile, 1, time.Now().Add(time.Hour), hostile); err != nil {
		t.Fatal(err)
	}
	stalled := []outbox.StalledRoute{{Topic: hostile, Route: hostile, State: outbox.RouteRefusing, LastError: hostile}}
	if err := s.Store.ReportRelay(ctx, "<b>relay", outbox.Report{Stalled: stalled, StalledChanged: true}); err != nil {
		t.Fatal(err)
	}
	r := over(t, s, func(c *ops.Config) { c.Payloads, c.Title = true, hostile })
	escaped := "&lt;script&gt;"
	for _, target := range append(pages, deadEvent(r), "/events?q="+"%3Cscript%3Ealert(1)%3C/script%3E%22", "/pauses?source=shop&name=%22%3E%3Cscript%3Ealert(1)%3C/script%3E") {
		body := r.shows(target, escaped)
		for _, bad := range []string{"<script>alert", "<img", "\x1b", "\u202e"} {
			if strings.Contains(body, bad) {
				t.Errorf("%s has %q", target, bad)
			}
		}
	}
}

func TestMountedBelowAPath(t *testing.T) {
	t.Parallel()
	r := over(t, newScene(t, true), func(c *ops.Config) { c.Path = "/admin/ops/" })
	status, header, _ := r.do(http.MethodGet, "/admin/ops", nil, nil)
	if status != http.StatusMovedPermanently || header.Get("Location") != "/admin/ops/" {
		t.Errorf("without a slash: %d to %s", status, header.Get("Location"))
	}
	link := regexp.MustCompile(`(?:href|src|action|hx-get|data-chart)="([^"#?]*)`)
	for _, target := range pages {
		body := r.page("/admin/ops" + target)
		for _, m := range link.FindAllStringSubmatch(body, -1) {
			if !strings.HasPrefix(m[1], "/admin/ops/") && m[1] != "" {
				t.Errorf("%s links to %s", target, m[1])
			}
		}
		asset := regexp.MustCompile(`src="([^"]+app\.js)"`).FindStringSubmatch(body)
		if asset == nil {
			t.Fatalf("%s has no script", target)
		}
		if status, header, _ := r.do(http.MethodGet, asset[1], nil, nil); status != 200 || !strings.Contains(header.Get("Cache-Control"), "immutable") {
			t.Errorf("%s: status %d, %v", asset[1], status, header)
		}
	}
	if status, _, _ := r.do(http.MethodGet, "/elsewhere", nil, nil); status != http.StatusNotFound {
		t.Errorf("outside of the path: status %d", status)
	}
}

func TestSamplesHaveABound(t *testing.T) {
	t.Parallel()
	r := over(t, newScene(t, true), nil)
	for range 3 { // within a second: one sample
		var c struct {
			Times   []int64 `json:"times"`
			Waiting []int64 `json:"waiting"`
		}
		if err := json.Unmarshal([]byte(r.page("/live?outbox=shop")), &c); err != nil {
			t.Fatal(err)
		}
		if len(c.Times) != len(c.Waiting) || len(c.Times) == 0 || c.Waiting[0] != 11 {
			t.Errorf("samples are %+v", c)
		}
	}
}

// broken is an outbox whose database is down.
type broken struct{ ops.OutboxOperator }

func (broken) Stats(context.Context) (outbox.Stats, error) {
	return outbox.Stats{}, errors.New("dial tcp 10.0.0.5:5432: connection refused")
}

func TestBrokenOutboxDoesNotHideTheOthers(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	r := over(t, s, func(c *ops.Config) {
		c.Outboxes = append(c.Outboxes, ops.Outbox{Name: "billing", Operator: broken{s.Outbox}})
	})
	r.shows("/", "Something is stuck", "the outbox cannot be read", "connection refused", "17 events have used up all attempts")
	for _, target := range pages {
		r.page(target)
	}
	if status, _, _ := r.do(http.MethodGet, "/live?outbox=billing", nil, nil); status != http.StatusBadGateway {
		t.Errorf("live: status %d", status)
	}
}

func TestThemeIsKept(t *testing.T) {
	t.Parallel()
	r := over(t, newScene(t, false), nil)
	if strings.Contains(r.page("/"), "data-theme") {
		t.Error("a theme is chosen already")
	}
	if _, body := r.post("/theme", "theme", "dark", "back", "/dead"); !strings.Contains(body, `data-theme="dark"`) || !strings.Contains(body, "No dead letters") {
		t.Error("the theme is not dark on the page before")
	}
	for _, back := range []string{"//evil.example/", "https://evil.example/", `/\evil.example`} {
		_, header, _ := r.do(http.MethodPost, "/theme", map[string][]string{"theme": {"dark"}, "back": {back}}, nil)
		if got := header.Get("Location"); got != "/" {
			t.Errorf("%s leads to %s", back, got)
		}
	}
}

func TestTreeShowsWhatAnEventHasCaused(t *testing.T) {
	onEachStore(t, func(t *testing.T, newScene scenes) {
		s := newScene(t, true)
		r := over(t, s, nil)
		found, err := s.Inbox.SearchMessages(t.Context(), inbox.Query{Consumer: "stock/notify", Limit: 1})
		if err != nil || len(found.Messages) == 0 {
			t.Fatal(found, err)
		}
		r.shows("/events/shop/"+found.Messages[0].ID.String(), "What it has caused", "mail.sent", "written by stock/notify", "stock/notify: applied",
			">not done<", "not done, of 2 events: ")
		if strings.Contains(r.page(deadEvent(r)), "What it has caused") {
			t.Error("a dead event has a tree")
		}
	})
}

// TestEventSaysWhetherAllIsDone, also if it has caused nothing.
func TestEventSaysWhetherAllIsDone(t *testing.T) {
	onEachStore(t, func(t *testing.T, newScene scenes) {
		s := newScene(t, false)
		ctx := t.Context()
		r := over(t, s, nil)
		send := func(topic, payload string, reserve bool) string {
			t.Helper()
			ids, err := s.Write(ctx, topic, "", 1, time.Time{}, payload)
			if err != nil {
				t.Fatal(err)
			}
			queued, err := s.Queued(ctx, 10)
			if err != nil || len(queued) != 1 {
				t.Fatal(queued, err)
			}
			if reserve {
				s.Reserve(ctx, &queued[0])
			}
			if err := s.Deliver(ctx, queued); err != nil {
				t.Fatal(err)
			}
			return "/events/shop/" + ids[0].String()
		}
		r.shows(send("report.rendered", `{}`, false), ">done<", "The event is delivered. No consumer of this dashboard has it")
		r.shows(send("order.placed", `{}`, true), ">done<", "All is done: the event is delivered, and applied by stock/reserve.")
		r.shows(send("order.placed", `{}`, false), ">not done<", "1 not done, of 1 event: order.placed is missing at stock/reserve.", ">missing<", "It has earlier events of the topic, and not this one")
		r.shows(send("order.placed", `{"reject":true}`, true), ">not done<", "1 not done, of 1 event: order.placed is dead at stock/reserve.")
		if body := r.page(send("order.placed", `{}`, true)); strings.Contains(body, "What it has caused") {
			t.Error("an event that has caused nothing has a tree")
		}
	})
}

// plain is an outbox or an inbox without a search.
type plain struct{ ops.OutboxOperator }

type plainInbox struct{ ops.InboxOperator }

func TestWithoutSearchWhatWaitsIsShown(t *testing.T) {
	onEachStore(t, func(t *testing.T, newScene scenes) {
		s := newScene(t, true)
		r := over(t, s, func(c *ops.Config) {
			c.Outboxes = []ops.Outbox{{Name: "shop", Operator: plain{s.Outbox}}}
			c.Inboxes = []ops.Inbox{{Name: "stock", Operator: plainInbox{s.Inbox}}}
		})
		for target, texts := range map[string][]string{
			"/":                     {"17 events have used up all attempts", "stock/reserve"},
			"/events":               {"only parked and deferred events are listed", "mail.requested", "reminder.due"},
			"/events?state=dead":    {"mail.requested", "312 NO_ROUTE"},
			"/events?q=order-4242":  {"order.shipped", "found by key"},
			"/events?state=pending": {"No such event here"},
			"/messages":             {"only parked messages are listed", "article 4711"},
			"/dead":                 {">14<", "17 in 2 causes"},
			"/consumers":            {"only consumers of this process are known"},
			"/effects":              {"keeps no ledger of effects"},
		} {
			r.shows(target, texts...)
		}
		id := firstOf(r, "mail.requested").String()
		r.shows("/events/shop/"+id, "gave up after 10 attempts", "messages that were applied are not shown")
		if status, body := r.post("/dead/redrive", "source", "shop", "id", id, "scope", "cause", "reason", "x"); !strings.Contains(body, "14 of 14 were redriven.") {
			t.Errorf("redrive: status %d", status)
		}
	})
}

func TestManyDeadLettersAreCountedByCause(t *testing.T) {
	onEachStore(t, func(t *testing.T, newScene scenes) {
		s := newScene(t, false)
		ctx := t.Context()
		if _, err := s.Write(ctx, "charge", "", 600, time.Time{}, `{}`); err != nil {
			t.Fatal(err)
		}
		queued, err := s.Queued(ctx, 600)
		if err != nil || len(queued) != 600 {
			t.Fatal(len(queued), err)
		}
		for i := range queued {
			if err := s.Fail(ctx, &queued[i], 10, true, "declined"); err != nil {
				t.Fatal(err)
			}
		}
		over(t, s, func(c *ops.Config) { c.Outboxes = []ops.Outbox{{Name: "shop", Operator: plain{s.Outbox}}} }).shows("/dead", ">500<", "500 of 600 are grouped here")
		r := over(t, s, asDana)
		r.shows("/dead", ">600<", "600 in 1 cause", "See all 600", `href="/events?error=declined&amp;outbox=shop&amp;state=dead&amp;topic=charge"`)
		if status, body := r.post("/dead/discard", "source", "shop", "id", queued[7].ID.String(), "scope", "cause", "reason", "x"); !strings.Contains(r.goOn("/dead/discard", status, body), "600 of 600 were discarded.") {
			t.Errorf("status %d", status)
		}
	})
}

// reporting is an outbox whose relays report, and an inbox whose processes do.
type reporting struct{}

func (reporting) ListRelays(context.Context) ([]outbox.Relay, error) {
	started := time.Now().Add(-time.Hour)
	return []outbox.Relay{
		{Name: "relay-a", Shards: []int{0, 1, 2, 9}, ReportedAt: time.Now(), RelayReport: outbox.RelayReport{
			Host: "north-1", Version: "v1.9.0", StartedAt: started, Window: 1000, InFlight: 37, Sent: 123456, SentPerSecond: 81.4, MoreTopics: 5,
			Topics: []outbox.TopicReport{
				{Topic: "order.placed", Route: "orders", State: outbox.RouteWorking, Sent: 120000, SentPerSecond: 80},
				{Topic: "mail.requested", Route: "mails", State: outbox.RouteUnavailable, Since: time.Now().Add(-5 * time.Minute), LastError: "no answer"},
			},
		}},
		{Name: "relay-old", Shards: []int{3}},
	}, nil
}

func (reporting) ListHandlers(context.Context) ([]inbox.RunningHandler, error) {
	return []inbox.RunningHandler{{
		Process:       inbox.Process{Name: "stock-7f", Host: "south-2", Version: "v1.9.0"},
		HandlerReport: inbox.HandlerReport{Consumer: "stock/reserve", Waiting: new(54321), Window: 14 * 24 * time.Hour, InFlight: 4, Applied: 9876, Duplicates: 321, Failed: 12, CacheSize: 50000, CacheEntries: 1234, LastError: "out of stock"},
	}}, nil
}

func TestRunningHandlersAreShown(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	r := over(t, s, nil)
	r.shows("/consumers", "No process reports")
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Inbox.Run(ctx) }()
	begun := time.Now()
	for reported := false; !reported; {
		list, err := s.Inbox.ListHandlers(ctx)
		if err != nil || time.Since(begun) > time.Minute {
			t.Fatalf("no handler is listed: %v", err)
		}
		reported = len(list) > 0
	}
	host, _ := os.Hostname()
	over(t, s, nil).shows("/consumers", "since their start", host+" · "+host+"/"+strconv.Itoa(os.Getpid())+"/", " of 65,536 in memory<", "14 d")
	end()
	if err := <-done; err != nil {
		t.Error(err)
	}
	over(t, s, nil).shows("/consumers", "No process reports")
}

// unable is a part whose store cannot answer.
type unable struct{}

func (unable) ListRelays(context.Context) ([]outbox.Relay, error) { return nil, errors.ErrUnsupported }

func (unable) ListHandlers(context.Context) ([]inbox.RunningHandler, error) {
	return nil, errors.ErrUnsupported
}

func TestReportsOfRelaysAndProcessesAreShown(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	with := func(p any) *rig {
		return over(t, s, func(c *ops.Config) {
			c.Outboxes[0].Operator, c.Outboxes[0].Parts = plain{s.Outbox}, []any{p}
			c.Inboxes[0].Operator, c.Inboxes[0].Parts = plainInbox{s.Inbox}, []any{p}
		})
	}
	r := with(reporting{})
	r.shows("/relays", "relay-a", "north-1", "v1.9.0", "37 of 1,000", "123,456", "81.4", `title="0–2, 9"`, "shards 3; the relay has reported nothing more")
	r.shows("/consumers", "south-2", "stock-7f", "54,321", "9,876", "321", "1,234 of 50,000", "out of stock")
	body := r.shows("/routes", "order.placed", "working", "unavailable", "5 min", "120,000", "5 more topics are not listed")
	if strings.Index(body, "mail.requested</a>") > strings.Index(body, "order.placed</a>") {
		t.Error("what does not work is not first")
	}
	r = with(unable{})
	r.shows("/relays", "does not tell of its relays one by one")
	r.shows("/routes", "mail.requested", "refusing")
	if strings.Contains(r.page("/consumers"), "Processes") {
		t.Error("processes are shown that nobody tells of")
	}
}
