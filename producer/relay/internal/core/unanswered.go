package core

import (
	"errors"
	"slices"
	"time"

	"github.com/boxpair/boxpair/transport"
)

// errNoOutcome is the error of a send for which the publisher has reported no outcome.
var errNoOutcome = errors.New("the publisher has told no outcome of the message, though its context has ended")

// unanswered are the sends without an outcome, in the order of sending, and some answered sends. A
// publisher must answer once the context of a send ends. An event without an outcome would keep its
// key, its place in the window and its shard until the relay is restarted.
type unanswered struct {
	last  int64 // number of the last send
	sends []numberedSend
}

type numberedSend struct {
	number int64
	entry  *Entry
	gen    uint32
}

// awaited tells whether the send has no outcome yet.
func (s *numberedSend) awaited() bool { return s.entry.state == entrySending && s.entry.Gen == s.gen }

// add numbers a send. window is how many sends can be awaited at once.
func (u *unanswered) add(e *Entry, window int) {
	if len(u.sends) >= 4*window {
		u.sends = slices.DeleteFunc(u.sends, func(s numberedSend) bool { return !s.awaited() })
	}
	u.last++
	u.sends = append(u.sends, numberedSend{u.last, e, e.Gen})
}

// oldest returns the time of the oldest awaited send.
func (u *unanswered) oldest() (time.Duration, bool) {
	for i := range u.sends {
		if s := &u.sends[i]; s.awaited() {
			return s.entry.sentAt, true
		}
	}
	return 0, false
}

// overdue gives up the outcomes of the sends up to a number: the contexts of these sends ended a
// while ago.
func (dp *dispatcher) overdue(through int64) {
	u := &dp.unanswered
	for len(u.sends) > 0 && u.sends[0].number <= through {
		s := u.sends[0]
		u.sends = u.sends[1:]
		if s.awaited() {
			dp.outcome(SendResult{Entry: s.entry, Gen: s.gen, Result: transport.Result{Outcome: transport.Unavailable, Err: errNoOutcome}})
		}
	}
}
