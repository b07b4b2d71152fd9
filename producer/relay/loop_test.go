package relay

import (
	"testing"
	"time"
)

func TestNothingMoreIsSentFromAShardThatWasLost(t *testing.T) {
	t.Parallel()
	cfg, err := Config{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	l := newRelayLoop(nil, newBatchSender(nil, 1), cfg, nil, false)
	l.core.stopped = true // it asks for no statements
	sh := &shardState{no: 3, until: time.Hour}
	l.core.shards[sh.no] = sh
	l.core.leases.held = 1
	l.step(t.Context())
	e := &entry{shard: sh, gen: 1}
	if until := l.until[sh.no].Load(); until != int64(time.Hour) {
		t.Fatalf("the shard may be sent from until %v", time.Duration(until))
	}
	l.core.leases.lose(sh, "renewal")
	l.step(t.Context())
	l.send(t.Context(), e) // as it waited for the transport meanwhile
	if _, outcomes, _, _ := l.box.take(); len(outcomes) != 1 || !outcomes[0].unsent {
		t.Errorf("outcomes are %+v, want one that was not sent", outcomes)
	}
}
