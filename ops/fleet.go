package ops

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxpair/boxpair/health"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/internal/text"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// deferredPage lists deferred events.
type deferredPage struct {
	Form    url.Values
	Sources []deferredSource
	None    bool
	// Soon is a time that fills in the form of a move.
	Soon string
}

type deferredSource struct {
	Outbox string
	Events []outbox.Deferred
	All    int64
	Next   string
	Err    string
}

func (h *Handler) deferred(r *http.Request) (view, error) {
	form := r.URL.Query()
	sources, err := h.outboxNamed(form.Get("outbox"))
	if err != nil {
		return view{}, err
	}
	f := outbox.DeferredFilter{Topic: form.Get("topic"), Key: form.Get("key"), Limit: perPage}
	if f.After, _, err = afterOf(form); err != nil {
		return view{}, err
	}
	p := deferredPage{Form: form, None: true, Soon: time.Now().UTC().Add(time.Hour).Format("2006-01-02T15:04")}
	for _, s := range sources {
		d := deferredSource{Outbox: s.Name}
		now, err := s.read(r.Context())
		if err == nil {
			d.All = now.Stats.Deferred
			d.Events, err = s.Operator.ListDeferred(r.Context(), f)
		}
		if err != nil {
			d.Err = err.Error()
		}
		if len(d.Events) == perPage {
			d.Next = h.link("/deferred", "outbox", s.Name, "topic", f.Topic, "key", f.Key, "after", d.Events[perPage-1].Seq)
		}
		p.None = p.None && err == nil && len(d.Events) == 0
		p.Sources = append(p.Sources, d)
	}
	return view{Page: "deferred", Title: "Deferred events", Data: p}, nil
}

// routesPage lists the topics of the relays: all topics if the relays report them, otherwise the topics
// to which relays cannot send.
type routesPage struct {
	Sources []routeSource
	None    bool
}

type routeSource struct {
	Outbox string
	Routes []routeRow
	Relays int
	// Heal are commands for topics whose events the broker refuses. Silent tells that a broker does
	// not answer.
	Heal   []string
	Silent bool
	// Told tells that the relays report every topic.
	Told bool
	More int
	Err  string
}

// routeRow is a topic at a relay.
type routeRow struct {
	Relay string
	outbox.TopicReport
	For time.Duration
}

func (h *Handler) routesPage(r *http.Request) (view, error) {
	p := routesPage{None: true}
	for _, s := range h.outboxes {
		now, err := s.read(r.Context())
		list := routeSource{Outbox: s.Name, Relays: now.Stats.Relays}
		list.Routes, list.Told, list.More = routeRows(&now)
		list.Heal, list.Silent = remedies(list.Routes)
		if err != nil {
			list.Err = err.Error()
		}
		p.None = p.None && err == nil && len(list.Routes) == 0
		p.Sources = append(p.Sources, list)
	}
	return view{Page: "routes", Title: "Topics and routes", Live: true, Data: p}, nil
}

// mostRoutes bounds the topics of an outbox that a page lists.
const mostRoutes = 200

// routeRows returns the topics that relays report, stalled topics first, and the number of further
// topics. A relay of an earlier version reports only stalled topics, and a report may be older than the
// list of stalled topics.
func routeRows(now *outboxState) (rows []routeRow, told bool, more int) {
	type at struct{ relay, topic string }
	reported := make(map[at]bool)
	for i := range now.Relays {
		relay := &now.Relays[i]
		if relay.ReportedAt.IsZero() {
			continue
		}
		told, more = true, more+relay.MoreTopics
		for _, t := range relay.Topics {
			reported[at{relay.Name, t.Topic}] = true
			row := routeRow{Relay: relay.Name, TopicReport: t}
			if !t.Since.IsZero() {
				row.For = now.At.Sub(t.Since)
			}
			rows = append(rows, row)
		}
	}
	for i := range now.Routes {
		if x := &now.Routes[i]; !reported[at{x.Relay, x.Topic}] {
			rows = append(rows, routeRow{x.Relay, outbox.TopicReport{Topic: x.Topic, Route: x.Route, State: x.State, LastError: x.LastError}, x.For})
		}
	}
	slices.SortStableFunc(rows, func(a, b routeRow) int {
		return cmp.Or(cmp.Compare(routeRank(a.State), routeRank(b.State)), cmp.Compare(b.SentPerSecond, a.SentPerSecond), strings.Compare(a.Topic, b.Topic))
	})
	if n := len(rows) - mostRoutes; n > 0 {
		rows, more = rows[:mostRoutes], more+n
	}
	return rows, told, more
}

