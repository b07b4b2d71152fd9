package relay

import "time"

// deferrals is the part of the core that has deferred events moved to the queue when they are due.
// What is sent is what a fetch finds there afterwards: the move has been committed by then, and an
// event can be cancelled or sent, not both.
type deferrals struct {
	at     time.Duration // of the next look
	looked time.Duration // when the last one was
	told   bool          // something was committed since, which may be due before at
}

// toldPause is the time between two looks while events are written, which need not be deferred
// ones.
const toldPause = 100 * time.Millisecond

// undeferCall has the events moved that are due.
func (c *relayCore) undeferCall() *call {
	d := &c.deferred
	if b := c.leasing.busy; d.at == never || b != nil && b.op == opKeepLow {
		return nil // what is kept may be of before the move
	}
	at := d.at
	if d.told {
		at = min(at, d.looked+toldPause)
	}
	if c.now < at {
		c.at(at)
		return nil
	}
	cl := ask(statement{op: opUndefer, limit: c.limits.undefer})
	for _, sh := range c.shards {
		if sh != nil && sh.open() {
			cl.shards = append(cl.shards, sh)
			cl.leases = append(cl.leases, sh.lease())
		}
	}
	d.at, d.looked, d.told = never, c.now, false
	if len(cl.shards) == 0 {
		return nil // a shard that opens brings its own look
	}
	return cl
}

// undeferred has what was moved looked for below the low-water marks: deferred events were written
// long before what is read now. It is a read like the others, one at a time, so that
// what is fetched next is younger than the move.
func (c *relayCore) undeferred(cl *call) {
	d := &c.deferred
	if cl.err != nil { // it may have been done
		for _, sh := range cl.shards {
			sh.rewind(0)
		}
		d.at = c.now
		return
	}
	for _, no := range cl.lost {
		for _, sh := range cl.shards {
			if sh.no == no {
				c.lose(sh, cl.op.String())
			}
		}
	}
	d.at = c.now + c.cfg.PollMax
	if cl.next > 0 {
		d.at = min(d.at, c.now+cl.next)
	}
	counts := make(map[int]int)
	for _, m := range cl.moved {
		if sh := c.shards[m.Shard]; sh != nil {
			sh.want(m.Seq)
		}
		if counts[m.Shard]++; counts[m.Shard] >= cl.limit { // there may be more
			d.at = c.now
		}
	}
}
