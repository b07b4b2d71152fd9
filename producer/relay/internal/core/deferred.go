package core

import (
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/statement"
)

// deferrals moves due deferred events to the queue, where a fetch finds them. The move has been
// committed by then, so an event is either cancelled or sent.
type deferrals struct {
	*Machine

	next     time.Duration // of the next poll
	due      time.Duration // when the first known event is due
	polledAt time.Duration // when the last poll was
	woken    bool          // a commit since may hold events due before next
	fails    int           // polls that have failed since the last that has not
}

const (
	// wokenPause is the least time between two polls for wake-ups. A wake-up may not know whether
	// the committed events are deferred.
	wokenPause = 100 * time.Millisecond
	// deferredSlowMax is the longest pause after a failed poll, in which queues are read from their
	// beginnings.
	deferredSlowMax = time.Minute
)

// call moves due events to the queue.
func (df *deferrals) call() *Call {
	if b := df.leases.busy; df.next == never || b != nil && b.Op() == statement.OpKeepLow {
		return nil // the bottom being kept may be from before the move
	}
	at := df.next
	if df.woken && df.fails == 0 {
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
		return nil // a shard that opens plans a poll
	}
	return cl
}

// plan plans the next poll, at most pause from now. next is the time until the first event is due; 0:
// none is known.
func (df *deferrals) plan(next, pause time.Duration) {
	df.due = never
	if next > 0 {
		df.due = df.now + next
	}
	df.next = min(df.now+pause, df.due)
}

// look makes a poll of the queue look for due events, if a poll for them comes soon anyway and none
// is known to be due.
func (df *deferrals) look(f *fetch) {
	if df.next == never || df.due <= df.now || df.woken || df.fails > 0 || df.next > df.now+df.reader.delay {
		return
	}
	for _, sh := range df.shards {
		if sh != nil && sh.open() {
			f.Look = append(f.Look, sh.no)
		}
	}
	f.looks = true
	df.next, df.polledAt = never, df.now
}

// looked plans the next poll after such a poll: a little later than the next poll of the queue, which
// makes it needless. Due events are moved at once.
func (df *deferrals) looked(cl *Call) {
	f := cl.fetch()
	switch {
	case !f.looks:
	case cl.Err != nil, f.Look == nil, f.Next == 0:
		df.next = df.now
	default:
		asked := df.next // for by a shard that was opened meanwhile
		df.plan(max(f.Next, 0), df.signals.longest()+df.signals.longest()/4)
		df.next = min(df.next, asked)
	}
}

// hurry brings the next poll forward; a poll under way plans the next one itself.
func (df *deferrals) hurry() {
	if df.next != never && df.fails == 0 {
		df.next = min(df.next, df.now+df.cfg.PollMax)
	}
}

// moved makes the next fetch read the moved events, which are below the read positions, since
// deferred events were written long ago. Undefer takes its turn among the reads, so the next fetch
// is younger than the move.
func (df *deferrals) moved(cl *Call) {
	s := cl.Statement.(*statement.Undefer)
	if cl.Err != nil { // the statement may have been executed
		for _, sh := range cl.shards {
			sh.rewind(0)
		}
		df.next = df.now + min(50*time.Millisecond<<min(df.fails, 20), deferredSlowMax)
		df.fails++
		return
	}
	df.fails = 0
	for _, no := range s.Lost {
		for _, sh := range cl.shards {
			if sh.no == no {
				df.leases.lose(sh, cl.Op().String())
			}
		}
	}
	df.plan(s.Next, df.signals.longest())
	counts := make(map[int]int)
	for _, m := range s.Moved {
		if sh := df.shards[m.Shard]; sh != nil {
			sh.want(m.Seq)
		}
		if counts[m.Shard]++; counts[m.Shard] >= s.Limit { // more events may be due
			df.next = df.now
		}
	}
}
