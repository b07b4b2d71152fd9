package core

import (
	"cmp"
	"log/slog"
	"reflect"
	"slices"
	"time"

	"github.com/boxpair/boxpair/internal/text"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/store/outbox"
)

// reports reports the relay to the database: what it does, and which routes do not work. A report
// costs a statement when something has changed since the last heartbeat, and one when the relay
// starts: an earlier relay of its name may have left a list of routes. A report holds up neither
// sending nor leases, however long it takes.
type reports struct {
	*Machine

	due     bool // a heartbeat was answered, or the routes may have changed
	busy    bool
	fails   int
	retry   time.Duration     // no report before this time, after a failure
	written *statement.Report // by the last report; nil: unknown
	sent    sentCount         // of all topics
	byTopic map[string]*sentCount
	beatAt  time.Duration // of the last heartbeat
}

// sentCount counts confirmed events.
type sentCount struct {
	total     int64
	before    int64   // total at the last heartbeat
	perSecond float64 // between the last two heartbeats
}

const (
	reportedRoutes  = 100
	reportedTopics  = 1000
	reportedErrors  = 100     // topics beyond tell no error
	reportedName    = 1 << 10 // bytes
	reportPauseMost = time.Minute
)

// count books n confirmed events of a topic.
func (rp *reports) count(topic string, n int64) {
	rp.sent.total += n
	c := rp.byTopic[topic]
	if c == nil {
		c = new(sentCount)
		rp.byTopic[topic] = c
	}
	c.total += n
}

// beat asks for a report after a heartbeat, and computes the rates.
func (rp *reports) beat() {
	rp.due = true
	passed := (rp.now - rp.beatAt).Seconds()
	rp.beatAt = rp.now
	if passed <= 0 {
		return
	}
	rp.sent.beat(passed)
	for topic, c := range rp.byTopic {
		c.beat(passed)
		if rp.routes.byTopic[topic] == nil { // idle, and forgotten
			delete(rp.byTopic, topic)
		}
	}
}

func (c *sentCount) beat(seconds float64) {
	c.perSecond = float64(c.total-c.before) / seconds
	c.before = c.total
}

// plan reports what has changed since the last report.
func (rp *reports) plan() {
	if !rp.due || rp.busy || rp.stopping {
		return
	}
	if rp.now < rp.retry {
		rp.at(rp.retry)
		return
	}
	rp.due = false
	s := &statement.Report{Report: outbox.Report{RelayReport: rp.relay(), Stalled: rp.stalled(), StalledChanged: true}}
	if before := rp.written; before != nil {
		s.StalledChanged = !slices.EqualFunc(s.Stalled, before.Stalled, func(a, b outbox.StalledRoute) bool {
			a.For = b.For
			return a == b
		})
		old := before.RelayReport
		old.At = s.At
		if !s.StalledChanged && reflect.DeepEqual(s.RelayReport, old) {
			return
		}
	}
	rp.busy = true
	rp.issue(ask(s))
}

// reply books a report. After a failure, the relay goes on without reports, and tries less and less
// often.
func (rp *reports) reply(cl *Call) {
	rp.busy = false
	if cl.Err == nil {
		rp.written, rp.fails, rp.retry = cl.Statement.(*statement.Report), 0, 0
		return
	}
	rp.written, rp.due = nil, true
	rp.retry = rp.now + min(reportPauseMost, rp.cfg.LeaseTTL/3<<min(rp.fails, 10))
	if rp.fails++; rp.fails == 1 {
		rp.note(slog.LevelWarn, "the relay cannot write its report for operators, and goes on without it; are all migrations applied, and may this user update the relay's row?",
			slog.String("error", storedError(cl.Err)))
	}
}

// relay returns what the relay tells of itself.
func (rp *reports) relay() outbox.RelayReport {
	at := func(d time.Duration) time.Time { return rp.cfg.Origin.Add(d) }
	r := outbox.RelayReport{
		At: at(rp.now), Host: rp.cfg.Host, Version: rp.cfg.Version, StartedAt: rp.cfg.Origin,
		Window: rp.cfg.Window, InFlight: rp.dispatch.inflight, Waiting: rp.keys.buffered - rp.dispatch.inflight,
		Unmarked: len(rp.marks.pending) + rp.marks.underway,
		Sent:     rp.sent.total, SentPerSecond: rp.sent.perSecond, Failed: int64(rp.report.Failed),
		Topics: make([]outbox.TopicReport, 0, len(rp.routes.byTopic)),
	}
	if sent, ok := rp.dispatch.unanswered.oldest(); ok {
		r.OldestInFlight = at(sent)
	}
	if rp.routes.success >= 0 {
		r.LastConfirm = at(rp.routes.success)
	}
	for topic, of := range rp.routes.byTopic {
		t := outbox.TopicReport{
			Topic: topic, Route: text.Clean(of.name, reportedName), State: outbox.RouteWorking, LastError: of.problem,
			RouteInFlight: of.inflight, RouteWaiting: of.events - of.inflight,
		}
		if of.stalled() {
			var since time.Duration
			t.State = of.state()
			since, t.LastError = of.stalledSince()
			t.Since = at(since)
		}
		if c := rp.byTopic[topic]; c != nil {
			t.Sent, t.SentPerSecond = c.total, c.perSecond
		}
		r.Topics = append(r.Topics, t)
	}
	slices.SortFunc(r.Topics, func(a, b outbox.TopicReport) int {
		return cmp.Or(stalledFirst(a, b), cmp.Compare(b.SentPerSecond, a.SentPerSecond), cmp.Compare(b.Sent, a.Sent), cmp.Compare(a.Topic, b.Topic))
	})
	if r.MoreTopics = max(0, len(r.Topics)-reportedTopics); r.MoreTopics > 0 {
		r.Topics = slices.Clip(r.Topics[:reportedTopics])
	}
	for i := reportedErrors; i < len(r.Topics); i++ {
		r.Topics[i].LastError = ""
	}
	return r
}

// stalledFirst orders topics that work behind the others, the longest stalled first.
func stalledFirst(a, b outbox.TopicReport) int {
	if a.Since.IsZero() || b.Since.IsZero() {
		return -a.Since.Compare(b.Since)
	}
	return a.Since.Compare(b.Since)
}

// stalled returns the topics of routes that do not work, only those that have failed longest if
// there are too many.
func (rp *reports) stalled() []outbox.StalledRoute {
	if len(rp.routes.stalled) == 0 && len(rp.pauses.list) == 0 {
		return nil
	}
	var list []outbox.StalledRoute
	for topic, r := range rp.routes.byTopic {
		if !r.stalled() {
			continue
		}
		since, problem := r.stalledSince()
		list = append(list, outbox.StalledRoute{
			Topic: topic, Route: text.Clean(r.name, reportedName), State: r.state(), For: rp.now - since, LastError: problem,
		})
	}
	slices.SortFunc(list, func(a, b outbox.StalledRoute) int {
		return cmp.Or(cmp.Compare(b.For, a.For), cmp.Compare(a.Topic, b.Topic))
	})
	return list[:min(len(list), reportedRoutes)]
}

// stalledSince returns since when a stalled route does not work, and why.
func (r *route) stalledSince() (since time.Duration, problem string) {
	if r.pause != nil {
		return r.pausedAt, text.Clean(r.pause.String(), reportedName)
	}
	return r.since, r.problem
}
