package relay

import "github.com/boxpair/boxpair/store/outbox"

// quiescent tells whether nothing is left to do that is due: what a RunOnce
// waits for. Events on routes that take nothing now are not due.
func (c *relayCore) quiescent() bool {
	l, r, m := &c.leasing, &c.reading, &c.marking
	if l.live == 0 || l.held < l.share() && !l.acquired {
		return false
	}
	if r.busy != nil || !r.woken.None() || len(r.refills) > 0 || c.due.at <= c.now || c.deferred.at <= c.now || c.due.after != (outbox.DuePoint{}) {
		return false
	}
	if c.inflight > 0 || m.busy != nil || len(m.pending) > 0 {
		return false
	}
	return c.nothingToSend() && c.shardsQuiescent()
}

func (c *relayCore) nothingToSend() bool {
	for _, r := range c.ring {
		if r.ready.n > 0 {
			return false
		}
	}
	for _, r := range c.doubtful {
		if r.failing && !r.stalled() && r.refused.n > 0 {
			return false
		}
	}
	return true
}

// shardsQuiescent tells whether every shard was read to its end and has nothing
// to record.
func (c *relayCore) shardsQuiescent() bool {
	for _, sh := range c.shards {
		if sh != nil && (!sh.open() || !sh.readable() || sh.more || sh.look || sh.back.urgent > 0 || !sh.lane.idle() || sh.clear || sh.held.n > 0) {
			return false
		}
	}
	return true
}
