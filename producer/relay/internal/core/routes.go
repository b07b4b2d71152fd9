package core

import (
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// route is a way through the transport. Messages share it, so the failure of one message tells
// something about the next.
//
// A route works until an event on it is refused. Then the route is failing: refused events wait for
// proof that the route works for other events, a success, and only then count an attempt each. A
// success proves little on a queue at its limit, which takes some events as its consumers make
// room. So a refusal counts for certain while nearly all sends succeed, and below that by chance:
// so seldom that an event without a fault is delivered long before it is dead, while an event with
// a fault still dies. A refused event that does not count is sent again in a while. Sending goes on
// as long as there are other events to try. When none is left, or too many in a row were refused,
// and they had several keys, the route is paused: only probes are sent, one at a time, the event
// that has waited longest first. If only one key has failed, its refusals count attempts, or its
// one bad event would never be seen. A return does not: that nothing on the route takes messages
// says nothing about the event, and the topic may just be a quiet one.
//
// A route is unavailable when the transport could not tell the outcome of a message and nothing
// else succeeded meanwhile. It is probed with a backoff, and counts no attempts.
type route struct {
	name              string
	topics            []string // topics known to lead here
	batch, batchBytes int      // how many events of a key are sent as one batch, and how many bytes of payload

	routeQueues
	routeAnswers
	routeStall
	routeTurns
	limit   *rateLimit
	trouble repeats // log records about events that the route did not take
}

// routeQueues are the events of a route in memory; owners: keys, dispatch and routes.
type routeQueues struct {
	ready    entryQueue
	refused  entryQueue
	inflight int
	events   int  // not confirmed
	inRing   bool // in the ring of the dispatcher
	waiting  bool // for tokens of its limit, see rateLimit
	apart    bool // its events do not count for its limit, since they have places of their own
}

// routeAnswers is what the outcomes of sends have told about a route; owner: routes.
type routeAnswers struct {
	failing bool                        // an event was refused and none has succeeded since
	fails   int                         // refusals since the last success
	keys    map[failedKey]time.Duration // keys that failed since, and when last
	share   float64                     // share of successes among the last hundred or so outcomes
	againAt time.Duration               // when refused events that did not count are sent again, 0: there are none

	answeredAt time.Duration // when the route last answered, or was sent to with nothing in flight
	success    time.Duration // -1: never
	failed     time.Duration // time of the last failure, -1: never
	outcome    transport.Outcome
	problem    string
}

// routeStall is about a route on which only probes are sent; owner: routes.
type routeStall struct {
	paused   bool // by refusals
	down     bool
	pause    *control.Pause // by an operator; then there are no probes
	pausedAt time.Duration  // when the relay found the pause
	since    time.Duration  // time of the first failure after the last success
	downAt   time.Duration
	delay    time.Duration // between probes
	probeAt  time.Duration
	probe    int // number of the last probe
	reported bool
	evictAt  time.Duration // when surplus events leave memory
}

// routeTurns says which events of a stalled route are next in memory to be probed; owners: laps and
// due.
type routeTurns struct {
	// skippedIn are the shards, as bits, that may have skipped events of the route; skippedAgain
	// are the shards in which the current lap has skipped some again.
	skippedIn, skippedAgain uint64
	needsCandidates         bool                  // all events of the queue in memory were probed in vain
	lapTurns                map[int]turn[int64]   // of the skipped events, by shard
	dueTurn                 turn[outbox.DuePoint] // of parked events that are due
}

// failedKey names the key of an event. An event without a key is a key of its own.
type failedKey struct {
	key string
	seq int64
}

func (e *Entry) failedKey() failedKey {
	if e.Key == "" {
		return failedKey{seq: e.Seq}
	}
	return failedKey{key: e.Key}
}

const (
	pauseAfter  = 16                     // refusals in a row
	downFirst   = 100 * time.Millisecond // first pause of an unavailable route
	downLongest = 5 * time.Second
	downAlone   = 5 * time.Second // after which other routes are tried although one is unavailable
	maxRoutes   = 1024            // beyond which idle routes are forgotten

	evictInterval = 100 * time.Millisecond

	// silentAfter is how long a route with its share in flight may answer nothing before it is
	// unavailable. The answers may come much later, and meanwhile the waiting events take the
	// memory of other routes.
	silentAfter = time.Second

	// shareWindow is how many outcomes the share of successes looks back, and shareWell is the
	// share from which nearly all sends succeed.
	shareWindow = 128
	shareWell   = 7. / 8
)

// stalled tells whether at most probes are sent on the route.
func (r *route) stalled() bool { return r.paused || r.down || r.pause != nil }

// state returns the state of a stalled route.
func (r *route) state() outbox.RouteState {
	switch {
	case r.pause != nil:
		return outbox.RoutePaused
	case r.down:
		return outbox.RouteUnavailable
	default:
		return outbox.RouteRefusing
	}
}

// keepsBack tells whether events of the route wait in the database, except for a few.
func (r *route) keepsBack() bool { return r.stalled() || r.limit != nil }

// tokens is how many events may be sent by the route's limit.
func (r *route) tokens() int {
	if r.limit == nil {
		return math.MaxInt
	}
	return r.limit.tokens
}

// countLimited adds n to the events of the route's limit.
func (r *route) countLimited(n int) {
	if r.limit != nil && !r.apart {
		r.limit.events += n
	}
}

// spend spends tokens of the route's limit, if any.
func (r *route) spend(n int) {
	if r.limit != nil {
		r.limit.tokens -= n
	}
}

// routes judges the routes.
type routes struct {
	*Machine

	byTopic  map[string]*route
	byName   map[string]*route
	stalled  []*route      // paused or unavailable
	doubtful []*route      // failing
	success  time.Duration // when any event was last confirmed; -1: never
	sweepAt  int           // number of topics from which idle topics are forgotten
}

// enqueue puts a route with events to send into the ring.
func (rs *routes) enqueue(r *route) {
	switch {
	case r.inRing || r.stalled():
	case r.tokens() <= 0:
		r.limit.await(r)
	default:
		r.inRing = true
		rs.dispatch.ring = append(rs.dispatch.ring, r)
	}
}

// stall takes note that only probes are sent on r from now on.
func (rs *routes) stall(r *route) {
	if !slices.Contains(rs.stalled, r) {
		rs.stalled = append(rs.stalled, r)
		r.countLimited(-r.events)
		r.apart = true
	}
}

// refuse books an event that was refused or returned on its route.
func (rs *routes) refuse(e *Entry) {
	r := e.route
	rs.failing(e)
	rs.routeLog.trouble("event not taken by the transport", e)
	r.share -= r.share / shareWindow
	e.state = entryRefused
	r.refused.push(e)
	if r.down { // a refusal is an answer, too
		r.down = false
		rs.unstall(r)
	}
}

// failing takes note that e has failed on its route.
func (rs *routes) failing(e *Entry) {
	r := e.route
	r.failed, r.outcome, r.problem = rs.now, e.outcome, e.problem
	r.fails++
	if !r.failing {
		r.failing, r.keys = true, make(map[failedKey]time.Duration)
		rs.doubtful = append(rs.doubtful, r)
		if !r.down {
			r.since = rs.now
		}
	}
	if len(r.keys) < rs.limits.stall {
		r.keys[e.failedKey()] = rs.now
	}
	if r.paused {
		r.delay = min(2*r.delay, rs.cfg.RouteProbeInterval)
		r.probeAt = rs.now + r.delay
	}
}

// judge decides what the refusals on a route mean, once no send in flight can tell any more.
func (rs *routes) judge(r *route) {
	if r.down || r.pause != nil {
		return
	}
	one := rs.oneKey(r)
	if !r.paused && !one && r.fails >= pauseAfter {
		rs.pauseSending(r)
		return
	}
	if r.againAt > 0 && !r.paused {
		rs.tryAgain(r)
		return
	}
	if r.inflight > 0 || r.ready.n > 0 || r.refused.n == 0 {
		return
	}
	switch {
	case one:
		r.paused = false
		rs.unstall(r)
		rs.countRefused(r)
	case !r.paused:
		rs.pauseSending(r)
	}
}

// oneKey tells whether all failures on r are refusals of one key. A key that failed and did not
// come back after its backoff may have been settled by an operator, and does not count.
func (rs *routes) oneKey(r *route) bool {
	if r.skippedIn != 0 || r.refused.n > 1 || r.refused.n == 1 && r.refused.first.outcome == transport.Returned {
		return false
	}
	keys := 0
	for _, at := range r.keys {
		if rs.now-at <= rs.cfg.Backoff.Max+2*rs.cfg.RouteProbeInterval {
			keys++
		}
	}
	return keys <= 1
}

// countRefused counts an attempt of every event that was refused on r.
func (rs *routes) countRefused(r *route) {
	for e := r.refused.pop(); e != nil; e = r.refused.pop() {
		rs.dispatch.fail(e)
	}
}

// countRefusals counts attempts of refused events, as far as they are to blame. If room on the
// route is scarce, every waiting event is as likely to get the next place. Then only one success in
// four counts a refusal of one of them: an event without a fault is delivered first four times in
// five, and has ten attempts counted once in ten million times.
func (rs *routes) countRefusals(r *route) {
	chance := 1 / float64(4*(1+r.refused.n))
	for e := r.refused.first; e != nil; {
		next := e.qnext
		if r.share >= shareWell || rs.rand.Float64() < chance {
			rs.dispatch.fail(e)
		}
		e = next
	}
}

// tryAgain sends refused events that did not count again, when it is time.
func (rs *routes) tryAgain(r *route) {
	if rs.now < r.againAt {
		rs.at(r.againAt)
		return
	}
	r.againAt = 0
	for e := r.refused.pop(); e != nil; e = r.refused.pop() {
		rs.keys.place(e)
	}
}

func (rs *routes) pauseSending(r *route) {
	r.paused, r.againAt = true, 0
	r.delay = max(rs.cfg.RouteProbeInterval/8, 1)
	r.probeAt = rs.now + r.delay
	for _, e := range r.candidates() {
		e.probe = 0
	}
	rs.stall(r)
	rs.notifyRoute(NoticeStalled, r)
	rs.routeLog.route(slog.LevelWarn, "route stalled: nothing on it succeeds", r,
		slog.String("outcome", r.outcome.String()), slog.String("error", r.problem))
	rs.evictSurplusOf(r)
}

// detectSilent calls routes that answer nothing unavailable.
func (rs *routes) detectSilent() {
	if len(rs.byName) < 2 {
		return // no other route waits
	}
	for _, r := range rs.dispatch.ring {
		if r.down || r.inflight == 0 || r.inflight < rs.dispatch.routeRoom() {
			continue
		}
		if at := r.answeredAt + silentAfter; rs.now < at {
			rs.at(at)
			continue
		}
		r.outcome, r.problem = transport.Unavailable, "the transport answers nothing"
		r.down, r.downAt, r.delay, r.probeAt = true, rs.now, downFirst, rs.now
		if !r.paused {
			r.since = rs.now
		}
		rs.stall(r)
		rs.notifyRoute(NoticeStalled, r)
		rs.routeLog.route(slog.LevelWarn, "route unavailable", r, slog.String("error", r.problem))
	}
}

// unavailable books an event with an unknown outcome. If nothing has succeeded on its route since
// it was sent, the route is unavailable.
func (rs *routes) unavailable(e *Entry) {
	r := e.route
	r.failed, r.outcome, r.problem = rs.now, e.outcome, e.problem
	if r.success > e.sentAt {
		return
	}
	switch {
	case !r.down:
		r.down, r.downAt, r.delay = true, rs.now, downFirst
		if !r.paused {
			r.since = rs.now
			rs.notifyRoute(NoticeStalled, r)
		}
		rs.stall(r)
		rs.routeLog.route(slog.LevelWarn, "route unavailable", r, slog.String("error", r.problem))
	case e.sentAt < r.downAt:
		return // sent before the route was called unavailable
	default:
		r.delay = min(2*r.delay, downLongest)
	}
	r.probeAt = rs.now + r.delay/2 + time.Duration(rs.rand.Int64N(int64(r.delay)/2))
}

// works books a success on r, and counts attempts of the events refused meanwhile.
func (rs *routes) works(r *route) {
	rs.success, r.success = rs.now, rs.now
	r.fails = 0
	r.share += (1 - r.share) / shareWindow
	if r.failing {
		rs.countRefusals(r)
		r.failing = r.refused.n > 0
		clear(r.keys)
		if r.failing && r.againAt == 0 {
			r.againAt = rs.now + rs.cfg.RouteProbeInterval/8
		}
	}
	if !r.paused && !r.down {
		return
	}
	rs.dispatch.probes.left++
	rs.notifyRoute(NoticeWorks, r)
	rs.routeLog.route(slog.LevelInfo, "route works again", r, slog.Duration("after", rs.now-r.since))
	r.paused, r.down = false, false
	rs.unstall(r)
}

// unstall takes note that r is sent on like any other route.
func (rs *routes) unstall(r *route) {
	if r.stalled() {
		return
	}
	if r.apart {
		r.apart = false
		r.countLimited(r.events)
	}
	r.reported = false
	rs.stalled = slices.DeleteFunc(rs.stalled, func(other *route) bool { return other == r })
	if r.ready.n > 0 {
		rs.enqueue(r)
	}
	if r.limit == nil {
		rs.laps.hurry(r)
	} else { // laps bring its events as it needs them
		r.limit.skippedIn |= r.skippedIn
		r.skippedIn, r.skippedAgain = 0, 0
	}
	rs.due.restart()
}

// update judges failing routes, reports stalled routes on which nothing has succeeded for too long,
// and unstalls routes without events left to try.
func (rs *routes) update() {
	rs.detectSilent()
	rs.doubtful = slices.DeleteFunc(rs.doubtful, func(r *route) bool {
		if r.failing {
			rs.judge(r)
		}
		return !r.failing
	})
	for _, r := range slices.Clone(rs.stalled) {
		if r.events == 0 && r.inflight == 0 && r.skippedIn == 0 {
			r.paused, r.down, r.failing, r.keys = false, false, false, nil
			r.lapTurns, r.dueTurn = nil, turn[outbox.DuePoint]{}
			rs.unstall(r)
			continue
		}
		if r.reported || r.pause != nil {
			continue
		}
		if reportAt := r.since + rs.cfg.RouteGrace; rs.now < reportAt {
			rs.at(reportAt)
			continue
		}
		r.reported = true
		rs.routeLog.route(slog.LevelError, "nothing on the route has succeeded for its grace period", r,
			slog.Duration("for", rs.now-r.since), slog.String("outcome", r.outcome.String()), slog.String("error", r.problem))
	}
}
