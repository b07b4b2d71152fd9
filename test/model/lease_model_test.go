package modeltest

import (
	"cmp"
	"slices"
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/outbox"
)

// shardModel is the owner of a shard, its epoch and the end of its lease.
type shardModel struct {
	owner string
	epoch int64
	until time.Duration
}

// free tells whether a relay may take the shard.
func (s shardModel) free(now time.Duration) bool {
	return s.owner == "" || s.until <= now
}

// leaseModel is the expected state of the leases of an outbox.
type leaseModel struct {
	now    time.Duration
	shards [idgen.Shards]shardModel
	relays map[string]time.Duration // until when each is visible
	queue  map[int64]outbox.Queued
	leases []held // all that were ever granted
}

// held is a lease and its relay.
type held struct {
	relay string
	outbox.Lease
}

// owns tells whether a lease is the present lease of its shard. An expired lease stays present
// until another relay takes the shard over: its epoch fences all others off.
func (m *leaseModel) owns(relay string, l outbox.Lease) bool {
	s := m.shards[l.Shard]
	return s.owner == relay && s.epoch == l.Epoch
}

// free returns the first n shards that may be leased.
func (m *leaseModel) free(n int) []int {
	var shards []int
	for i, s := range m.shards {
		if len(shards) < n && s.free(m.now) {
			shards = append(shards, i)
		}
	}
	return shards
}

// live returns how many relays are visible to a relay that has just announced itself for ttl.
func (m *leaseModel) live(relay string, ttl time.Duration) int {
	m.relays[relay] = m.now + ttl
	n := 0
	for _, until := range m.relays {
		if until > m.now {
			n++
		}
	}
	return n
}

// queued returns the places of the events in the queue.
func (m *leaseModel) queued() []int64 {
	var seqs []int64
	for seq := range m.queue {
		seqs = append(seqs, seq)
	}
	slices.Sort(seqs)
	return seqs
}

func byShard(a, b outbox.Lease) int { return cmp.Compare(a.Shard, b.Shard) }
