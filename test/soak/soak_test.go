package soak

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

// over is a reader of rows that are given.
func over(rows ...row) (*reader, func() error) {
	r := &reader{}
	return r, func() error {
		if r.ok = len(rows) > 0; r.ok {
			r.row, rows = rows[0], rows[1:]
		}
		return nil
	}
}

func TestEveryDifferenceIsFound(t *testing.T) {
	t.Parallel()
	a1, a2, b1, b2 := row{"a", 1, 10}, row{"a", 2, 20}, row{"b", 1, 30}, row{"b", 2, 40}
	for name, c := range map[string]struct {
		effects []row
		want    findings
		aside   map[place]bool
	}{
		"all well":          {effects: []row{a1, a2, b1}, want: findings{messages: 3, effects: 3}},
		"first lost":        {effects: []row{a2, b1}, want: findings{messages: 3, effects: 2, lost: 1}},
		"last lost":         {effects: []row{a1, a2}, want: findings{messages: 3, effects: 2, lost: 1}},
		"all lost":          {want: findings{messages: 3, lost: 3}},
		"twice":             {effects: []row{a1, a1, a2, b1}, want: findings{messages: 3, effects: 4, repeated: 1}},
		"last three times":  {effects: []row{a1, a2, b1, b1, b1}, want: findings{messages: 3, effects: 5, repeated: 2}},
		"from nowhere":      {effects: []row{a1, a2, b1, b2}, want: findings{messages: 3, effects: 4, phantom: 1}},
		"other content":     {effects: []row{a1, {"a", 2, 21}, b1}, want: findings{messages: 3, effects: 3, phantom: 1}},
		"one for another":   {effects: []row{a1, a2, b2}, want: findings{messages: 3, effects: 3, lost: 1, phantom: 1}},
		"set aside":         {effects: []row{a1, b1}, want: findings{messages: 3, effects: 2, aside: 1}, aside: map[place]bool{{"a", 2}: true}},
		"another set aside": {effects: []row{a1, b1}, want: findings{messages: 3, effects: 2, lost: 1, phantom: 1}, aside: map[place]bool{{"a", 1}: true}},
	} {
		orders, nextOrder := over(a1, a2, b1)
		effects, nextEffect := over(c.effects...)
		var got findings
		if err := merge(&got, c.aside, nextOrder, nextEffect, orders, effects); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: found %+v, %v, want %+v", name, got, err, c.want)
		}
	}
}

func TestSlopeIsThatOfEachProcess(t *testing.T) {
	t.Parallel()
	var s slope
	s.add([]point{{1, 100}, {2, 110}, {3, 120}})
	s.add([]point{{1, 5000}, {2, 5010}}) // a larger one, that grows alike
	s.add([]point{{9, 9}})
	if got := s.perMinute(); math.Abs(got-10) > 1e-9 || s.minutes != 3 {
		t.Errorf("slope %v over %v minutes", got, s.minutes)
	}
	if got := s.standardError(); got > 1e-9 {
		t.Errorf("standard error %v of two processes that grow alike", got)
	}
	s.add([]point{{1, 120}, {2, 110}, {3, 100}})
	if slope, err := s.perMinute(), s.standardError(); math.Abs(slope-1.11) > 0.01 || math.Abs(err-7.84) > 0.01 {
		t.Errorf("slope %v, standard error %v, of processes that differ", slope, err)
	}
}

func TestGrowthWithinItsErrorIsNoViolation(t *testing.T) {
	t.Parallel()
	r := enough()
	r.RSSMinutes, r.RSSSlope, r.RSSError = 6, 5, 2
	if r.judge(&Config{Duration: 10 * time.Minute, DrainLimit: time.Minute}, nil); !r.Passed() {
		t.Errorf("violations %v, missing %v", r.Violations, r.Missing)
	}
}

// enough is a report of ten minutes in which enough was done, and nothing found.
func enough() *Report {
	return &Report{
		Messages: 200_000, Kills: 1000, Stops: 20, PGCrashes: 30, RabbitKill: 10, Partitions: 80, Suppressed: 9000,
		Unheard: 20_000, Replayed: 5000, Removed: 50_000, Drained: true, Pauses: 20, Discarded: 10,
		Misbehaved: map[string]int64{"failed": 200, "swallowed": 100, "panicked": 60, "ended": 30, "hung": 10},
	}
}

