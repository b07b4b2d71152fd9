package doctor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

// A young transaction is judged by how long sessions wait for it. Prepared
// transactions (0) and sessions of other databases (99) are not in the list.
func TestBlockerIsJudgedByTheSessionsThatWait(t *testing.T) {
	t.Parallel()
	list := []session{
		{pid: 1, age: 9 * time.Minute, waits: 3 * time.Minute, blockers: []int{2}},
		{pid: 2, age: 8 * time.Minute, waits: 4 * time.Minute, blockers: []int{3, 0}},
		{pid: 3, age: time.Minute, waits: time.Minute},
		{pid: 4, age: 7 * time.Minute, waits: 7 * time.Minute, blockers: []int{99}},
		{pid: 5, age: 6 * time.Minute, waits: time.Second, blockers: []int{3, 4}},
	}
	got := holders(list)
	if len(got) != 2 || got[0].pid != 3 || len(got[0].waiting) != 3 || got[0].longest != 4*time.Minute || got[1].pid != 4 || len(got[1].waiting) != 1 || got[1].longest != time.Second {
		t.Errorf("got %+v", got)
	}
}

func TestTransactionThatIdlesWhileASessionWaitsStalls(t *testing.T) {
	t.Parallel()
	cfg := Config{TransactionAge: 5 * time.Minute, EventAge: time.Minute}
	for _, c := range []struct {
		session
		want bool
	}{
		{session{state: "idle in transaction", age: 11 * time.Second, waiting: make([]*session, 1), longest: time.Second}, true},
		{session{state: "idle in transaction (aborted)", age: 11 * time.Second, waiting: make([]*session, 2)}, true},
		{session{state: "idle in transaction", age: 9 * time.Second, waiting: make([]*session, 1)}, false},
		{session{state: "idle in transaction", age: 4 * time.Minute}, false},
		{session{state: "idle in transaction", age: 6 * time.Minute}, true},
		{session{state: "active", age: time.Minute, waiting: make([]*session, 3), longest: 20 * time.Second}, false},
		{session{state: "active", age: 2 * time.Minute, waiting: make([]*session, 3), longest: 61 * time.Second}, true},
	} {
		if got := c.stalls(&cfg); got != c.want {
			t.Errorf("%+v: %t", c.session, got)
		}
	}
}

func TestProblemOfATransactionBeginsWithTheSessionsThatWait(t *testing.T) {
	t.Parallel()
	s := session{pid: 7, role: "ops", application: "psql", state: "idle in transaction", age: 6 * time.Minute}
	if got, want := s.problem(), "a transaction of role ops (psql, idle in transaction, pid 7) is open for 6m0s: what it locks waits, and vacuum removes no delivered row. "; !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q…", got, want)
	}
	stock := &session{role: "stock", application: "stock service"}
	s.waiting = []*session{stock, {role: "relay"}, stock}
	if got, want := s.problem(), "3 sessions (2 of role stock as stock service, role relay) wait for a transaction of role ops (psql, idle in transaction, pid 7), open for 6m0s, and vacuum removes "; !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q…", got, want)
	}
}

func TestConsumersApartReadOneQueue(t *testing.T) {
	t.Parallel()
	of := func(name, topic string, from, until, step int) *reader {
		r := &reader{consumer: name, topics: []string{topic}, stamps: make(map[string]int64)}
		for i := from; i < until; i += step {
			r.stamps[fmt.Sprint(i)] = int64(i)
			r.last = int64(i)
		}
		r.first = int64(from)
		return r
	}
	even := of("stock/reserve", "order.placed", 0, 60, 2)
	for name, c := range map[string]struct {
		other *reader
		want  int
	}{
		"the other half":      {of("mail/send", "order.placed", 1, 60, 2), 58}, // without 0 and 59, which are of the time of one
		"all":                 {of("mail/send", "order.placed", 0, 60, 1), 0},
		"few":                 {of("mail/send", "order.placed", 1, 60, 12), 0},
		"another time":        {of("mail/send", "order.placed", 61, 99, 2), 0},
		"a part of that time": {of("mail/send", "order.placed", 31, 99, 2), 28},
		"another topic":       {of("mail/send", "order.paid", 1, 60, 2), 0},
		"itself elsewhere":    {of("stock/reserve", "order.placed", 1, 60, 2), 0},
	} {
		if got := even.apart(c.other); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
		if got := c.other.apart(even); got != c.want {
			t.Errorf("%s, the other way round: %d, want %d", name, got, c.want)
		}
	}
}

func TestRemedyOfARouteFitsItsError(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		state outbox.RouteState
		err   string
		want  string
	}{
		{outbox.RouteRefusing, "Exception (403) Reason: \"ACCESS_REFUSED - access to exchange 'x' refused\"", "rabbitmqctl set_permissions"},
		{outbox.RouteRefusing, "312 NO_ROUTE", "declare the queue"},
		{outbox.RouteRefusing, "nack", "a full queue"},
		{outbox.RouteState("unavailable"), "connection refused", "bring the broker back"},
	} {
		if got := mend(&outbox.StalledRoute{State: c.state, LastError: c.err}); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s", c.err, got)
		}
	}
}
