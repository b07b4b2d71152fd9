package core

import (
	"log/slog"
	"maps"
	"math/bits"
	"slices"
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/store/control"
)

// pauses knows what operators have paused. A relay with events in memory reads the pauses twice a
// second, and so does one that knows of a pause. It sends nothing while it knows no recent state. A
// relay without events and pauses reads nothing.
type pauses struct {
	*Machine

	list  []control.Pause
	known bool          // the list was read
	asOf  time.Duration // when the list was asked for
	asked bool
	fails int
	retry time.Duration
	took  time.Duration // the last read

	skippedIn uint64        // shards, as bits, with skipped events of paused routes
	left      int           // events of paused routes that were read and left in the database
	problem   string        // of the last read
	heldAt    time.Duration // since when events wait for the list; 0: none does
	toldAt    time.Duration
}

const (
	pausesEvery = 450 * time.Millisecond // between two reads
	pausesHold  = time.Second            // for so long the list is recent, or for two reads if they are slow
	pausesTell  = 5 * time.Second        // from which the wait for a list is told of
)

// recent tells whether events may be sent by the list. After a failed read, the last list is good
// enough: a relay without a database has few events to send.
func (ps *pauses) recent() bool {
	if ps.known && (ps.now-ps.asOf < max(pausesHold, 2*ps.took) || ps.fails > 0) {
		ps.heldAt = 0
		return true
	}
	return false
}

// held notes that events wait for the list, and tells if they wait for long.
func (ps *pauses) held() {
	if ps.stopping || ps.keys.buffered == 0 {
		return
	}
	if ps.heldAt == 0 {
		ps.heldAt, ps.toldAt = max(ps.now, 1), ps.now+pausesTell
	}
	if ps.now < ps.toldAt {
		ps.at(ps.toldAt)
		return
	}
	ps.toldAt = ps.now + time.Minute
	ps.note(slog.LevelError, "nothing is sent: what operators have paused could not be read; are all migrations applied, and may this user read the table of pauses?",
		slog.Duration("for", ps.now-ps.heldAt), slog.String("error", ps.problem))
}

// plan reads the list if it is old and there are events, or will be soon.
func (ps *pauses) plan() {
	if ps.asked || ps.stopping || ps.keys.buffered == 0 && len(ps.routes.stalled) == 0 && len(ps.list) == 0 && ps.reader.woken.None() {
		return
	}
	due := max(ps.asOf+pausesEvery, ps.retry)
	if ps.known && ps.now < due {
		ps.at(due)
		return
	}
	if ps.now < ps.retry {
		ps.at(ps.retry)
		return
	}
	ps.asked = true
	ps.issue(ask(&statement.Pauses{}))
}

// reply takes the list over.
func (ps *pauses) reply(cl *Call) {
	ps.asked = false
	if cl.Err != nil {
		ps.fails++
		ps.problem = storedError(cl.Err)
		ps.retry = ps.now + ps.pause(ps.fails)
		return
	}
	ps.took, ps.problem = ps.now-cl.issued, ""
	before, list := ps.list, cl.Statement.(*statement.Pauses).List
	ps.fails, ps.retry, ps.asOf, ps.known = 0, 0, cl.issued, true
	ps.list = slices.DeleteFunc(list, func(p control.Pause) bool { return p.Kind == control.Consumer })
	if slices.EqualFunc(before, ps.list, samePause) {
		return
	}
	ps.tell(before)
	ps.apply()
}

func samePause(a, b control.Pause) bool {
	return a.Kind == b.Kind && a.Name == b.Name && a.Reason == b.Reason && a.By == b.By && a.Until.Equal(b.Until)
}

// tell notes which pauses have begun and ended since the list before.
func (ps *pauses) tell(before []control.Pause) {
	each := func(list, other []control.Pause, same func(a, b control.Pause) bool, msg string, kind NoticeKind) {
		for _, p := range list {
			if slices.ContainsFunc(other, func(o control.Pause) bool { return same(o, p) }) {
				continue
			}
			ps.note(slog.LevelInfo, msg, slog.String("kind", string(p.Kind)), slog.String("name", p.Name),
				slog.Time("until", p.Until), slog.String("reason", p.Reason), slog.String("by", p.By))
			ps.notify(Notice{Kind: kind, Pause: p})
		}
	}
	each(before, ps.list, func(a, b control.Pause) bool { return a.Kind == b.Kind && a.Name == b.Name }, "pause has ended", NoticeResumed)
	each(ps.list, before, samePause, "pause has begun", NoticePaused)
}

// of returns the pause of a topic, or nil.
func (ps *pauses) of(topic string) *control.Pause {
	for i := range ps.list {
		p := &ps.list[i]
		switch {
		case p.Kind == control.Topic && ps.topics.Matches(p.Name, topic),
			p.Kind == control.Downstream && ps.topics.Downstream(topic).Name == p.Name:
			return p
		}
	}
	return nil
}

// apply closes and opens routes. Topics with a common route are paused together.
func (ps *pauses) apply() {
	for _, name := range slices.Sorted(maps.Keys(ps.routes.byName)) {
		r := ps.routes.byName[name]
		var p *control.Pause
		for _, topic := range r.topics {
			if p = ps.of(topic); p != nil {
				break
			}
		}
		ps.routes.setPause(r, p)
	}
	for left := ps.skippedIn; left != 0; left &= left - 1 { // for routes that were forgotten meanwhile
		if sh := ps.shards[bits.TrailingZeros64(left)]; sh != nil {
			sh.back.hurry()
		}
	}
	ps.skippedIn = 0
	ps.reports.due = true
}
