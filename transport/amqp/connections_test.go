package amqp

import (
	"log/slog"
	"testing"
)

// TestQueueThatIsAloneLeavesTheFirstConnection, which later queues share. Which queues stay on it
// when they are split is random, so the one that ends its connection may be left alone there.
func TestQueueThatIsAloneLeavesTheFirstConnection(t *testing.T) {
	t.Parallel()
	cs := newConnections(&broker{}, slog.New(slog.DiscardHandler))
	first := cs.find("bad")
	first.losses = maxLosses
	cs.mu.Lock()
	cs.split(first)
	cs.mu.Unlock()
	bad := cs.find("bad")
	if bad == first || !bad.dedicated || !cs.isolated("bad") {
		t.Errorf("the queue has the first connection: %t, dedicated: %t, isolated: %t", bad == first, bad.dedicated, cs.isolated("bad"))
	}
	if other := cs.find("other"); other != first || other.dedicated || other.losses != 0 {
		t.Errorf("another queue has the first connection: %t, dedicated: %t, losses: %d", other == first, other.dedicated, other.losses)
	}
}
