package transporttest

import (
	"errors"
	"time"
)

// Verdict is what became of a case.
type Verdict uint8

const (
	// NotRun: the target lacks what the case needs.
	NotRun Verdict = iota
	// Passed: the publisher keeps what is asked.
	Passed
	// Failed: it does not.
	Failed
)

// String returns the verdict in lower case.
func (v Verdict) String() string {
	switch v {
	case NotRun:
		return "not run"
	case Passed:
		return "passed"
	case Failed:
		return "failed"
	default:
		return "unknown"
	}
}

// Case is one thing that is asked of a publisher.
type Case struct {
	Name string // one or two words, which no other case has
	// Asks is what is asked, as a sentence.
	Asks string
	// Otherwise is what a relay suffers from a publisher that fails.
	Otherwise string
}

// Result is what became of a case.
type Result struct {
	Case

	Verdict Verdict
	Detail  string // why it failed or was not run, and how it passed where there are several ways
	Took    time.Duration
}

// Report is what became of all cases, in the order of [Cases].
type Report []Result

// Safe tells whether no case failed.
func (r Report) Safe() bool { return len(r.Failed()) == 0 }

// Failed returns the names of the cases that failed.
func (r Report) Failed() []string {
	var names []string
	for i := range r {
		if r[i].Verdict == Failed {
			names = append(names, r[i].Name)
		}
	}
	return names
}

// notRun is returned by a case for which the target lacks something.
type notRun struct{ why string }

func (n notRun) Error() string { return n.why }

// judge makes a result of what a case returned.
func judge(c Case, took time.Duration, note string, err error) Result {
	r := Result{Case: c, Verdict: Passed, Detail: note, Took: took}
	var not notRun
	switch {
	case errors.As(err, &not):
		r.Verdict, r.Detail = NotRun, not.why
	case err != nil:
		r.Verdict, r.Detail = Failed, err.Error()
	}
	return r
}
