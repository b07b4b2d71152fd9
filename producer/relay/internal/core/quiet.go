package core

import "github.com/boxpair/boxpair/store/outbox"

// quiescent tells whether RunOnce is done: no due event is left. Events on routes that take no
// events now are not due.
func (c *Machine) quiescent() bool {
	if c.leases.live == 0 || c.leases.held < c.leases.share() && !c.leases.acquired {
		return false
	}
	if c.reader.busy != nil || !c.reader.woken.None() || len(c.reader.refills) > 0 || c.due.next <= c.now || c.deferred.next <= c.now || c.due.after != (outbox.DuePoint{}) {
		return false
	}
	if c.dispatch.inflight > 0 || c.marks.busy != nil || len(c.marks.pending) > 0 {
		return false
	}
	return c.nothingToSend() && c.shardsQuiescent()
}

func (c *Machine) nothingToSend() bool {
	if c.rates.sending() {
		return false
	}
	for _, r := range c.dispatch.ring {
		if r.ready.n > 0 {
			return false
		}
	}
	for _, r := range c.routes.doubtful {
		if r.failing && !r.stalled() && r.refused.n > 0 {
			return false
		}
	}
	return true
}

// shardsQuiescent tells whether every shard was read to its end and has nothing to record.
func (c *Machine) shardsQuiescent() bool {
	for _, sh := range c.shards {
		if sh != nil && (!sh.open() || !sh.readable() || sh.more || sh.pollOnce || sh.back.urgent > 0 || !sh.writer.idle() || sh.clear || sh.held.n > 0) {
			return false
		}
	}
	return true
}

func (ls *leases) allIdle() bool {
	for _, sh := range ls.shards {
		if sh != nil && !sh.idle() {
			return false
		}
	}
	return true
}
