package core

import "time"

// signals knows whether the relay learns of the commits of other processes. While it does and no
// event comes, polls are further apart: an idle relay then costs the database little.
//
// That listening has begun proves nothing: a pooler may pass no signals on, and a process may send
// none. Signals count as working once one has arrived, until listening ends or a poll finds events
// that no signal has told of.
type signals struct {
	*Machine

	heard  bool          // a signal has arrived since listening began
	newsAt time.Duration // when the relay last learned of events

	doubted    bool          // a poll has found events that no signal had told of …
	doubtedAt  time.Duration // … at this time
	doubtUntil time.Duration // signals are not believed before this time
	before     trust         // before the last doubt
}

// trust is the part of signals that a doubt changes.
type trust struct {
	heard      bool
	doubtUntil time.Duration
}

const (
	// idleAfter is how long a relay polls as often as ever after the last event, in PollIdle: whoever
	// writes in a transaction of his own may have sent the signal before the commit.
	idleAfter = 2
	// signalLate is how much later than its event a signal may arrive.
	signalLate = 2 * time.Second
	// doubtFor is how long signals are not believed after an event without a signal.
	doubtFor = time.Hour
)

// longest returns the longest time until the next poll.
func (sg *signals) longest() time.Duration {
	if sg.idle() {
		return sg.cfg.PollIdle
	}
	return sg.cfg.PollMax
}

// idle tells whether signals work and no event has come for a while.
func (sg *signals) idle() bool {
	return sg.cfg.PollIdle > sg.cfg.PollMax && sg.heard && sg.now >= sg.doubtUntil && (sg.now-sg.newsAt)/idleAfter >= sg.cfg.PollIdle
}

// listening takes over that a signal has arrived, or that listening has ended.
func (sg *signals) listening(heard bool) {
	sg.heard = heard
	if !heard {
		sg.hurry()
	}
}

// news notes that the relay has learned of events.
func (sg *signals) news() {
	sg.newsAt = sg.now
	sg.hurry()
}

// woken takes over a wake-up for this relay. A signal may arrive after a poll has found its event.
func (sg *signals) woken() {
	if sg.doubted && sg.now-sg.doubtedAt <= signalLate {
		sg.heard, sg.doubtUntil = sg.heard || sg.before.heard, sg.before.doubtUntil
	}
	sg.doubted = false
	sg.news()
}

// found takes over that a poll has found events. alone tells that no wake-up has come for a while.
func (sg *signals) found(alone bool) {
	sg.news()
	if !alone || sg.doubted && sg.now-sg.doubtedAt <= signalLate {
		return
	}
	sg.before = trust{sg.heard, sg.doubtUntil}
	sg.doubted, sg.doubtedAt = true, sg.now
	sg.heard, sg.doubtUntil = false, sg.now+doubtFor
}

// hurry brings the next polls forward.
func (sg *signals) hurry() {
	rd := &sg.reader
	rd.delay = min(rd.delay, sg.cfg.PollMax)
	rd.pollAt = min(rd.pollAt, sg.now+sg.cfg.PollMax)
	sg.deferred.hurry()
}
