package core

import (
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/statement"
)

// deferrals is the part of the core that has deferred events moved to the queue when they are due.
// What is sent is what a fetch finds there afterwards: the move has been committed by then, and an
// event can be cancelled or sent, not both.
type deferrals struct {
	*Machine

	next     time.Duration // of the next look
	polledAt time.Duration // when the last one was
	woken    bool          // something was committed since, which may be due before at
}

// toldPause is the time between two looks while events are written, which need not be deferred
// ones.
const wokenPause = 100 * time.Millisecond

// call has the events moved that are due.
func (df *deferrals) call() *Call {
	if b := df.leases.busy; df.next == never || b != nil && b.Op() == statement.OpKeepLow {
		return nil // what is kept may be of before the move
	}
	at := df.next
	if df.woken {
		at = min(at, df.polledAt+wokenPause)
	}
	if df.now < at {
		df.at(at)
		return nil
	}
	s := &statement.Undefer{Limit: df.limits.undefer}
	cl := ask(s)
	for _, sh := range df.shards {
		if sh != nil && sh.open() {
			cl.shards = append(cl.shards, sh)
			s.Leases = append(s.Leases, sh.lease())
		}
	}
	df.next, df.polledAt, df.woken = never, df.now, false
	if len(cl.shards) == 0 {
		return nil // a shard that opens brings its own look
	}
	return cl
}

// moved has what was moved looked for below the low-water marks: deferred events were written
// long before what is read now. It is a read like the others, one at a time, so that
// what is fetched next is younger than the move.
func (df *deferrals) moved(cl *Call) {
	s := cl.Statement.(*statement.Undefer)
	if cl.Err != nil { // it may have been done
		for _, sh := range cl.shards {
			sh.rewind(0)
		}
		df.next = df.now
		return
	}
	for _, no := range s.Lost {
		for _, sh := range cl.shards {
			if sh.no == no {
				df.leases.lose(sh, cl.Op().String())
			}
		}
	}
	df.next = df.now + df.cfg.PollMax
	if s.Next > 0 {
		df.next = min(df.next, df.now+s.Next)
	}
	counts := make(map[int]int)
	for _, m := range s.Moved {
		if sh := df.shards[m.Shard]; sh != nil {
			sh.want(m.Seq)
		}
		if counts[m.Shard]++; counts[m.Shard] >= s.Limit { // there may be more
			df.next = df.now
		}
	}
}
