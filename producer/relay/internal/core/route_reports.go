package core

import (
	"cmp"
	"slices"

	"github.com/boxpair/boxpair/internal/text"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/store/outbox"
)

// routeReports reports routes that do not work to the database. A report costs a statement when the
// list has changed since the last heartbeat, and one when the relay starts: an earlier relay of its
// name may have left a list.
type routeReports struct {
	*Machine

	due     bool // the list may have changed
	sent    bool // a report has succeeded
	written []outbox.StalledRoute
}

const (
	reportedRoutes = 100
	reportedName   = 1 << 10 // bytes
)

// call reports the list if it has changed since the last report.
func (rp *routeReports) call() *Call {
	if !rp.due || rp.stopping {
		return nil
	}
	rp.due = false
	routes := rp.list()
	same := func(a, b outbox.StalledRoute) bool {
		a.For = b.For
		return a == b
	}
	if rp.sent && slices.EqualFunc(routes, rp.written, same) {
		return nil
	}
	return ask(&statement.Report{Routes: routes})
}

// reported books a report. A failed report is repeated after the next heartbeat, and holds up no
// lease.
func (rp *routeReports) reported(cl *Call) {
	rp.sent = cl.Err == nil
	rp.written = cl.Statement.(*statement.Report).Routes
}

// list returns the topics of routes that do not work, only those that have failed longest if there
// are too many.
func (rp *routeReports) list() []outbox.StalledRoute {
	if len(rp.routes.stalled) == 0 && len(rp.pauses.list) == 0 {
		return nil
	}
	var list []outbox.StalledRoute
	for topic, r := range rp.routes.byTopic {
		if !r.stalled() {
			continue
		}
		s := outbox.StalledRoute{
			Topic: topic, Route: text.Clean(r.name, reportedName), State: r.state(), For: rp.now - r.since, LastError: r.problem,
		}
		if r.pause != nil {
			s.For, s.LastError = rp.now-r.pausedAt, text.Clean(r.pause.String(), reportedName)
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b outbox.StalledRoute) int {
		return cmp.Or(cmp.Compare(b.For, a.For), cmp.Compare(a.Topic, b.Topic))
	})
	return list[:min(len(list), reportedRoutes)]
}
