package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/boxpair/boxpair/health"
	"github.com/boxpair/boxpair/producer/relay"
)

// serve serves handler at listener until stop is called. stop waits for the goroutine.
func serve(listener net.Listener, handler http.Handler) (stop func()) {
	const most = 15 * time.Second // a scrape reads databases
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: most, WriteTimeout: most}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener) // it ends with Close
	}()
	return func() {
		_ = server.Close() // running requests are cut off
		<-ended
	}
}

// serve serves the health of the relays until stop is called; without --listen it does nothing.
func (r *relaying) serve(ctx context.Context, log *slog.Logger, c *crew) (stop func(), err error) {
	if r.listen == "" {
		return func() {}, nil
	}
	bounds, err := r.bounds(c)
	if err != nil {
		return nil, err
	}
	pages, err := r.pages(ctx, log, c)
	if err != nil {
		return nil, fmt.Errorf("--dashboard: %w", err)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", r.listen)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	log.InfoContext(ctx, "health is served", "address", listener.Addr().String())
	mux := http.NewServeMux()
	mux.Handle("/", health.Handler(c.running, append([]health.Probe{func(context.Context) []string { return r.problems(c) }}, bounds...)...))
	if c.metrics != nil {
		mux.Handle("GET /metrics", c.metrics)
	}
	if pages != nil {
		mux.Handle(dashboardPath+"/", pages)
		log.InfoContext(ctx, "dashboard is served", "address", "http://"+listener.Addr().String()+dashboardPath+"/")
	}
	return serve(listener, mux), nil
}

// dashboardPath is where a relay serves the dashboard: /healthz, /readyz and /metrics are beside it.
const dashboardPath = "/ui"

// pages returns the dashboard of the relays' outboxes, or nil without --dashboard. The dashboard has
// connections of its own: an expensive page does not keep a relay waiting. No I/O happens before the first
// page, except for SQLite, so a relay starts while its database is down.
func (r *relaying) pages(ctx context.Context, log *slog.Logger, c *crew) (http.Handler, error) {
	if !r.dashboard {
		return nil, nil
	}
	var all []*operators
	for i := range r.outboxes {
		t := r.outboxes[i]
		if t.pool != nil {
			t.pool = t.pool.Copy()
			t.pool.MaxConns = connectionsOfPages
		}
		s, end, err := attach(context.WithoutCancel(ctx), &t, &r.places) // the store is closed after the relay has ended
		if err != nil {
			return nil, err
		}
		c.ends = append(c.ends, end)
		s.named("outbox", &t, &r.places)
		all = append(all, s)
	}
	r.looks.page.Path = dashboardPath
	return r.looks.handler(all, log)
}

// connectionsOfPages is the maximal number of connections of a relay's dashboard to an outbox.
const connectionsOfPages = 4

// serving declares the settings of what the relay serves beside its health.
func (r *relaying) serving(s *settings) {
	s.duration(&r.unreadyAge, "unready-age", "the age of the oldest waiting event from which on /readyz answers 503. Defaults to none: readiness would flap\n"+
		"with the load, and a relay that is not ready sends all the same.")
	s.count(&r.unreadyDead, "unready-dead", "the number of dead events of an outbox from which on /readyz answers 503. Defaults to none.")
	s.on(&r.dashboard, "dashboard", "serve the dashboard of the outboxes at /ui/ of --listen, with --token, --write, --payloads and --title as in\n"+
		"boxpair ui. It needs the privileges of the role monitor, and for changes of the role operator.")
	r.looks.define(s)
}

// checkServing checks the settings of serving.
func (r *relaying) checkServing() error {
	var errs []error
	for _, one := range []struct {
		name  string
		given bool
	}{{"dashboard", r.dashboard}, {"unready-age", r.unreadyAge > 0}, {"unready-dead", r.unreadyDead > 0}} {
		if one.given && r.listen == "" {
			errs = append(errs, fmt.Errorf("--%s (or %s): needs --listen", one.name, envOf(one.name)))
		}
	}
	return errors.Join(errs...)
}

// bounds returns probes of --unready-age and --unready-dead for the outboxes.
func (r *relaying) bounds(c *crew) ([]health.Probe, error) {
	if r.unreadyAge == 0 && r.unreadyDead == 0 {
		return nil, nil
	}
	age, dead := r.unreadyAge, r.unreadyDead
	if age == 0 {
		age = math.MaxInt64
	}
	if dead == 0 {
		dead = math.MaxInt
	}
	check, err := health.New(health.Config{DegradedAge: age, UnhealthyAge: age, DegradedDead: dead, UnhealthyDead: dead})
	if err != nil {
		return nil, err
	}
	list := make([]health.Probe, len(c.stores))
	for i, store := range c.stores {
		list[i] = health.OutboxReady(c.outboxes[i], check, store)
	}
	return list, nil
}

// running tells whether every relay runs.
func (c *crew) running() bool {
	return !slices.ContainsFunc(c.relays, func(one *relay.Relay) bool { return !one.Health().Running })
}

// problems returns why the relays are not ready; each names its outbox if there are several.
func (r *relaying) problems(c *crew) []string {
	brokers := make([]health.Connection, len(c.posts))
	for i, p := range c.posts {
		h := p.Health()
		brokers[i] = health.Connection{Name: p.name, Connected: h.Connected, Err: h.Err}
	}
	all := []string{}
	for i, one := range c.relays {
		for _, problem := range health.Relay(one.Health(), r.config.PollMax, brokers...) {
			if len(c.relays) > 1 {
				problem = c.outboxes[i] + ": " + problem
			}
			all = append(all, problem)
		}
	}
	return all
}
