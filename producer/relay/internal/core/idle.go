package core

import "time"

// Idle tells whether the machine waits for a signal of events: none is in memory, and none has come for a
// while. It sends no event before an input after which it is not idle. A signal of events in the shards of
// others changes nothing.
func (c *Machine) Idle() bool {
	return c.signals.idle() && c.keys.buffered == 0
}

// after returns when the next renewal, or heartbeat, is due after one that was issued at a time. An idle
// relay without others has little to lose: a statement that fails leaves time for one more, and nobody
// waits for a share. Its statements come at even times, a moment before those of an idle inbox that was
// started together with it: a pool hands both the same connection, and looks only once whether it lives.
func (ls *leases) after(issued time.Duration) time.Duration {
	if !ls.Idle() || ls.live > 1 {
		return issued + ls.cfg.LeaseTTL/3
	}
	apart := ls.cfg.LeaseTTL / 2
	lead := apart / 50
	return issued + apart - (issued+lead)%apart
}

// join makes a poll that is a part of the next renewal, if the relay is idle. Otherwise it returns nil. The
// next poll comes with the next renewal, or a little later by itself.
func (rd *reader) join() *Call {
	if !rd.Idle() || rd.busy != nil || rd.fails > 0 || rd.late.held != nil {
		return nil
	}
	rd.pollAll()
	cl := rd.fetchRanges()
	if cl == nil {
		return nil
	}
	rd.pollAt += rd.delay / 2
	cl.issued, rd.busy = rd.now, cl
	return cl
}

// joined takes back the poll that a renewal took along. err is the error of the renewal.
func (c *Machine) joined(err error, s *renew) {
	if s.poll.Err = err; err == nil {
		s.poll.Err = s.PollErr
		c.noteCall(s.poll)
	}
	c.reader.reply(s.poll)
}
