package relay

import (
	"log/slog"
	"sync"
	"time"

	"github.com/boxpair/boxpair/internal/topics"
	"github.com/boxpair/boxpair/transport"
)

// dropInterval is the time between two records about dropped events of a topic.
const dropInterval = time.Hour

// maxDropTopics is the number of topics about which records are kept apart.
const maxDropTopics = 1000

// dropping takes returned events of some topics for delivered.
type dropping struct {
	patterns []string
	log      *slog.Logger

	mu     sync.Mutex
	topics map[string]*dropped
}

// dropped are the events of a topic since the last record about them.
type dropped struct {
	events int
	told   time.Time
}

// judge returns the result to go on with, for n events of a topic.
func (d *dropping) judge(topic string, n int, res transport.Result) transport.Result {
	if res.Outcome != transport.Returned || !topics.MatchAny(d.patterns, topic) {
		return res
	}
	d.note(topic, n, res.Err)
	return transport.Result{Outcome: transport.Confirmed}
}

// note logs the first dropped event of a topic, and then their number once an hour.
func (d *dropping) note(topic string, n int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.topics[topic]
	if t == nil {
		if d.topics == nil || len(d.topics) >= maxDropTopics {
			d.topics = make(map[string]*dropped)
		}
		t = &dropped{}
		d.topics[topic] = t
	}
	t.events += n
	if now := time.Now(); now.Sub(t.told) >= dropInterval {
		d.log.Info("events of a topic that nobody listens to are dropped, as DropUnroutable says", "topic", topic, "events", t.events, "error", err)
		t.events, t.told = 0, now
	}
}
