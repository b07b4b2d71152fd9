package transporttest

import (
	"errors"
	"time"
)

// Verdict is the outcome of a case.
type Verdict uint8

const (
	// NotRun: the target lacks a function or an address for the case.
	NotRun Verdict = iota
	// Passed: the publisher meets the requirement.
	Passed
	// Failed: the publisher does not meet the requirement.
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

// Case is one requirement for a publisher.
type Case struct {
	Name string // one or two words, unique
	// Asks is the requirement, as a sentence.
	Asks string
	// Otherwise is the harm that a relay suffers from a publisher which fails the case.
	Otherwise string
}

// Result is the result of a case.
type Result struct {
	Case

	Verdict Verdict
	Detail  string // the reason of a failure or of not running; if there are several ways to pass, the way
	Took    time.Duration
}

// Report has the results of all cases, in the order of [Cases].
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

// notRun is the error of a case for which the target lacks a function or an address.
type notRun struct{ why string }

func (n notRun) Error() string { return n.why }

// judge returns the result for a case's note and error.
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
