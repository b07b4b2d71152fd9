package producer

// The bottom of a shard is a place in the log at or below which its queue has no row, and will have none but by
// [RelayStore.Undefer] and operators. Its next owner begins to read there: from the beginning on, a statement may have to step over
// millions of rows that were delivered and that the database cannot remove, as long as somebody holds an old snapshot.
//
// IDs are given out by one sequence, so what is seen to be so stays so: a writer that begins later writes above. What
// comes to stand below after all is brought there by statements that lower what is kept themselves. A shard of which nothing is
// kept is read from the beginning, and a lap goes there now and then, whatever is kept.

// lowest returns the bottom of sh as it is now. The rows of what is in memory, of what was passed over and of what is
// to be read by its Seq are there. A shard that is given back has forgotten them: its bottom was noted before.
func (c *relayCore) lowest(sh *shardState) int64 {
	low := sh.bottom
	above := func(seq int64) {
		if seq != 0 {
			low = min(low, seq-1)
		}
	}
	if !sh.yielding {
		low = max(low, c.unwritten(sh))
		for seq := range sh.index {
			above(seq)
		}
		for _, l := range sh.lines {
			above(l.hole)
		}
		above(sh.back.first)
		above(sh.back.next)
	}
	for _, seq := range sh.wanted {
		above(seq)
	}
	for _, cl := range [...]*call{c.reading.busy, c.late.held} {
		if cl == nil || cl.op != opFetch {
			continue
		}
		for p, other := range cl.shards {
			for _, seq := range cl.wanted[p] {
				if other == sh {
					above(seq)
				}
			}
		}
	}
	return low
}

// unwritten returns up to where sh was read while nobody was left who might commit there.
func (c *relayCore) unwritten(sh *shardState) int64 {
	low := min(sh.low, sh.known)
	for _, w := range c.late.writers {
		low = min(low, w.floor)
	}
	if held := c.late.held; held != nil {
		for p, other := range held.shards {
			if other == sh {
				low = min(low, held.looks[p])
			}
		}
	}
	return low
}

// believe has sh read from a bottom that was kept.
func (sh *shardState) believe(bottom int64) {
	sh.bottom, sh.low, sh.known = bottom, bottom, bottom
}

// keepCall has the bottoms of shards kept. While deferred events are being moved it waits: they may come to stand below.
func (c *relayCore) keepCall() *call {
	l := &c.leasing
	if b := c.reading.busy; !l.keep || b != nil && b.op == opUndefer {
		return nil
	}
	l.keep = false
	cl := &call{op: opKeepLow, history: c.identity}
	for _, sh := range c.shards {
		if sh == nil {
			continue
		}
		if low := c.lowest(sh); low > 0 && low != sh.kept {
			cl.shards = append(cl.shards, sh)
			cl.lows = append(cl.lows, Low{Lease: sh.lease(), Seq: low})
		}
	}
	if len(cl.lows) == 0 {
		return nil
	}
	return cl
}

// doubtCall has nothing kept any more of shards of a database that has lost commits: their bottoms were of what is gone.
func (c *relayCore) doubtCall() *call {
	cl := &call{op: opKeepLow, history: c.identity}
	for _, lease := range c.leasing.doubted {
		cl.lows = append(cl.lows, Low{Lease: lease})
	}
	return cl
}

// keptReply notes what is kept.
func (c *relayCore) keptReply(cl *call) {
	if l := &c.leasing; len(cl.shards) == 0 {
		l.undone = len(cl.lows) == len(l.doubted)
	}
	for i, sh := range cl.shards {
		sh.kept = cl.lows[i].Seq
	}
}
