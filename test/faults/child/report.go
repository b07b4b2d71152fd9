package child

import (
	"context"
	"runtime"
	"time"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/fault"
)

// Report is how a child is, or how it was when it ended in good order.
type Report struct {
	// Heap and Goroutines are of this moment; the peaks since the child began.
	Heap, PeakHeap             uint64
	Goroutines, PeakGoroutines int
	// Leaked names the goroutines that were left at the end, "" if there were none.
	Leaked string

	// Placed is how many orders the producer has placed, and ProducerDone that it has
	// placed all; PlaceErrors is how many transactions failed.
	Placed, PlaceErrors int64
	ProducerDone        bool

	// Of the relay: the shards that it owns, the relays that it sees, what is in flight at
	// the transport and what is in memory, of a window.
	Shards, Relays, InFlight, InMemory, Window int
	PeakInFlight, PeakInMemory                 int
	Blocked                                    bool
	RouteError, DatabaseError                  string

	// Removed is how many events the janitor has removed.
	Removed int64
	// Handlers are the counters of the services.
	Handlers map[string]consumer.Counters
	// Misbehaved is how often handlers did what they should not, by kind.
	Misbehaved map[string]int64
	// Points is how often fault points were reached.
	Points map[fault.Point]int
}

// peaks are the largest values that were seen.
type peaks struct {
	heap               uint64
	goroutines         int
	inFlight, inMemory int
}

// sample tells the parent how the child is, until ctx ends.
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
