package core

import (
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/transport"
)

// A relay that is told of a change does not wait for its next renewal. Many changes do not make it renew
// all the time.
func TestChangeOfAnOperatorIsSeenAtOnceIfTheRelayIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bad := r.store.Add("topic", "key")
	r.outcomes(map[int64]transport.Outcome{bad: transport.Refused})
	rel := r.start(Options{MaxAttempts: 1})
	r.run(4 * time.Second) // the next renewal is more than two seconds away
	r.broker = confirmAll
	r.store.Redrive(bad)
	rel.core.Wake(r.now, wakeup.All)
	r.run(time.Second)
	if got := r.sent(transport.Confirmed); len(got) != 0 {
		t.Fatal("sent before the relay is told")
	}
	rel.core.Wake(r.now, wakeup.Changed)
	r.run(10 * time.Millisecond)
	r.drained()
	rel.calls = nil
	for range 1000 {
		rel.core.Wake(r.now, wakeup.Changed)
		r.run(time.Millisecond)
	}
	if n := rel.called(statement.OpRenew); n < 9 || n > 11 {
		t.Errorf("%d renewals in a second full of changes, want one every 100 ms", n)
	}
}
