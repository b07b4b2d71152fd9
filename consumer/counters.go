package consumer

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/boxpair/boxpair/consumer/internal/field"
	"github.com/boxpair/boxpair/internal/text"
	"github.com/boxpair/boxpair/store/inbox"
)

// Counters counts the work of a handler in this process, since the handler was made. The counters
// are not read at one moment.
type Counters struct {
	// Applied counts applied messages, parked ones included. A duplicate counts as applied if an
	// earlier commit of the message had an unknown outcome.
	Applied int64
	// DuplicatesByWindow and DuplicatesByTable count copies that were acknowledged without running
	// the handler.
	DuplicatesByWindow int64
	DuplicatesByTable  int64

	// Failed counts failed attempts. Panics counts failed attempts that were a panic or a Goexit.
	Failed int64
	Panics int64
	// DatabaseErrors counts errors of the database, and conflicts, that counted no attempt.
	DatabaseErrors int64
	// CommitsUnknown counts commits with an unknown outcome.
	CommitsUnknown int64
	// SoloStarts counts recorded starts of messages that may have killed a process.
	SoloStarts int64
	// Groups counts committed transactions of several messages. GroupsUndone counts such
	// transactions that were rolled back or had an unknown outcome.
	Groups       int64
	GroupsUndone int64
	// Returned counts deliveries that ended with an error: the transport delivers the messages
	// again.
	Returned int64
	// Held counts messages that were held because the consumer was paused, or because
	// HandlerConfig.MaxPerSecond had no tokens left. Paused is 1 if the consumer was paused when it
	// had work last, and otherwise 0.
	Held   int64
	Paused int64

	// Stored counts messages that were stored and acknowledged at once (HandlerConfig.StoreFirst).
	Stored int64
	// Parked counts messages that were parked to be retried. Followed counts messages that were
	// parked behind an earlier message of their key.
	Parked   int64
	Followed int64
	// Dead, TooOld and Altered count messages that wait for an operator. Refused counts dead
	// messages that could not be handled at all, as without a dispatch ID.
	Dead    int64
	TooOld  int64
	Altered int64
	Refused int64
	// Unstamped counts messages without a stamp, which are deduplicated from their arrival on.
	// Ahead counts messages with a stamp more than 5 minutes in the future, which are handled, and
	// remembered until the stamp is older than Config.Window.
	Unstamped int64
	Ahead     int64
	// ShortWindow counts messages with a horizon beyond Config.Window: the producer may send the
	// message again for longer.
	ShortWindow int64
	// Forgotten counts dispatch IDs removed from the table.
	Forgotten int64
	// NoticesDropped counts the notices to Config.Observer that were dropped because too many
	// waited. It counts the notices of all handlers of the inbox.
	NoticesDropped int64
}

// Duplicates counts copies that were acknowledged without running the handler.
func (c Counters) Duplicates() int64 { return c.DuplicatesByWindow + c.DuplicatesByTable }

type counts struct {
	applied, window, table                    atomic.Int64
	failed, panics, databaseErrors, unknown   atomic.Int64
	starts, returned, groups, undone, held    atomic.Int64
	stored, parked, followed                  atomic.Int64
	dead, tooOld, altered, refused, forgotten atomic.Int64
	unstamped, ahead, short                   atomic.Int64

	inFlight    atomic.Int64 // messages that are being handled, or are held
	lastSuccess atomic.Int64 // when a message was last applied, in Unix nanoseconds; 0: never
	lastFailure atomic.Pointer[countedFailure]
	topics      atomic.Pointer[[]string] // the first topics; a list is never changed
}

// countedFailure is a counted attempt.
type countedFailure struct {
	at   time.Time
	text string // of the error
}

// reportedTopics is how many topics of a handler are remembered.
const reportedTopics = 10

// received remembers the topic of a message.
func (c *counts) received(topic string) {
	for {
		var known []string
		list := c.topics.Load()
		if list != nil {
			known = *list
		}
		if len(known) == reportedTopics || topic == "" || slices.Contains(known, topic) {
			return
		}
		if topic = text.Clean(topic, field.MaxKey); slices.Contains(known, topic) {
			return
		}
		longer := append(slices.Clip(known), topic)
		if c.topics.CompareAndSwap(list, &longer) {
			return
		}
	}
}

// succeeded counts an applied message.
func (c *counts) succeeded() {
	c.applied.Add(1)
	c.lastSuccess.Store(time.Now().UnixNano())
}

// failedBy counts a failed attempt.
func (c *counts) failedBy(cause error) {
	c.failed.Add(1)
	c.lastFailure.Store(&countedFailure{time.Unix(0, time.Now().UnixNano()), field.Error(cause)})
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

// Counters returns the counters of the handler.
func (h *Handler[TX]) Counters() Counters {
	c := &h.counts
	var paused int64
	if h.permits.paused.Load() != nil {
		paused = 1
	}
	return Counters{
		Applied: c.applied.Load(), DuplicatesByWindow: c.window.Load(), DuplicatesByTable: c.table.Load(),
		Failed: c.failed.Load(), Panics: c.panics.Load(), DatabaseErrors: c.databaseErrors.Load(),
		CommitsUnknown: c.unknown.Load(), SoloStarts: c.starts.Load(), Returned: c.returned.Load(), Held: c.held.Load(), Paused: paused,
		Groups: c.groups.Load(), GroupsUndone: c.undone.Load(),
		Stored: c.stored.Load(), Parked: c.parked.Load(), Followed: c.followed.Load(),
		Dead: c.dead.Load(), TooOld: c.tooOld.Load(), Altered: c.altered.Load(),
		Refused: c.refused.Load(), Forgotten: c.forgotten.Load(),
		Unstamped: c.unstamped.Load(), Ahead: c.ahead.Load(), ShortWindow: c.short.Load(),
		NoticesDropped: h.inbox.notices.Dropped(),
	}
}
