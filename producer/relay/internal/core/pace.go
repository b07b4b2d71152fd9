package core

import (
	"log/slog"
	"time"
)

// With hundreds of stalled routes, as when a downstream with a topic per customer is down, there
// would be hundreds of probes and log records a second. Probes and records each have a budget that
// all routes share, and that a few routes do not use up.

const (
	probesPerSecond = 50 // on all stalled routes together; a successful probe costs nothing
	recordsAtOnce   = 50 // about routes, before records are summed up
	recordsEvery    = time.Second
	repeatFirst     = time.Second // between two records of one kind about a route …
	repeatLongest   = 5 * time.Minute
)

// probing is the budget of probes.
type probing struct {
	left float64
	at   time.Duration // when left was computed; 0: never
}

// allow tells whether a probe may be sent now.
func (p *probing) allow(now time.Duration) bool {
	if p.at == 0 {
		p.left = probesPerSecond
	}
	p.left = min(probesPerSecond, p.left+probesPerSecond*(now-p.at).Seconds())
	p.at = now
	return p.left >= 1
}

// next is when the next probe may be sent, after allow has said no.
func (p *probing) next() time.Duration {
	return p.at + time.Duration((1-p.left)/probesPerSecond*float64(time.Second)) + time.Microsecond
}

// repeats spaces the records of one kind at growing intervals. After a quiet time as long as the
// interval, the intervals begin anew.
type repeats struct {
	until   time.Duration // no record is written before this time
	pause   time.Duration
	omitted int // since the last record
}

// allow tells whether a record is written now, and how many records were omitted before.
func (p *repeats) allow(now time.Duration) (omitted int, ok bool) {
	if now < p.until {
		p.omitted++
		return 0, false
	}
	if p.pause == 0 || now > p.until+p.pause {
		p.pause = repeatFirst
	} else {
		p.pause = min(2*p.pause, repeatLongest)
	}
	p.until = now + p.pause
	omitted, p.omitted = p.omitted, 0
	return omitted, true
}

// routeLog writes log records about routes within a budget.
type routeLog struct {
	*Machine

	left    int
	leftAt  time.Duration // when left was computed
	summary repeats
	omitted int
	worst   slog.Level
}

// route writes a record about r, or counts it for the summary.
func (rl *routeLog) route(level slog.Level, msg string, r *route, attrs ...slog.Attr) {
	if rl.allow(level) {
		rl.note(level, msg, append([]slog.Attr{slog.String("route", r.name)}, attrs...)...)
	}
}

// trouble writes a record about an event that its route has not taken: at first, and then from time
// to time.
func (rl *routeLog) trouble(msg string, e *Entry) {
	r := e.route
	omitted, ok := r.trouble.allow(rl.now)
	if !ok || !rl.allow(slog.LevelWarn) {
		return
	}
	attrs := []slog.Attr{
		slog.String("route", r.name), slog.String("outcome", e.outcome.String()), slog.String("error", e.problem),
	}
	if omitted > 0 {
		attrs = append(attrs, slog.Int("omitted", omitted))
	}
	rl.noteEvent(slog.LevelWarn, msg, e, attrs...)
}

// allow tells whether a record about a route is written by itself.
func (rl *routeLog) allow(level slog.Level) bool {
	if gain := int((rl.now - rl.leftAt) / recordsEvery); gain > 0 || rl.leftAt == 0 {
		rl.left, rl.leftAt = min(recordsAtOnce, rl.left+gain), max(rl.now, 1)
	}
	if rl.left > 0 {
		rl.left--
		return true
	}
	rl.omitted++
	rl.worst = max(rl.worst, level)
	return false
}

// sumUp writes one record for all omitted records about routes.
func (rl *routeLog) sumUp() {
	if rl.omitted == 0 {
		return
	}
	if rl.now < rl.summary.until {
		rl.at(rl.summary.until)
		return
	}
	rl.summary.allow(rl.now)
	refusing, down := 0, 0
	for _, r := range rl.routes.stalled {
		switch {
		case r.down:
			down++
		case r.paused:
			refusing++
		}
	}
	rl.note(rl.worst, "many routes do not work", slog.Int("refusing", refusing), slog.Int("unavailable", down),
		slog.Int("omitted", rl.omitted))
	rl.omitted, rl.worst = 0, slog.LevelInfo
}
