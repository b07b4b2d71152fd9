package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/boxpair/boxpair/transport"
)

// TestParkedEventsOfManyKeysAreFewStatements when an operator has redriven them all: each key has one
// event, and each shard few keys.
func TestParkedEventsOfManyKeysAreFewStatements(t *testing.T) {
	t.Parallel()
	for _, keys := range []int{300, 2000} {
		t.Run(fmt.Sprint(keys), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			outcomes := make(map[int64]transport.Outcome)
			for i := range keys {
				outcomes[r.store.Add("topic", fmt.Sprint("key", i))] = transport.Invalid
			}
			r.outcomes(outcomes)
			r.start(Options{})
			r.run(time.Second)
			r.broker = confirmAll
			for seq := range outcomes {
				if !r.store.Redrive(seq) {
					t.Fatalf("event %d is not parked", seq)
				}
			}
			sent, fetched := r.store.Calls["Sent"], r.store.Calls["FetchParked"]
			r.run(time.Minute)
			r.drained()
			sent, fetched = r.store.Calls["Sent"]-sent, r.store.Calls["FetchParked"]-fetched
			if most := keys / 20; sent > most || fetched > most {
				t.Errorf("%d statements record what was sent, %d read what comes next, want at most %d", sent, fetched, most)
			}
		})
	}
}
