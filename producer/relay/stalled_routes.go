package relay

import (
	"cmp"
	"slices"

	"github.com/boxpair/boxpair/store/outbox"
)

// reporting is the part of the core that tells the database which routes do not work. It costs a
// statement when that has changed since the last heartbeat, and one when the relay starts: one of
// the same name may have left something.
type reporting struct {
	due     bool // there may be something to tell
	told    bool // something was
	written []outbox.StalledRoute
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
	same := func(a, b outbox.StalledRoute) bool {
		a.For = b.For
		return a == b
	}
	if c.reporting.told && slices.EqualFunc(routes, c.reporting.written, same) {
		return nil
	}
	return ask(statement{op: opReport, routes: routes})
}

// reported books a report. One that has failed is repeated after the next heartbeat, and holds up
// no lease.
func (c *relayCore) reported(cl *call) {
	c.reporting.told = cl.err == nil
	c.reporting.written = cl.routes
}

// stalledRoutes returns the topics of routes that do not work, those that have failed for longest
// if there are too many.
func (c *relayCore) stalledRoutes() []outbox.StalledRoute {
	if len(c.stalled) == 0 {
		return nil
	}
	var list []outbox.StalledRoute
	for topic, r := range c.topics {
		if !r.stalled() {
			continue
		}
		state := outbox.RoutePaused
		if r.down {
			state = outbox.RouteUnavailable
		}
		list = append(list, outbox.StalledRoute{
			Topic: topic, Route: bounded(r.name, reportedName), State: state, For: c.now - r.since, LastError: r.problem,
		})
	}
	slices.SortFunc(list, func(a, b outbox.StalledRoute) int {
		return cmp.Or(cmp.Compare(b.For, a.For), cmp.Compare(a.Topic, b.Topic))
	})
	return list[:min(len(list), reportedRoutes)]
}
