package producer

import (
	"cmp"
	"log/slog"
	"slices"
	"time"

	"github.com/boxpair/boxpair/transport"
)

// route is what messages share on their way through the transport, so that a
// failure of one tells something about the next.
//
// A route works until something on it is refused. Then it is failing: what was
// refused waits for proof that the route works for others, which is a success
// on it, and only then counts an attempt. As long as there are other events to
// try, sending goes on. When there are none left, or too many were refused in
// a row, and they were of several keys, the route is paused: nothing is sent
// but probes, one at a time, the events that were probed least first and the
// oldest among those. If only one key has failed, it counts attempts, or its one
// bad event would never be seen.
//
// A route is unavailable when the transport could not tell what became of a
// message and nothing else came through meanwhile. It is probed with a backoff, and counts nothing.
type route struct {
	name     string
	ready    entryQueue
	refused  entryQueue
	inflight int
	events   int  // in memory, not confirmed
	ringed   bool // in the core's ring

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
	solo     bool // what fails on it breaks the channel: probe alone
	passed   int  // events that were passed over since it stalled
	shedAt   time.Duration
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
	stallHeads  = 32                     // events that a stalled route keeps in memory to be probed
	downFirst   = 100 * time.Millisecond // first pause of an unavailable route
	downLongest = 5 * time.Second
	downAlone   = 5 * time.Second // after which an unavailable route is not believed to stand for all
	maxRoutes   = 1024            // beyond which idle ones are forgotten

	shedInterval = 100 * time.Millisecond

	// silentAfter is how long a route with its share in flight may answer nothing before
	// it is unavailable. What is in flight may come back much later, and what
	// waits behind it takes the memory of other routes meanwhile.
	silentAfter = time.Second
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
		r = &route{name: name, success: -1, failed: -1}
		c.routes[name] = r
	}
	if len(c.topics) >= 4*maxRoutes {
		clear(c.topics)
	}
	c.topics[topic] = r
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
	for topic, other := range c.topics {
		if other == r {
			delete(c.topics, topic)
		}
	}
}

// rouse puts a route with something to send where it is found.
func (c *relayCore) rouse(r *route) {
	if !r.ringed && !r.stalled() {
		r.ringed = true
		c.ring = append(c.ring, r)
	}
}

// stall takes note that only probes are sent on r from now on. What is in
// quarantine takes its turn among them.
func (c *relayCore) stall(r *route) {
	if !slices.Contains(c.stalled, r) {
		c.stalled = append(c.stalled, r)
	}
	for e := c.quarantine.first; e != nil; {
		next := e.qnext
		if e.route == r {
			e.unqueue()
			e.state, e.solo, e.probing = entryReady, true, false
			r.ready.push(e)
		}
		e = next
	}
}

