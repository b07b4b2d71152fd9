package doctor

import (
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
	if len(got) != 2 || got[0].pid != 3 || got[0].waiting != 3 || got[0].longest != 4*time.Minute || got[1].pid != 4 || got[1].waiting != 1 || got[1].longest != time.Second {
		t.Errorf("got %+v", got)
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
