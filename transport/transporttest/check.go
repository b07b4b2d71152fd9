package transporttest

import (
	"context"
	"sync"
	"testing"
	"time"
)

// test is a case and its function, which returns a note on how the publisher passed, or an error on
// how it failed.
type test struct {
	Case

	run func(ctx context.Context, p *probe) (note string, err error)
	// alone excludes other cases at the same time; line means that the case needs Address.
	alone, line bool
}

// tests returns all cases, in the order of reports.
func tests() []test { return append(plainTests(), faultTests()...) }

// Cases returns all cases.
func Cases() []Case {
	var cases []Case
	for _, t := range tests() {
		cases = append(cases, t.Case)
	}
	return cases
}

// Test runs every case as a subtest. A subtest fails if the publisher fails the case, and is
// skipped if the target lacks a function or an address for it. The subtests run in parallel, except
// the one that restarts the broker.
func Test(t *testing.T, target *Target) {
	t.Helper()
	complete, err := target.complete()
	if err != nil {
		t.Fatal(err)
	}
	one := func(t *testing.T, test *test) {
		switch r := run(t.Context(), complete, test); r.Verdict {
		case Failed:
			t.Errorf("%s\n%s: otherwise %s", r.Detail, r.Asks, r.Otherwise)
		case NotRun:
			t.Skip(r.Detail)
		case Passed:
			if r.Detail != "" {
				t.Log(r.Detail)
			}
		}
	}
	list := tests()
	t.Run("together", func(t *testing.T) {
		for i := range list {
			if !list[i].alone {
				t.Run(list[i].Name, func(t *testing.T) {
					t.Parallel()
					one(t, &list[i])
				})
			}
		}
	})
	for i := range list {
		if list[i].alone {
			t.Run(list[i].Name, func(t *testing.T) { one(t, &list[i]) })
		}
	}
}

// together is how many cases Check runs at once. They mostly wait.
const together = 4

// Check runs all cases and reports the results. Check blocks until all cases are done: about a minute
// for a publisher that works, longer for a publisher that hangs. The error joins all wrong fields of
// target.
func Check(ctx context.Context, target *Target) (Report, error) {
	complete, err := target.complete()
	if err != nil {
		return nil, err
	}
	list := tests()
	report := make(Report, len(list))
	var running sync.WaitGroup
	places := make(chan struct{}, together)
	for i := range list {
		if list[i].alone {
			continue
		}
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			report[i] = run(ctx, complete, &list[i])
		})
	}
	running.Wait()
	for i := range list {
		if list[i].alone {
			report[i] = run(ctx, complete, &list[i])
		}
	}
	return report, nil
}

// run runs one case.
func run(ctx context.Context, target *Target, t *test) Result {
	begin := time.Now()
	if t.line && target.Address == "" {
		return judge(t.Case, 0, "", notRun{"the publisher has no connection"})
	}
	if t.alone && target.Restart == nil {
		return judge(t.Case, 0, "", notRun{"Target.Restart is nil"})
	}
	p, err := newProbe(ctx, target)
	if err != nil {
		return judge(t.Case, time.Since(begin), "", err)
	}
	note, err := t.run(ctx, p)
	took := time.Since(begin)
	p.end()
	return judge(t.Case, took, note, err)
}