func TestReportIsJudged(t *testing.T) {
	t.Parallel()
	cfg := &Config{Duration: 10 * time.Minute, DrainLimit: time.Minute}
	r := enough()
	if r.judge(cfg, nil); !r.Passed() {
		t.Fatalf("%v, %v", r.Violations, r.Missing)
	}
	for name, spoil := range map[string]func(*Report){
		"lost": func(r *Report) { r.Lost = 1 }, "repeated": func(r *Report) { r.Repeated = 1 },
		"out of order": func(r *Report) { r.Unordered = 1 }, "effects of nothing": func(r *Report) { r.Phantom = 1 },
		"without their event": func(r *Report) { r.Torn = 1 }, "without a claim": func(r *Report) { r.Unclaimed = 1 },
		"not at rest": func(r *Report) { r.Drained = false }, "rest 61": func(r *Report) { r.Drain = 61 },
		"heap":   func(r *Report) { r.PeakHeapMB = map[string]float64{"relay": 300} },
		"memory": func(r *Report) { r.RSSMinutes, r.RSSSlope, r.RSSError = 6, 5, 1.5 },
	} {
		r := enough()
		spoil(r)
		r.judge(cfg, nil)
		words := name
		if name == "rest 61" {
			words = "not at rest 61 s"
		}
		if r.Passed() || len(r.Violations) != 1 || !strings.Contains(r.Violations[0], words) {
			t.Errorf("%s: %v", name, r.Violations)
		}
	}
	r = enough()
	if r.judge(cfg, []string{"a process failed"}); r.Passed() {
		t.Error("a failed process passes")
	}
}

func TestRunWithoutEnoughWorkIsInvalid(t *testing.T) {
	t.Parallel()
	cfg := &Config{Duration: 10 * time.Minute, DrainLimit: time.Minute}
	for name, spoil := range map[string]func(*Report){
		"messages": func(r *Report) { r.Messages = 79_999 }, "kills": func(r *Report) { r.Kills = 499 },
		"stops": func(r *Report) { r.Stops = 9 }, "PostgreSQL crashes": func(r *Report) { r.PGCrashes = 19 },
		"RabbitMQ kills": func(r *Report) { r.RabbitKill = 9 }, "partitions": func(r *Report) { r.Partitions = 39 },
		"pauses": func(r *Report) { r.Pauses = 9 }, "messages discarded": func(r *Report) { r.Discarded = 1 },
		"that fail": func(r *Report) { r.Misbehaved["failed"] = 9 }, "that swallow": func(r *Report) { r.Misbehaved["swallowed"] = 9 },
		"that panic": func(r *Report) { r.Misbehaved["panicked"] = 4 },
		"that end":   func(r *Report) { r.Misbehaved["ended"] = 4 }, "that hang": func(r *Report) { r.Misbehaved["hung"] = 0 },
		"copies suppressed": func(r *Report) { r.Suppressed = 2999 }, "events without a queue": func(r *Report) { r.Unheard = 2999 },
		"events replayed": func(r *Report) { r.Replayed = 999 }, "events removed": func(r *Report) { r.Removed = 999 },
	} {
		r := enough()
		spoil(r)
		r.judge(cfg, nil)
		if r.Valid || r.Passed() || len(r.Missing) != 1 || !strings.Contains(r.Missing[0], name) {
			t.Errorf("%s: %v", name, r.Missing)
		}
	}
}

func TestPaceLeavesTimeForEveryFault(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{time.Minute, 10 * time.Minute} {
		p := (&Config{Duration: d}).pace()
		// The first comes after half of a mean, the others at most one and a half means after it.
		for kind, c := range map[string]struct {
			mean  time.Duration
			least int
		}{"postgres": {p.postgres, 2}, "rabbit": {p.rabbit, 1}, "partition": {p.partition, 4}, "stop": {p.stop, 1}} {
			if n := 1 + int((d-c.mean/2)/(c.mean*3/2)); n < c.least*int(d.Minutes())*2/3 {
				t.Errorf("%v: %d of %s", d, n, kind)
			}
		}
	}
}
