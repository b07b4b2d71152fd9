package doctor

import (
	"testing"
	"time"
)

// A young transaction is judged by the age of the sessions that it keeps waiting. Prepared
// transactions (0) and sessions of other databases (99) are not in the list.
func TestBlockerIsJudgedByTheSessionsThatWait(t *testing.T) {
	t.Parallel()
	list := []session{
		{pid: 1, age: 9 * time.Minute, blockers: []int{2}},
		{pid: 2, age: 8 * time.Minute, blockers: []int{3, 0}},
		{pid: 3, age: time.Minute},
		{pid: 4, age: 7 * time.Minute, blockers: []int{99}},
		{pid: 5, age: 6 * time.Minute, blockers: []int{3, 4}},
	}
	got := holders(list)
	if len(got) != 2 || got[0].pid != 3 || got[0].waiting != 3 || got[0].oldest != 9*time.Minute || got[1].pid != 4 || got[1].waiting != 1 {
		t.Errorf("got %+v %+v", got[0], got[1])
	}
}
