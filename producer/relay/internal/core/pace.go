package core

import (
	"log/slog"
	"time"
)

// With hundreds of routes that do not work, as when a downstream with a topic for each customer is
// down, probes and records for the log would be hundreds a second. Both have a budget that all
// routes share, which a few do not use up.

const (
	probesPerSecond = 50 // on all stalled routes together; a probe that succeeds costs nothing
	recordsAtOnce   = 50 // about routes, before they are summed up
	recordsEvery    = time.Second
	repeatFirst     = time.Second // between two records of one kind about a route …
	repeatLongest   = 5 * time.Minute
)

// probing is the budget of probes.
type probing struct {
	left float64
	at   time.Duration // when left was right; 0: never
}

// may tells whether a probe may be sent now.
func (p *probing) allow(now time.Duration) bool {
	if p.at == 0 {
		p.left = probesPerSecond
	}
	p.left = min(probesPerSecond, p.left+probesPerSecond*(now-p.at).Seconds())
	p.at = now
	return p.left >= 1
}

// next is when a probe may be sent that may not be sent now.
func (p *probing) next() time.Duration {
	return p.at + time.Duration((1-p.left)/probesPerSecond*float64(time.Second)) + time.Microsecond
}

// repeats has one kind of record written at growing intervals, and begins anew when there was
// nothing to write for as long.
type repeats struct {
	until   time.Duration // nothing is written before
	pause   time.Duration
	omitted int // since the last one that was written
}

// pass tells whether a record is to be written now, and how many like it were not.
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

// routeLog owns the budget of log records about routes.
type routeLog struct {
	*Machine

	left    int
	leftAt  time.Duration // when left was right
	summary repeats
	omitted int
	worst   slog.Level
}

// route writes a record about r, or has it summed up with those of other routes.
func (rl *routeLog) route(level slog.Level, msg string, r *route, attrs ...slog.Attr) {
	if rl.allow(level) {
		rl.note(level, msg, append([]slog.Attr{slog.String("route", r.name)}, attrs...)...)
	}
}

// trouble writes a record about an event that r has not taken, for the first and then from time
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

// may tells whether a record about a route is to be written by itself.
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

// sumUp writes one record for those about routes that were not written.
func (rl *routeLog) sumUp() {
	if rl.omitted == 0 {
		return
	}
	if rl.now < rl.summary.until {
		rl.at(rl.summary.until)
		return
	}
	rl.summary.allow(rl.now)
	paused, down := 0, 0
	for _, r := range rl.routes.stalled {
		if r.down {
			down++
		} else {
			paused++
		}
	}
	rl.note(rl.worst, "many routes do not work", slog.Int("paused", paused), slog.Int("unavailable", down),
		slog.Int("omitted", rl.omitted))
	rl.omitted, rl.worst = 0, slog.LevelInfo
}
