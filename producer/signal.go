package producer

import "sync"

// signal is a broadcast without memory beyond one pending wake-up per
// subscriber. The zero value is ready.
type signal struct {
	mu   sync.Mutex
	subs map[chan struct{}]struct{}
}

// send wakes every subscriber and never blocks.
func (s *signal) send() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.subs {
		select {
		case c <- struct{}{}:
		default: // a wake-up is pending already
		}
	}
}

// subscribe returns a channel of wake-ups and the function that ends them.
func (s *signal) subscribe() (<-chan struct{}, func()) {
	c := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subs == nil {
		s.subs = make(map[chan struct{}]struct{})
	}
	s.subs[c] = struct{}{}
	return c, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.subs, c)
	}
}