// refuse books an event that was refused or returned on its route.
func (c *relayCore) refuse(e *entry) {
	r := e.route
	c.failing(e)
	c.noteEvent(slog.LevelWarn, "event not taken by the transport", e,
		slog.String("route", r.name), slog.String("outcome", e.outcome.String()), slog.String("error", e.problem))
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
	if len(r.keys) < stallHeads {
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
	if r.inflight > 0 || r.ready.n > 0 || r.refused.n == 0 || c.isolated(r) {
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

// oneKey tells whether all that fails on r is of one key. A key that failed, went into its
// backoff and did not come back may have been settled by an operator.
func (c *relayCore) oneKey(r *route) bool {
	if r.passed > 0 || r.refused.n > 1 {
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

func (c *relayCore) pauseRoute(r *route) {
	r.paused = true
	r.delay = max(c.cfg.RouteProbeInterval/8, 1)
	r.probeAt = c.now + r.delay
	for _, e := range r.candidates() {
		e.probes = 0
	}
	c.stall(r)
	c.note(slog.LevelWarn, "route paused: nothing on it succeeds", slog.String("route", r.name),
		slog.String("outcome", r.outcome.String()), slog.String("error", r.problem))
	c.shed(r)
}

// hearken takes routes that answer nothing for unavailable.
func (c *relayCore) hearken() {
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
		c.note(slog.LevelWarn, "route unavailable", slog.String("route", r.name), slog.String("error", r.problem))
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
		c.note(slog.LevelWarn, "route unavailable", slog.String("route", r.name), slog.String("error", r.problem))
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
	r.fails, r.solo = 0, false
	if r.failing {
		r.failing, r.keys = false, nil
		c.countRefused(r)
	}
	if !r.stalled() {
		return
	}
	c.note(slog.LevelInfo, "route works again", slog.String("route", r.name), slog.Duration("after", c.now-r.since))
	r.paused, r.down = false, false
	c.unstall(r)
}

// unstall takes note that r is sent on like any other.
func (c *relayCore) unstall(r *route) {
	if r.stalled() {
		return
	}
	r.reported = false
	c.stalled = slices.DeleteFunc(c.stalled, func(other *route) bool { return other == r })
	if r.ready.n > 0 {
		c.rouse(r)
	}
	if r.passed > 0 {
		r.passed = 0
		c.readAgain()
	}
	c.due.at = min(c.due.at, c.now)
}

// tendRoutes judges routes on which something was refused, reports those on
// which nothing has succeeded for too long, and forgets those that have nothing
// left to try.
func (c *relayCore) tendRoutes() {
	c.hearken()
	c.doubtful = slices.DeleteFunc(c.doubtful, func(r *route) bool {
		if r.failing {
			c.judge(r)
		}
		return !r.failing
	})
	for _, r := range slices.Clone(c.stalled) {
		if r.events == 0 && r.inflight == 0 && r.passed == 0 {
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
		c.note(slog.LevelError, "nothing on the route has succeeded for its grace period", slog.String("route", r.name),
			slog.Duration("for", c.now-r.since), slog.String("outcome", r.outcome.String()), slog.String("error", r.problem))
	}
}

// candidates returns the events of a stalled route that may be probed, those
// probed least first, the oldest among equals.
func (r *route) candidates() []*entry {
	all := make([]*entry, 0, r.ready.n+r.refused.n)
	for e := r.ready.first; e != nil; e = e.qnext {
		all = append(all, e)
	}
	for e := r.refused.first; e != nil; e = e.qnext {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.probes, b.probes), cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.shard.no, b.shard.no))
	})
	return all
}

// crowded tells whether r is stalled and has enough events in memory, so that
// further ones are passed over: they would take the room of those that
// can be sent. If nothing comes through anywhere, there are none.
func (c *relayCore) crowded(r *route) bool {
	return r.stalled() && r.ready.n+r.refused.n >= stallHeads && c.othersWork(r)
}

// stuck is how many events stalled routes may keep in memory without taking the
// room of others.
func (c *relayCore) stuck() (n int) {
	for _, r := range c.stalled {
		if c.othersWork(r) {
			n += min(r.events, stallHeads)
		}
	}
	return n
}

// othersWork tells whether other routes may work while r does not: the transport
// answers, or r has been unavailable for so long that it is worth a look.
func (c *relayCore) othersWork(r *route) bool {
	return r.paused || c.success > r.downAt || c.now-r.downAt > downAlone
}

// relieve makes room that stalled routes take from others.
func (c *relayCore) relieve() {
	for _, r := range c.stalled {
		c.shed(r)
	}
}

// shed takes events of a stalled route out of memory, except for the oldest of
// its keys, one of each. The others are read again when the route works.
func (c *relayCore) shed(r *route) {
	if !c.othersWork(r) || c.now < r.shedAt {
		return
	}
	r.shedAt = c.now + shedInterval
	all := r.candidates()
	slices.SortFunc(all, func(a, b *entry) int { return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.shard.no, b.shard.no)) })
	for i, e := range all {
		switch {
		case i >= stallHeads:
			c.evict(e)
		case e.parked && e.line != nil:
			c.forgetFIFO(e.line, e)
		case e.line != nil && e.next != nil:
			c.trim(e.line, e.next)
		}
	}
}

// trim takes the events of l from e on out of memory and leaves a hole.
func (c *relayCore) trim(l *keyLine, e *entry) {
	seq := e.Seq
	for l.last != nil && l.last.Seq >= seq && l.last.state == entryWaiting {
		c.forgetLast(l)
	}
	if l.hole == 0 || seq < l.hole {
		l.hole = seq
	}
}

// forgetLast forgets the last event of l, which waits, and keeps l.
func (c *relayCore) forgetLast(l *keyLine) {
	e := l.last
	c.uncount(e)
	delete(l.shard.index, e.Seq)
	l.remove(e)
	c.free(e)
}

// evict passes over an event that was read already, with all of its key.
func (c *relayCore) evict(e *entry) {
	sh, l, r := e.shard, e.line, e.route
	switch {
	case e.parked:
		c.due.passed++
		if l == nil {
			c.forget(e)
		} else {
			c.forgetFIFO(l, nil)
			c.recheck(l)
		}
	case l == nil:
		c.passOver(sh, r, "", e.Seq)
		c.forget(e)
	default:
		seq := e.Seq
		if l.hole != 0 {
			seq = min(seq, l.hole)
			l.hole = 0
		}
		c.passOver(sh, r, l.key, seq)
		for l.last != e {
			c.forgetLast(l)
		}
		c.forget(e)
	}
}

// passOver leaves an event in the database until a route that is stalled
// works. Later events of its key are then passed over too.
func (c *relayCore) passOver(sh *shardState, r *route, key string, seq int64) {
	if r.stalled() {
		r.passed++
	}
	if key != "" {
		if sh.passed == nil {
			sh.passed = make(map[uint64]struct{})
		}
		sh.passed[hashKey(key)] = struct{}{}
	}
	c.reading.passed = true
	if sh.passedMin == 0 || seq < sh.passedMin {
		sh.passedMin = seq
	}
}

// readAgain reads what was passed over.
func (c *relayCore) readAgain() {
	for _, sh := range c.shards {
		if sh != nil && sh.passedMin > 0 {
			sh.rewind(sh.passedMin - 1)
			sh.passed, sh.passedMin = nil, 0
		}
	}
	for _, r := range c.stalled {
		r.passed = 0
	}
	c.due.passed = 0
	c.reading.slowAt = 0
}
