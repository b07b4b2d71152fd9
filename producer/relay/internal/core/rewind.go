package core

import (
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/store/outbox"
)

// What operators change reaches the owner of a shard with the answer to a renewal. A wake-up that tells
// of a change brings the next renewal forward.

// rewind begins to take over a change by an operator.
func (ls *leases) rewind(sh *shardState, r outbox.Renewal) {
	if sh.rewindTo == 0 || r.RewindTo < sh.rewindTo {
		sh.rewindTo = max(r.RewindTo, 1)
	}
	sh.ticket, sh.clear = r.Ticket, false
	ls.loading.reload(sh)
}

// clearCall tells the database that a rewind is done.
func (ls *leases) clearCall() *Call {
	if !ls.clears {
		return nil
	}
	for _, sh := range ls.shards {
		if sh != nil && sh.clear {
			return ask(&statement.ClearRewind{Lease: sh.lease(), Ticket: sh.ticket}, sh)
		}
	}
	ls.clears = false
	return nil
}

// learnReplays notes that low was set back for replays up to ticket, and lets sh be read on unless
// sh awaits a later replay.
func (ls *leases) learnReplays(sh *shardState, ticket int64) {
	sh.replaysKnown = max(sh.replaysKnown, ticket)
	switch {
	case sh.replaysAwaited == 0:
	case sh.replaysAwaited <= sh.replaysKnown:
		sh.replaysAwaited, sh.more = 0, true
	default:
		ls.replaysAwaited = true
	}
}
