package child

import (
	"context"
	"runtime"
	"time"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/fault"
)

// Report is the state of a running child, or of a child at its orderly end.
type Report struct {
	// Heap and Goroutines are current values; the peaks are over the life of the child.
	Heap, PeakHeap             uint64
	Goroutines, PeakGoroutines int
	// Leaked names the goroutines left at the end; "" if there were none.
	Leaked string

	// Placed counts the orders that the producer has placed, and ProducerDone tells whether all are
	// placed; PlaceErrors counts failed transactions.
	Placed, PlaceErrors int64
	ProducerDone        bool

	// The relay's shards, visible relays, events in flight at the transport and events in memory,
	// of a window.
	Shards, Relays, InFlight, InMemory, Window int
	PeakInFlight, PeakInMemory                 int
	Blocked                                    bool
	RouteError, DatabaseError                  string

	// Removed is how many events the janitor has removed.
	Removed int64
	// Handlers are the counters of the services.
	Handlers map[string]consumer.Counters
	// Misbehaved counts the misbehaviour of handlers, by kind.
	Misbehaved map[string]int64
	// Points counts how often fault points were reached.
	Points map[fault.Point]int
}

// peaks are the largest observed values.
type peaks struct {
	heap               uint64
	goroutines         int
	inFlight, inMemory int
}

// sample reports the child's state to the parent until ctx ends.
func (s *service) sample(ctx context.Context) {
	tick := time.NewTicker(s.cfg.Sample)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.say("sample", s.report(""))
		}
	}
}

func (s *service) report(leaked string) *Report {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	r := &Report{Heap: m.HeapAlloc, Goroutines: runtime.NumGoroutine(), Leaked: leaked, Points: points()}
	for _, p := range s.parts {
		if p.tell != nil {
			p.tell(r)
		}
	}
	k := &s.peaks
	k.heap, k.goroutines = max(k.heap, r.Heap), max(k.goroutines, r.Goroutines)
	k.inFlight, k.inMemory = max(k.inFlight, r.InFlight), max(k.inMemory, r.InMemory)
	r.PeakHeap, r.PeakGoroutines, r.PeakInFlight, r.PeakInMemory = k.heap, k.goroutines, k.inFlight, k.inMemory
	return r
}
