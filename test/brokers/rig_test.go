package brokers

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport/transporttest"
)

var document = flag.Bool("document", false, "write the table of docs/transports.md instead of comparing with it")

func TestMain(m *testing.M) {
	if is, err := serve(); is {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	m.Run()
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bound is some 20 s longer than the clients here wait for an answer, all their attempts included.
const bound = 45 * time.Second

// startChild starts a server of the kind for this test.
func startChild(t *testing.T, kind string) *child {
	t.Helper()
	c, err := newChild(kind, t.TempDir())
	ok(t, err)
	ok(t, c.start(t.Context()))
	t.Cleanup(c.kill)
	return c
}

// check runs the suite and notes what came of it for the table.
func check(t *testing.T, name string, target *transporttest.Target) transporttest.Report {
	t.Helper()
	target.Bound = max(target.Bound, bound)
	begin := time.Now()
	report, err := transporttest.Check(t.Context(), target)
	ok(t, err)
	t.Logf("%s, in %v", name, time.Since(begin).Round(time.Second))
	for i := range report {
		r := &report[i]
		t.Logf("%-13s %-7s %3.0f s  %s", r.Name, r.Verdict, r.Took.Seconds(), r.Detail)
	}
	return report
}

// opener makes Target.Open of a function without a context.
func opener[P message.Publisher](open func(address string) (P, error)) func(context.Context, string) (message.Publisher, error) {
	return func(_ context.Context, address string) (message.Publisher, error) {
		p, err := open(address)
		if err != nil {
			return nil, err
		}
		return p, nil
	}
}
