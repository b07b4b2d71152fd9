package ops

import (
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/boxpair/boxpair/health"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/control"
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
	if after := form.Get("after"); after != "" {
		if f.After, err = strconv.ParseInt(after, 10, 64); err != nil {
			return view{}, &failure{http.StatusBadRequest, "After: want a number."}
		}
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

// routesPage lists the topics to which relays cannot send.
type routesPage struct {
	Sources []routeSource
	None    bool
}

type routeSource struct {
	Outbox string
	Routes []outbox.StalledRoute
	Relays int
	Err    string
}

func (h *Handler) routesPage(r *http.Request) (view, error) {
	p := routesPage{None: true}
	for _, s := range h.outboxes {
		now, err := s.read(r.Context())
		list := routeSource{Outbox: s.Name, Routes: now.Routes, Relays: now.Stats.Relays}
		if err != nil {
			list.Err = err.Error()
		}
		p.None = p.None && err == nil && len(now.Routes) == 0
		p.Sources = append(p.Sources, list)
	}
	return view{Page: "routes", Title: "Topics and routes", Live: true, Data: p}, nil
}

// relaysPage shows who sends the events.
type relaysPage struct {
	Sources []relaySource
}

type relaySource struct {
	Outbox string
	Now    outboxState
	Shards int
	Report health.Report
	Err    string
}

func (h *Handler) relays(r *http.Request) (view, error) {
	p := relaysPage{}
	for _, s := range h.outboxes {
		now, err := s.read(r.Context())
		list := relaySource{Outbox: s.Name, Now: now, Shards: idgen.Shards, Report: now.report(h.cfg.Health)}
		if err != nil {
			list.Err = err.Error()
		}
		p.Sources = append(p.Sources, list)
	}
	return view{Page: "relays", Title: "Relays", Live: true, Data: p}, nil
}

// consumersPage lists the consumers of inboxes.
type consumersPage struct {
	Sources []consumerSource
}

type consumerSource struct {
	Inbox     string
	Consumers []consumerRow
	Pauses    []control.Pause
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
		list := consumerSource{Inbox: s.Name, Pauses: now.Pauses, Partly: s.registry == nil || s.counts == nil}
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
