package core

import (
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/keyset"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
)

// rateLimit bounds how many events are sent in a second on the routes of a downstream, by all relays
// together. A relay takes tokens from the database and spends one for each event. The events of a
// limited downstream wait in the database, except for a few: others would wait behind them in
// memory.
type rateLimit struct {
	name      string
	perSecond float64
	routes    []*route
	events    int // of the routes in memory
	tokens    int // below 0 after a batch
	asked     bool
	fails     int
	retry     time.Duration
}

// rates asks for tokens.
type rates struct {
	*Machine

	byName map[string]*rateLimit
	all    []*rateLimit // in the order of their first events
}

// tokensFor is the time for which a relay takes tokens in advance.
const tokensFor = 200 * time.Millisecond

// of returns the limit of a downstream, or nil.
func (rt *rates) of(d Downstream) *rateLimit {
	if d.PerSecond <= 0 {
		return nil
	}
	l := rt.byName[d.Name]
	if l == nil {
		l = &rateLimit{name: "downstream " + d.Name, perSecond: d.PerSecond}
		rt.byName[d.Name] = l
		rt.all = append(rt.all, l)
	}
	return l
}

// chunk is how many tokens a relay takes at once.
func (l *rateLimit) chunk() int { return max(1, int(l.perSecond*tokensFor.Seconds())) }

// ready is how many events of l could be sent.
func (l *rateLimit) ready() (n int) {
	for _, r := range l.routes {
		if !r.stalled() {
			n += r.ready.n
		}
	}
	return n
}

// plan asks for tokens of limits with events to send.
func (rt *rates) plan() {
	for _, l := range rt.all {
		if l.asked || rt.stopping || l.tokens > l.chunk()/2 {
			continue
		}
		want := l.ready() - l.tokens
		if want <= 0 {
			continue
		}
		if rt.now < l.retry {
			rt.at(l.retry)
			continue
		}
		l.asked = true
		rt.issue(ask(&takeTokens{TakeTokens: statement.TakeTokens{Name: l.name, PerSecond: l.perSecond, Want: min(want, l.chunk())}, limit: l}))
	}
}

func (rt *rates) reply(cl *Call) {
	s := cl.Statement.(*takeTokens)
	l := s.limit
	l.asked = false
	if cl.Err != nil {
		l.fails++
		l.retry = rt.now + rt.pause(l.fails)
		return
	}
	l.fails, l.retry = 0, rt.now+s.Next
	l.tokens += s.Granted
}

// refill leaves later events of l, which were skipped, to a lap for the route.
func (rt *rates) refill(l *keyLine, r *route) {
	if b := &l.shard.back; !b.none() && b.has(keyset.Hash(l.key), false) {
		r.skippedIn |= 1 << l.shard.no
	}
}

// share is how many events of one limit are kept in memory.
func (rt *rates) share() int { return max(2, rt.reader.capacity()/4/max(len(rt.all), 1)) }

// full tells whether no further event of the route is kept in memory for its limit.
func (rt *rates) full(r *route) bool { return r.limit != nil && r.limit.events >= rt.share() }

// needing returns the shards, as bits, with skipped events of limits that have few left in memory.
func (rt *rates) needing() (shards uint64) {
	for _, l := range rt.all {
		if l.events > rt.share()/2 {
			continue
		}
		for _, r := range l.routes {
			if !r.stalled() {
				shards |= r.skippedIn
			}
		}
	}
	return shards
}
