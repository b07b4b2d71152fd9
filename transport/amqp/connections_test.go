package amqp

import (
	"log/slog"
	"slices"
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

func TestOutageIsToldLessAndLess(t *testing.T) {
	t.Parallel()
	var told []int
	for attempt := range 200 {
		if tells(attempt) {
			told = append(told, attempt+1)
		}
	}
	if want := []int{1, 2, 4, 8, 16, 32, 64, 128, 192}; !slices.Equal(told, want) {
		t.Errorf("told of %v, want %v", told, want)
	}
}
