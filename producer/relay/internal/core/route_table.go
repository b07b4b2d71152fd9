package core

import "github.com/boxpair/boxpair/store/control"

// of returns the route of a topic.
func (rs *routes) of(topic string) *route {
	r := rs.byTopic[topic]
	if r != nil {
		return r
	}
	name := rs.topics.Route(topic)
	r = rs.byName[name]
	if r == nil {
		r = &route{name: name, routeAnswers: routeAnswers{success: -1, failed: -1, share: 1}}
		r.batch, r.batchBytes = rs.topics.Batch(topic)
		r.limit = rs.rates.of(rs.topics.Downstream(topic))
		rs.byName[name] = r
	}
	if len(rs.byTopic) >= max(4*maxRoutes, rs.sweepAt) {
		rs.sweep(r)
	}
	rs.byTopic[topic] = r
	r.topics = append(r.topics, topic)
	if r.pause == nil {
		rs.setPause(r, rs.pauses.of(topic))
	}
	return r
}

// sweep forgets idle topics and routes, except for keep. A pause must find the topics of events in
// memory.
func (rs *routes) sweep(keep *route) {
	for topic, r := range rs.byTopic {
		if r.events == 0 && r != keep {
			delete(rs.byTopic, topic)
			r.topics = nil
		}
	}
	for name, r := range rs.byName {
		if r.events == 0 && r != keep && r.idle() && (r.pause != nil || r.skippedIn == 0) {
			delete(rs.byName, name)
		}
	}
	rs.sweepAt = 2 * len(rs.byTopic)
}

// idle tells whether r has no state of its own besides a pause.
func (r *route) idle() bool {
	return !r.failing && !r.paused && !r.down && !r.inRing && !r.waiting && r.inflight == 0
}

// release drops an event from its route. It forgets a route without state if there are many routes,
// as when topics are made of names of users.
func (rs *routes) release(r *route) {
	r.events--
	if r.events > 0 || len(rs.byName) <= maxRoutes || !r.idle() || r.skippedIn != 0 && r.pause == nil {
		return
	}
	delete(rs.byName, r.name)
	for _, topic := range r.topics {
		delete(rs.byTopic, topic)
	}
}

// setPause takes note that an operator has paused r, or resumed it with nil.
func (rs *routes) setPause(r *route, p *control.Pause) {
	before := r.pause
	r.pause = p
	switch {
	case p != nil && before == nil:
		r.needsCandidates, r.pausedAt, r.evictAt = false, rs.now, 0
		rs.evictSurplusOf(r)
	case p == nil && before != nil:
		rs.unstall(r)
	}
}