// mostRemedies is how many commands a page prints.
const mostRemedies = 10

// remedies returns the commands that declare queues of refused topics, and whether a broker does not
// answer. The dashboard has no access to a broker, so it only prints the commands.
func remedies(rows []routeRow) (commands []string, silent bool) {
	for i := range rows {
		switch r := &rows[i]; r.State {
		case outbox.RouteRefusing:
			command := "boxpair declare --topic " + text.Quoted(r.Topic) + " --consumer …"
			if len(commands) < mostRemedies && !slices.Contains(commands, command) {
				commands = append(commands, command)
			}
		case outbox.RouteUnavailable:
			silent = true
		}
	}
	return commands, silent
}

func routeRank(s outbox.RouteState) int {
	return slices.Index([]outbox.RouteState{outbox.RouteRefusing, outbox.RouteUnavailable, outbox.RoutePaused, outbox.RouteWorking}, s)
}

// relaysPage lists the relays of outboxes.
type relaysPage struct {
	Sources []relaySource
}

type relaySource struct {
	Outbox string
	Now    outboxState
	Shards int
	// Orphans says which shards have no relay.
	Orphans string
	Err     string
}

func (h *Handler) relays(r *http.Request) (view, error) {
	p := relaysPage{}
	for _, s := range h.outboxes {
		now, err := s.read(r.Context())
		list := relaySource{Outbox: s.Name, Now: now, Shards: idgen.Shards, Orphans: now.orphans()}
		if err != nil {
			list.Err = err.Error()
		}
		p.Sources = append(p.Sources, list)
	}
	return view{Page: "relays", Title: "Relays", Live: true, Data: p}, nil
}

// ranges returns ascending numbers in short, as "0–3, 7".
func ranges(numbers []int) string {
	var parts []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		part := strconv.Itoa(numbers[i])
		if j > i {
			part += "–" + strconv.Itoa(numbers[j])
		}
		parts, i = append(parts, part), j+1
	}
	return strings.Join(parts, ", ")
}

// consumersPage lists the consumers of inboxes.
type consumersPage struct {
	Sources []consumerSource
}

type consumerSource struct {
	Inbox     string
	Consumers []consumerRow
	Handlers  []inbox.RunningHandler
	// Told tells that processes report their handlers.
	Told bool
	// Partly tells that only consumers with a handler in this process are known.
	Partly bool
	Err    string
}

type consumerRow struct {
	consumerState
	Report health.Report
}

func (h *Handler) consumers(r *http.Request) (view, error) {
	p := consumersPage{}
	for _, s := range h.inboxes {
		now, err := s.read(r.Context())
		list := consumerSource{Inbox: s.Name, Partly: s.registry == nil || s.counts == nil, Handlers: now.Handlers, Told: now.Handlers != nil}
		if err != nil {
			list.Err = err.Error()
		}
		for i := range now.Consumers {
			list.Consumers = append(list.Consumers, consumerRow{now.Consumers[i], h.cfg.Health.Inbox(now.Consumers[i].Stats)})
		}
		p.Sources = append(p.Sources, list)
	}
	return view{Page: "consumers", Title: "Consumers", Live: true, Data: p}, nil
}
