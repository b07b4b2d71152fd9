package producer

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// StalledRoute is a topic that a relay cannot send to at the moment: on its route nothing is sent but probes.
type StalledRoute struct {
	// Relay is the name of the relay. [RelayStore.ReportRoutes] does not use it.
	Relay string
	// Topic is the topic, and Route the name of its route, as of [transport.Sender].
	Topic, Route string
	// State tells whether the transport refuses what it is given or does not answer.
	State RouteState
	// For is how long ago the first failure after the last success was.
	For time.Duration
	// LastError is the last failure, in at most 1 KiB of valid UTF-8.
	LastError string
}

// RouteState is the state of a [StalledRoute].
type RouteState string

const (
	// RoutePaused routes refuse or return what they are given.
	RoutePaused RouteState = "paused"
	// RouteUnavailable routes do not answer, or nobody knows what became of what they were given.
	RouteUnavailable RouteState = "unavailable"
)

// ListRoutes reads which topics the relays that are visible cannot send to at the moment, by topic. It is as
// old as a heartbeat of theirs. A relay names a hundred topics at most.
func (o *Outbox[TX]) ListRoutes(ctx context.Context) ([]StalledRoute, error) {
	return o.store.ListRoutes(ctx)
}

// reporting is the part of the core that tells the database which routes do not work. It costs a statement when that
// has changed since the last heartbeat, and one when the relay starts: one of the same name may have left something.
type reporting struct {
	due     bool // there may be something to tell
	told    bool // something was
	written []StalledRoute
}

const (
	reportedRoutes = 100
	reportedName   = 1 << 10 // bytes
)

// reportCall tells what has changed since the last report, if anything.
func (c *relayCore) reportCall() *call {
	if !c.reporting.due || c.stopping {
		return nil
	}
	c.reporting.due = false
	routes := c.stalledRoutes()
	same := func(a, b StalledRoute) bool {
		a.For = b.For
		return a == b
	}
	if c.reporting.told && slices.EqualFunc(routes, c.reporting.written, same) {
		return nil
	}
	return &call{op: opReport, routes: routes}
}

// reported books a report. One that has failed is repeated after the next heartbeat, and holds up no lease.
func (c *relayCore) reported(cl *call) {
	c.reporting.told = cl.err == nil
	c.reporting.written = cl.routes
}

// stalledRoutes returns the topics of routes that do not work, those that have failed for longest if there are too many.
func (c *relayCore) stalledRoutes() []StalledRoute {
	if len(c.stalled) == 0 {
		return nil
	}
	var list []StalledRoute
	for topic, r := range c.topics {
		if !r.stalled() {
			continue
		}
		state := RoutePaused
		if r.down {
			state = RouteUnavailable
		}
		list = append(list, StalledRoute{
			Topic: topic, Route: bounded(r.name, reportedName), State: state, For: c.now - r.since, LastError: r.problem,
		})
	}
	slices.SortFunc(list, func(a, b StalledRoute) int {
		return cmp.Or(cmp.Compare(b.For, a.For), cmp.Compare(a.Topic, b.Topic))
	})
	return list[:min(len(list), reportedRoutes)]
}
