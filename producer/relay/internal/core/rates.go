package core

import (
	"math"
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/keyset"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
)

// rateLimit bounds how many events are sent in a second on the routes of a downstream, by all relays
// together. A relay takes tokens from the database and spends one for each event. The events of a
// limited downstream wait in the database, except for a few: others would wait behind them in
// memory. A lap brings more when few are left, in the order of their age.
type rateLimit struct {
	name      string
	perSecond float64
	events    int      // of its routes in memory, unless they are stalled
	waiting   []*route // routes with events to send, out of the ring for want of tokens

	// skippedIn are the shards, as bits, that may have skipped events of the limit; skippedAgain are
	// the shards in which the current lap has skipped some again.
	skippedIn, skippedAgain uint64

	tokens  int // -1: a probe was sent without a token
	want    int // tokens that the last call asked for
	short   bool
	asked   bool
	fails   int
	taken   time.Duration // of the last call
	retry   time.Duration
	probeAt time.Duration
}

// rates asks for tokens.
type rates struct {
	*Machine

	byName map[string]*rateLimit
	all    []*rateLimit // in the order of their first events
}

const (
	takeEvery = 200 * time.Millisecond // between two calls of a busy limit
	tokensFor = 300 * time.Millisecond // for which a relay takes tokens at once
	// probeShare is the share of a limit that probes may take: a limited downstream may have many
	// routes that do not work.
	probeShare = 4
)

// of returns the limit of a downstream, or nil.
func (rt *rates) of(d Downstream) *rateLimit {
	if d.PerSecond <= 0 {
		return nil
	}
	l := rt.byName[d.Name]
	if l == nil {
		l = &rateLimit{name: "downstream " + d.Name, perSecond: d.PerSecond, taken: -time.Hour}
		rt.byName[d.Name] = l
		rt.all = append(rt.all, l)
	}
	return l
}

// chunk is how many tokens a relay takes at once.
func (l *rateLimit) chunk() int {
	return max(1, int(math.Ceil(min(l.perSecond*tokensFor.Seconds(), math.MaxInt32))))
}

// await has r wait for tokens, out of the ring.
func (l *rateLimit) await(r *route) {
	if !r.waiting {
		r.waiting = true
		l.waiting = append(l.waiting, r)
	}
}

// ready is how many events wait for tokens.
func (l *rateLimit) ready() (n int) {
	for _, r := range l.waiting {
		if !r.stalled() {
			n += r.ready.n
		}
	}
	return n
}

// plan asks for tokens of limits without one.
func (rt *rates) plan() {
	for _, l := range rt.all {
		if l.asked || rt.stopping || l.tokens > 0 || len(l.waiting) == 0 {
			continue
		}
		if rt.now < l.retry {
			rt.at(l.retry)
			continue
		}
		ready := l.ready()
		if ready == 0 {
			continue
		}
		l.adapt(rt.now, ready)
		l.asked = true
		rt.issue(ask(&takeTokens{TakeTokens: statement.TakeTokens{Name: l.name, PerSecond: l.perSecond, Want: l.want}, limit: l}))
	}
}

// adapt sets how many tokens the next call asks for: more if the last ones were soon gone, and fewer
// otherwise. So a limit costs about five calls a second, whatever its rate.
func (l *rateLimit) adapt(now time.Duration, ready int) {
	if now-l.taken < takeEvery*3/2 {
		l.want *= 2
	} else {
		l.want /= 2
	}
	l.want, l.taken = min(max(l.want, ready, 1), l.chunk()), now
}

// reply takes tokens over. If the bucket had too few, the next call waits until it has more.
func (rt *rates) reply(cl *Call) {
	s := cl.Statement.(*takeTokens)
	l := s.limit
	l.asked = false
	if cl.Err != nil {
		l.fails++
		l.retry = rt.now + rt.pause(l.fails)
		return
	}
	before := l.short
	l.fails, l.retry, l.short = 0, 0, s.Granted < s.Want
	if l.short || before {
		l.retry = rt.now + max(s.Next, takeEvery)
	}
	l.tokens += s.Granted
	if l.tokens <= 0 {
		return
	}
	waiting := l.waiting
	l.waiting = nil
	for _, r := range waiting {
		r.waiting = false
		if r.ready.n > 0 {
			rt.routes.enqueue(r)
		}
	}
}

// mayProbe tells whether a route of l may be probed now.
func (l *rateLimit) mayProbe(now time.Duration) bool { return l == nil || now >= l.probeAt }

// probed books a probe.
func (l *rateLimit) probed(now time.Duration) {
	if l != nil {
		l.tokens = max(l.tokens-1, -1)
		l.probeAt = now + min(time.Hour, time.Duration(probeShare/l.perSecond*float64(time.Second)))
	}
}

// share is how many events of one limit are kept in memory.
func (rt *rates) share() int { return max(2, rt.reader.capacity()/4/max(len(rt.all), 1)) }

// full tells whether no further event of l is kept in memory.
func (rt *rates) full(l *rateLimit) bool { return l != nil && l.events >= rt.share() }

// admits tells whether an event of l in sh is kept in memory. Behind skipped events, only a lap
// brings events, or the latest would be sent first.
func (rt *rates) admits(l *rateLimit, sh *shardState, lap bool) bool {
	return !rt.full(l) && (lap || l.skippedIn&(1<<sh.no) == 0)
}

// admitsDue is admits for a parked event, for which there is a reserve.
func (rt *rates) admitsDue(l *rateLimit) bool { return l.events < rt.share()+rt.share()/4+1 }

// skipped notes that an event of sh waits in the database because of l.
func (rt *rates) skipped(l *rateLimit, sh *shardState, seq int64) {
	bit := uint64(1) << sh.no
	l.skippedIn |= bit
	if sh.back.active && seq <= sh.back.at {
		l.skippedAgain |= bit
	}
}

// refill leaves later events of line, which were skipped, to a lap.
func (rt *rates) refill(l *rateLimit, line *keyLine) {
	if b := &line.shard.back; !b.none() && b.has(keyset.Hash(line.key), false) {
		rt.skipped(l, line.shard, 0)
	}
}

// lapEnded books a whole lap through sh, which has skipped all events that wait for limits again.
func (rt *rates) lapEnded(sh *shardState) {
	bit := uint64(1) << sh.no
	for _, l := range rt.all {
		l.skippedIn = l.skippedIn&^bit | l.skippedAgain&bit
		l.skippedAgain &^= bit
	}
}

// forget drops what limits know of skipped events of sh.
func (rt *rates) forget(no int) {
	for _, l := range rt.all {
		l.skippedIn &^= 1 << no
		l.skippedAgain &^= 1 << no
	}
}

// needing returns the shards, as bits, with skipped events of limits that have few left in memory.
func (rt *rates) needing() (shards uint64) {
	for _, l := range rt.all {
		if l.events <= rt.share()/2 {
			shards |= l.skippedIn
		}
	}
	return shards
}

// sending tells whether events wait for tokens, or for a lap.
func (rt *rates) sending() bool {
	for _, l := range rt.all {
		if l.asked || l.ready() > 0 {
			return true
		}
	}
	return rt.needing() != 0
}
