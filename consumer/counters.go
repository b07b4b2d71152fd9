package consumer

import (
	"sync/atomic"

	"github.com/boxpair/boxpair/store/inbox"
)

// Counters tells what a handler did since it was made, in this process. Together
// they are not a snapshot of one moment.
type Counters struct {
	// Applied is how many messages were applied, parked ones included. After a commit
	// whose outcome was not known, a message counts that turned out to be a duplicate.
	Applied int64
	// DuplicatesByWindow and DuplicatesByTable are how many copies were acknowledged
	// without running the handler.
	DuplicatesByWindow int64
	DuplicatesByTable  int64

	// Failed is how many attempts were counted; Panics how many of them were a panic or
	// a Goexit.
	Failed int64
	Panics int64
	// Troubles is how many errors of the database, and conflicts, counted no attempt.
	Troubles int64
	// CommitsUnknown is how many commits had an unknown outcome.
	CommitsUnknown int64
	// SoloStarts is how many recorded starts there were of messages that may
	// have killed a process.
	SoloStarts int64
	// Groups is how many transactions with more than one message were committed, and
	// GroupsUndone how many were rolled back or had an unknown commit.
	Groups       int64
	GroupsUndone int64
	// Returned is how many deliveries ended with an error, to be delivered again.
	Returned int64

	// Parked is how many messages were parked to be retried; Followed how many behind
	// an earlier one of their key.
	Parked   int64
	Followed int64
	// Dead, TooOld and Altered are how many were set aside for an operator. Refused
	// is how many of the dead could not be handled at all, as without a dispatch ID.
	Dead    int64
	TooOld  int64
	Altered int64
	Refused int64
	// Unstamped is how many messages carried no stamp: they are deduplicated from their arrival on.
	// Ahead is how many had a stamp more than 5 minutes in the future: they are handled, and
	// remembered until their stamp is older than the window.
	Unstamped int64
	Ahead     int64
	// ShortWindow is how many messages their producer may send again for longer than
	// Config.Window.
	ShortWindow int64
	// Forgotten is how many dispatch IDs were removed from the table.
	Forgotten int64
}

// Duplicates is how many copies were acknowledged without running the handler.
func (c Counters) Duplicates() int64 { return c.DuplicatesByWindow + c.DuplicatesByTable }

type counts struct {
	applied, window, table                    atomic.Int64
	failed, panics, troubles, unknown         atomic.Int64
	starts, returned, groups, undone          atomic.Int64
	parked, followed                          atomic.Int64
	dead, tooOld, altered, refused, forgotten atomic.Int64
	unstamped, ahead, short                   atomic.Int64
}

func (c *counts) parkedAs(s inbox.State) {
	switch s {
	case inbox.Retrying:
		c.parked.Add(1)
	case inbox.Dead:
		c.dead.Add(1)
	case inbox.TooOldState:
		c.tooOld.Add(1)
	case inbox.AlteredState:
		c.altered.Add(1)
	}
}

// Counters returns what the handler did since it was made.
func (h *Handler[TX]) Counters() Counters {
	c := &h.counts
	return Counters{
		Applied: c.applied.Load(), DuplicatesByWindow: c.window.Load(), DuplicatesByTable: c.table.Load(),
		Failed: c.failed.Load(), Panics: c.panics.Load(), Troubles: c.troubles.Load(),
		CommitsUnknown: c.unknown.Load(), SoloStarts: c.starts.Load(), Returned: c.returned.Load(),
		Groups: c.groups.Load(), GroupsUndone: c.undone.Load(),
		Parked: c.parked.Load(), Followed: c.followed.Load(),
		Dead: c.dead.Load(), TooOld: c.tooOld.Load(), Altered: c.altered.Load(),
		Refused: c.refused.Load(), Forgotten: c.forgotten.Load(),
		Unstamped: c.unstamped.Load(), Ahead: c.ahead.Load(), ShortWindow: c.short.Load(),
	}
}
