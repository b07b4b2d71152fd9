package relay

import (
	"log/slog"
	"slices"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// route is what messages share on their way through the transport, so that a
// failure of one tells something about the next.
//
// A route works until something on it is refused. Then it is failing: what was refused waits for
// proof that the route works for others, which is a success on it, and only then counts an attempt.
// A queue at its limit refuses some and takes others as its consumers make room: a success proves
// little then. So a refusal counts for certain while nearly everything else succeeds, and below
// that by chance, so seldom that an event without a fault is delivered long before it is dead, and
// one with a fault dies nevertheless. One that does not count is sent again in a while. As long as
// there are other events to try, sending goes on. When there are none left, or too many were
// refused in a row, and they were of several keys, the route is paused: nothing is sent but probes,
// one at a time, the events that were probed least first and the oldest among those. If only one
// key has failed, its refusal counts attempts, or its one bad event would never be seen. A return
// never does: that nothing on the route takes messages says nothing about the event, and the topic
// may just be a quiet one.
//
// A route is unavailable when the transport could not tell what became of a
// message and nothing else came through meanwhile. It is probed with a backoff, and counts nothing.
type route struct {
	name              string
	topics            []string // that are known to lead here
	batch, batchBytes int      // how many events of a key are sent as one, and with how large payloads
	ready             entryQueue
	refused           entryQueue
	inflight          int
	events            int  // in memory, not confirmed
	ringed            bool // in the core's ring

	failing bool                        // something was refused and nothing has succeeded since
	fails   int                         // refusals since the last success
	keys    map[failedKey]time.Duration // that failed since, and when last

	paused  bool
	down    bool
	since   time.Duration // of the first failure after the last success
	downAt  time.Duration
	delay   time.Duration // between probes while down
	probeAt time.Duration

	heard    time.Duration // when something on it was last answered, or the first of what is in flight sent
	success  time.Duration // -1: never
	failed   time.Duration // the last failure, -1: never
	outcome  transport.Outcome
	problem  string
	reported bool
	share    float64       // of successes among the last hundred or so outcomes
	againAt  time.Duration // when to send again what was refused and did not count, 0: nothing was
	trouble  repeats       // records about what it has not taken

	// left are the shards, as bits, that may have events of the route which were passed over, and
	// again those in which the lap that is under way has passed some over. hungry tells that all in
	// memory were probed in vain.
	left, again uint64
	hungry      bool
	dueFrom     outbox.DuePoint // parked events that are due were admitted up to here …
	dueTook     bool            // … by the pass that is under way, too

	shedAt time.Duration
}

// failedKey tells events of one key from others: an event without one is a key of its own.
type failedKey struct {
	key string
	seq int64
}

func (e *entry) failedKey() failedKey {
	if e.Key == "" {
		return failedKey{seq: e.Seq}
	}
	return failedKey{key: e.Key}
}

const (
	pauseAfter  = 16                     // refusals in a row
	downFirst   = 100 * time.Millisecond // first pause of an unavailable route
	downLongest = 5 * time.Second
	downAlone   = 5 * time.Second // after which an unavailable route is not believed to stand for all
	maxRoutes   = 1024            // beyond which idle ones are forgotten

	shedInterval = 100 * time.Millisecond

	// silentAfter is how long a route with its share in flight may answer nothing before
	// it is unavailable. What is in flight may come back much later, and what
	// waits behind it takes the memory of other routes meanwhile.
	silentAfter = time.Second

	// shareWindow is how many outcomes the share of successes looks back, and shareWell
	// what it is while nearly everything succeeds.
	shareWindow = 128
	shareWell   = 7. / 8
)

// stalled tells whether only probes are sent on the route.
func (r *route) stalled() bool { return r.paused || r.down }

// routeFor returns the route of a topic.
func (c *relayCore) routeFor(topic string) *route {
	r := c.topics[topic]
	if r != nil {
		return r
	}
	name := c.routeOf(topic)
	r = c.routes[name]
	if r == nil {
		r = &route{name: name, success: -1, failed: -1, share: 1}
		r.batch, r.batchBytes = c.batchLimit(topic)
		c.routes[name] = r
	}
	if len(c.topics) >= 4*maxRoutes {
		clear(c.topics)
		for _, other := range c.routes {
			other.topics = nil
		}
	}
	c.topics[topic] = r
	r.topics = append(r.topics, topic)
	return r
}

// release drops an event from its route, and a route of which nothing is to be
// remembered if there are many, as when topics are made of names of users.
func (c *relayCore) release(r *route) {
	r.events--
	if r.events > 0 || len(c.routes) <= maxRoutes || r.failing || r.stalled() || r.ringed || r.inflight > 0 {
		return
	}
	delete(c.routes, r.name)
	for _, topic := range r.topics {
		delete(c.topics, topic)
	}
}

// enqueueRoute puts a route with something to send where it is found.
func (c *relayCore) enqueueRoute(r *route) {
	if !r.ringed && !r.stalled() {
		r.ringed = true
		c.ring = append(c.ring, r)
	}
}

// stall takes note that only probes are sent on r from now on.
func (c *relayCore) stall(r *route) {
	if !slices.Contains(c.stalled, r) {
		c.stalled = append(c.stalled, r)
	}
}

// refuse books an event that was refused or returned on its route.
func (c *relayCore) refuse(e *entry) {
	r := e.route
	c.failing(e)
	c.noteTrouble("event not taken by the transport", e)
	r.share -= r.share / shareWindow
	e.state = entryRefused
	r.refused.push(e)
	if r.down { // an answer, if not the one that was hoped for
		r.down = false
		c.unstall(r)
	}
}

// failing takes note that e has failed on its route.
func (c *relayCore) failing(e *entry) {
	r := e.route
	r.failed, r.outcome, r.problem = c.now, e.outcome, e.problem
	r.fails++
	if !r.failing {
		r.failing, r.keys = true, make(map[failedKey]time.Duration)
		c.doubtful = append(c.doubtful, r)
		if !r.down {
			r.since = c.now
		}
	}
	if len(r.keys) < c.limits.stall {
		r.keys[e.failedKey()] = c.now
	}
	if r.paused {
		r.delay = min(2*r.delay, c.cfg.RouteProbeInterval)
		r.probeAt = c.now + r.delay
	}
}

// judge decides what the refusals on a route mean, when there is nothing left
// that could tell.
func (c *relayCore) judge(r *route) {
	if r.down {
		return
	}
	one := c.oneKey(r)
	if !r.paused && !one && r.fails >= pauseAfter {
		c.pauseRoute(r)
		return
	}
	if r.againAt > 0 && !r.paused {
		c.tryAgain(r)
		return
	}
	if r.inflight > 0 || r.ready.n > 0 || r.refused.n == 0 {
		return
	}
	switch {
	case one:
		r.paused = false
		c.unstall(r)
		c.countRefused(r)
	case !r.paused:
		c.pauseRoute(r)
	}
}

// oneKey tells whether all that fails on r is of one key, which was refused. A key that failed,
// went into its backoff and did not come back may have been settled by an operator.
func (c *relayCore) oneKey(r *route) bool {
	if r.left != 0 || r.refused.n > 1 || r.refused.n == 1 && r.refused.first.outcome == transport.Returned {
		return false
	}
	keys := 0
	for _, at := range r.keys {
		if c.now-at <= c.cfg.Backoff.Max+2*c.cfg.RouteProbeInterval {
			keys++
		}
	}
	return keys <= 1
}

// countRefused counts an attempt of every event that was refused on r.
func (c *relayCore) countRefused(r *route) {
	for e := r.refused.pop(); e != nil; e = r.refused.pop() {
		c.fail(e)
	}
}

// countRefusals counts an attempt of refused events, as far as they are to blame for it. If
// room on the route is scarce, every event that waits is as likely to get the next of it. Then a
// success of another convicts one of them in four times: one without a fault is
// delivered first four times in five, and has ten attempts counted once in ten million times.
func (c *relayCore) countRefusals(r *route) {
	chance := 1 / float64(4*(1+r.refused.n))
	for e := r.refused.first; e != nil; {
		next := e.qnext
		if r.share >= shareWell || c.rand.Float64() < chance {
			c.fail(e)
		}
		e = next
	}
}

// tryAgain sends what was refused and did not count, when it is time.
func (c *relayCore) tryAgain(r *route) {
	if c.now < r.againAt {
		c.at(r.againAt)
		return
	}
	r.againAt = 0
	for e := r.refused.pop(); e != nil; e = r.refused.pop() {
		c.place(e)
	}
}

func (c *relayCore) pauseRoute(r *route) {
	r.paused, r.againAt = true, 0
	r.delay = max(c.cfg.RouteProbeInterval/8, 1)
	r.probeAt = c.now + r.delay
	for _, e := range r.candidates() {
		e.probes = 0
	}
	c.stall(r)
	c.noteRoute(slog.LevelWarn, "route paused: nothing on it succeeds", r,
		slog.String("outcome", r.outcome.String()), slog.String("error", r.problem))
	c.shed(r)
}

// detectSilentRoutes takes routes that answer nothing for unavailable.
func (c *relayCore) detectSilentRoutes() {
	if len(c.routes) < 2 {
		return // nobody waits behind it
	}
	for _, r := range c.ring {
		if r.down || r.inflight == 0 || r.inflight < c.routeRoom() {
			continue
		}
		if at := r.heard + silentAfter; c.now < at {
			c.at(at)
			continue
		}
		r.outcome, r.problem = transport.Unavailable, "the transport answers nothing"
		r.down, r.downAt, r.delay, r.probeAt = true, c.now, downFirst, c.now
		if !r.paused {
			r.since = c.now
		}
		c.stall(r)
		c.noteRoute(slog.LevelWarn, "route unavailable", r, slog.String("error", r.problem))
	}
}

// routeDown books an event whose outcome is not known. If nothing has come
// through on its route since it was sent, the route is unavailable.
func (c *relayCore) routeDown(e *entry) {
	r := e.route
	r.failed, r.outcome, r.problem = c.now, e.outcome, e.problem
	if r.success > e.sentAt {
		return
	}
	switch {
	case !r.down:
		r.down, r.downAt, r.delay = true, c.now, downFirst
		if !r.paused {
			r.since = c.now
		}
		c.stall(r)
		c.noteRoute(slog.LevelWarn, "route unavailable", r, slog.String("error", r.problem))
	case e.sentAt < r.downAt:
		return // sent before it was known
	default:
		r.delay = min(2*r.delay, downLongest)
	}
	r.probeAt = c.now + r.delay/2 + time.Duration(c.rand.Int64N(int64(r.delay)/2))
}

// routeWorks books a success: what was refused meanwhile counts an attempt each.
func (c *relayCore) routeWorks(r *route) {
	c.success, r.success = c.now, c.now
	r.fails = 0
	r.share += (1 - r.share) / shareWindow
	if r.failing {
		c.countRefusals(r)
		r.failing = r.refused.n > 0
		clear(r.keys)
		if r.failing && r.againAt == 0 {
			r.againAt = c.now + c.cfg.RouteProbeInterval/8
		}
	}
	if !r.stalled() {
		return
	}
	c.probes.left++
	c.noteRoute(slog.LevelInfo, "route works again", r, slog.Duration("after", c.now-r.since))
	r.paused, r.down = false, false
	c.unstall(r)
}

// unstall takes note that r is sent on like any other.
func (c *relayCore) unstall(r *route) {
	if r.stalled() {
		return
	}
	r.reported, r.dueFrom, r.dueTook = false, outbox.DuePoint{}, false
	c.stalled = slices.DeleteFunc(c.stalled, func(other *route) bool { return other == r })
	if r.ready.n > 0 {
		c.enqueueRoute(r)
	}
	c.hurry(r)
	c.due.restart(c.now)
}

// updateRoutes judges routes on which something was refused, reports those on
// which nothing has succeeded for too long, and forgets those that have nothing
// left to try.
func (c *relayCore) updateRoutes() {
	c.detectSilentRoutes()
	c.doubtful = slices.DeleteFunc(c.doubtful, func(r *route) bool {
		if r.failing {
			c.judge(r)
		}
		return !r.failing
	})
	for _, r := range slices.Clone(c.stalled) {
		if r.events == 0 && r.inflight == 0 && r.left == 0 {
			r.paused, r.down, r.failing, r.keys = false, false, false, nil
			c.unstall(r)
			continue
		}
		if r.reported {
			continue
		}
		if reportAt := r.since + c.cfg.RouteGrace; c.now < reportAt {
			c.at(reportAt)
			continue
		}
		r.reported = true
		c.noteRoute(slog.LevelError, "nothing on the route has succeeded for its grace period", r,
			slog.Duration("for", c.now-r.since), slog.String("outcome", r.outcome.String()), slog.String("error", r.problem))
	}
}
