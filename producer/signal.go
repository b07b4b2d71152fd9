package producer

import (
	"sync"

	"github.com/boxpair/boxpair/idgen"
)

// news is what a wake-up tells of: the shards in which something was committed, and whether deferred events are part
// of it. Nothing, the zero value, is in no shard.
type news struct {
	shards   uint64 // a bit for each
	deferred bool
}

// allNews is what is told by somebody who does not know.
var allNews = news{shards: ^uint64(0), deferred: true}

var _ = [1]struct{}{}[idgen.Shards-64] // there is a bit for each

// of returns n with a record more.
func (n news) of(r *Record) news {
	n.shards |= 1 << r.Shard
	n.deferred = n.deferred || !r.DeliverAt.IsZero()
	return n
}

// and returns n and m.
func (n news) and(m news) news {
	return news{n.shards | m.shards, n.deferred || m.deferred}
}

func (n news) none() bool { return n.shards == 0 }

// in tells whether there may be something in a shard.
func (n news) in(shard int) bool { return n.shards&(1<<shard) != 0 }

// everywhere tells that nobody knows where it is.
func (n news) everywhere() bool { return n.shards == allNews.shards }

// signal is a broadcast without memory beyond one pending wake-up per
// subscriber. The zero value is ready.
type signal struct {
	mu   sync.Mutex
	subs map[*subscription]struct{}
}

// subscription is where a subscriber is woken.
type subscription struct {
	woken chan struct{} // has room for one

	mu      sync.Mutex
	pending news
}

// take returns what the wake-ups since the last call were for.
func (s *subscription) take() news {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.pending
	s.pending = news{}
	return n
}

func (s *subscription) send(n news) {
	s.mu.Lock()
	s.pending = s.pending.and(n)
	s.mu.Unlock()
	select {
	case s.woken <- struct{}{}:
	default: // a wake-up is pending already
	}
}

// send wakes every subscriber and never blocks.
func (s *signal) send(n news) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.subs {
		c.send(n)
	}
}

// subscribe returns a subscription and the function that ends it.
func (s *signal) subscribe() (*subscription, func()) {
	c := &subscription{woken: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subs == nil {
		s.subs = make(map[*subscription]struct{})
	}
	s.subs[c] = struct{}{}
	return c, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.subs, c)
	}
}
