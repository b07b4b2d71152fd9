// Package wakeup tells relays of commits and their shards: relays of the process through a
// [Signal], relays of other processes as text.
package wakeup

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/outbox"
)

// Wakeup names the shards in which events were committed, and tells whether any of the events is
// deferred, of an operator's change, or of shards without an owner. The zero value tells nothing.
type Wakeup struct {
	Shards   uint64 // a bit per shard
	Deferred bool
	Changed  bool // an operator has changed parked events, or queued events again
	Freed    bool // a relay has given shards back
}

// All is the wake-up of a sender that does not know the committed events.
var All = Wakeup{Shards: ^uint64(0), Deferred: true}

// Changed is the wake-up of an operator's change. It names no shard: a relay reads the shards that have
// changed when it knows them.
var Changed = Wakeup{Changed: true}

// Freed is the wake-up of a relay that has given shards back.
var Freed = Wakeup{Freed: true}

var _ = [1]struct{}{}[idgen.Shards-64] // a bit per shard

// With returns w with one more record.
func (w Wakeup) With(r *outbox.Record) Wakeup {
	w.Shards |= 1 << r.Shard
	w.Deferred = w.Deferred || !r.DeliverAt.IsZero()
	return w
}

// And returns a wake-up for the commits of w and of other.
func (w Wakeup) And(other Wakeup) Wakeup {
	return Wakeup{w.Shards | other.Shards, w.Deferred || other.Deferred, w.Changed || other.Changed, w.Freed || other.Freed}
}

// None tells whether w tells nothing.
func (w Wakeup) None() bool { return w.Shards == 0 && !w.Changed && !w.Freed }

// In tells whether w is about a shard.
func (w Wakeup) In(shard int) bool { return w.Shards&(1<<shard) != 0 }

// Everywhere tells whether w is about all shards.
func (w Wakeup) Everywhere() bool { return w.Shards == All.Shards }

// format begins the text of a wake-up that names shards. A relay that does not know the format
// polls all shards.
const format = "1"

// Flags of the text of a wake-up. Earlier relays take any flag for flagDeferred, and poll all shards if
// none is named.
const (
	flagDeferred = 1 << iota
	flagChanged
	flagFreed
)

// Text returns w for relays in other processes. from is the ID of the committing outbox, or
// the name of the relay.
func (w Wakeup) Text(from string) string {
	flags := 0
	if w.Deferred {
		flags |= flagDeferred
	}
	if w.Changed {
		flags |= flagChanged
	}
	if w.Freed {
		flags |= flagFreed
	}
	return fmt.Sprintf("%s %016x %d %s", format, w.Shards, flags, from)
}

// Parse parses a text from [Wakeup.Text]. Any other text is the ID of an outbox whose wake-ups name
// no shards.
func Parse(text string) (w Wakeup, from string) {
	parts := strings.SplitN(text, " ", 4)
	if len(parts) != 4 || parts[0] != format {
		return All, text
	}
	shards, shardsErr := strconv.ParseUint(parts[1], 16, 64)
	flags, flagsErr := strconv.ParseUint(parts[2], 10, 8)
	w = Wakeup{Shards: shards, Deferred: flags&flagDeferred != 0, Changed: flags&flagChanged != 0, Freed: flags&flagFreed != 0}
	if shardsErr != nil || flagsErr != nil || w.None() {
		return All, parts[3]
	}
	return w, parts[3]
}

// Signal is a broadcast with one pending wake-up per subscriber. The zero value is ready.
type Signal struct {
	mu   sync.Mutex
	subs map[*Subscription]struct{}
}

// Subscription is where a subscriber is woken.
type Subscription struct {
	Woken chan struct{} // has room for one

	// owns tells for which of some shards, a bit each, nobody else is to be woken. It may be nil.
	owns func(shards uint64) uint64

	mu      sync.Mutex
	pending Wakeup
}

// Take returns all wake-ups since the last Take, joined.
func (s *Subscription) Take() Wakeup {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.pending
	s.pending = Wakeup{}
	return w
}

func (s *Subscription) send(w Wakeup) {
	s.mu.Lock()
	s.pending = s.pending.And(w)
	s.mu.Unlock()
	select {
	case s.Woken <- struct{}{}:
	default: // a wake-up is pending already
	}
}

// Send wakes every subscriber and never blocks. It returns the wake-up of all others, without the
// shards that subscribers own.
func (s *Signal) Send(w Wakeup) (others Wakeup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	others = w
	for sub := range s.subs {
		sub.send(w)
		if sub.owns != nil {
			others.Shards &^= sub.owns(w.Shards)
		}
	}
	return others
}

// Subscribe returns a subscription and the function that ends it. owns tells which of some shards, a
// bit each, only the subscriber looks after; nil if it looks after none.
func (s *Signal) Subscribe(owns func(shards uint64) uint64) (*Subscription, func()) {
	sub := &Subscription{Woken: make(chan struct{}, 1), owns: owns}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subs == nil {
		s.subs = make(map[*Subscription]struct{})
	}
	s.subs[sub] = struct{}{}
	return sub, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.subs, sub)
	}
}

// Source is an outbox for a relay in its process.
type Source struct {
	Store   outbox.RelayStore
	Logger  *slog.Logger
	Commits *Signal // signals commits
	Others  *Signal // signals commits for relays in other processes
	ID      string  // unique among all outboxes, in any process
}
