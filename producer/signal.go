package producer

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/outbox"
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
func (n news) of(r *outbox.Record) news {
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

// newsFormat begins the text of a wake-up that tells where something was committed. A relay that knows another format
// only looks everywhere.
const newsFormat = "1"

// text returns what relays in other processes are told: n, and who has committed.
func (n news) text(from string) string {
	deferred := 0
	if n.deferred {
		deferred = 1
	}
	return fmt.Sprintf("%s %016x %d %s", newsFormat, n.shards, deferred, from)
}

// parseNews reads what news.text has written. Any other text is the name of somebody who does not say where.
func parseNews(text string) (n news, from string) {
	parts := strings.SplitN(text, " ", 4)
	if len(parts) != 4 || parts[0] != newsFormat {
		return allNews, text
	}
	shards, err := strconv.ParseUint(parts[1], 16, 64)
	if err != nil || shards == 0 {
		return allNews, parts[3]
	}
	return news{shards: shards, deferred: parts[2] != "0"}, parts[3]
}

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
