package relay

import (
	"log/slog"
	"math"
	"math/rand/v2"
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// relayCore decides everything that a relay does. It is a state machine
// without I/O, goroutines, locks or clocks: what happened goes in with the time
// at which it happened, and what is to be done comes out. The same input gives
// the same output, which is what lets a simulator drive it through any order of
// events and crash it anywhere.
//
// Input is reply, outcome, unsent, wake, stop and abandon, in any number, then
// advance. Output is what flush returns: calls, each of which is executed and
// given back by reply; sends, each of which is answered by outcome or unsent;
// and notes for the log. When there is no input, advance is due again at wakeAt.
//
// At most one call is under way on leases, one that reads the queue, one that
// marks, and one per shard that changes parked events; they overlap with each
// other and with sends.
type relayCore struct {
	cfg        coreConfig
	routeOf    func(topic string) string
	batchLimit batchLimit
	rand       *rand.Rand
	once       bool // stop when nothing is due

	now    time.Duration // of this step
	wakeAt time.Duration

	// Output of this step.
	calls []*call
	sends []*entry
	notes []note

	shards    [idgen.Shards]*shardState
	leasing   leasing
	reading   reading
	late      lateCommits
	numbers   numbering
	marking   marking
	due       duePoll
	deferred  deferrals
	lanes     uint64 // shards whose lane has something to do, as bits
	laneBusy  int
	laneTurn  int
	healing   budget // of shards in one statement
	reporting reporting

	topics   map[string]*route
	routes   map[string]*route
	ring     []*route // with something to send, and not stalled
	turn     int
	stalled  []*route // paused or unavailable
	doubtful []*route // failing
	probes   probing
	records  routeRecords
	success  time.Duration // when anything was confirmed last; -1: never

	buffered   int // events in memory that are not confirmed
	inflight   int
	unanswered unanswered
	identity   string // of the database, if it tells
	parkedIn   int    // parked events in memory

	limits      coreLimits
	freeEntries *entry
	freeLines   []*keyLine

	stopping bool
	stopped  bool
	report   coreReport
	health   coreHealth
}

// coreLimits are numbers that no order depends on. A simulator makes them small, so
// that it meets what lies beyond them.
type coreLimits struct {
	cold    int   // rows read of a shard that had none, and late ones looked for below its mark
	follow  int   // events of a shard that wait to be moved before it is read on
	blocked int   // keys in one statement
	due     int   // parked heads in one statement
	stall   int   // events that a stalled route keeps in memory to be probed
	undefer int   // deferred events of a shard in one statement
	span    int64 // IDs that a page of a lap goes over at least
	page    int   // rows of a page of a lap that is in no hurry

	// sweep is the time between two laps through everything.
	sweep time.Duration
	// Looks below a mark reach down to the floor of a writer for so long, and until
	// so many events were read meanwhile.
	writesLong time.Duration
	readsLong  int
}

var defaultLimits = coreLimits{
	cold: 16, follow: 2000, blocked: 1000, due: 256, stall: 32, undefer: 32, span: 1 << 14, page: 128,
	sweep: 5 * time.Minute, writesLong: time.Second, readsLong: 1000,
}

// coreReport tells what the core has done, as Report does.
type coreReport struct{ Delivered, Failed, Dead, Left int }

// coreHealth is what Health tells that the core does not need itself.
type coreHealth struct {
	callErr               string
	callErrAt             time.Duration
	read, renewed, marked time.Duration // last successes; -1: none
	failedOver            time.Duration // -1: never
	reads                 int64
	reading               time.Duration // all of them together
}

// note is a record for the log.
type note struct {
	level slog.Level
	msg   string
	attrs []slog.Attr
}

const never = time.Duration(math.MaxInt64)

func newRelayCore(cfg coreConfig, routeOf func(string) string, rnd *rand.Rand, once bool) *relayCore {
	c := &relayCore{
		cfg:        cfg,
		routeOf:    routeOf,
		batchLimit: func(string) (int, int) { return 0, 0 },
		rand:       rnd,
		once:       once,
		limits:     defaultLimits,
		topics:     make(map[string]*route),
		routes:     make(map[string]*route),
		success:    -1,
		health:     coreHealth{callErrAt: -1, read: -1, renewed: -1, marked: -1, failedOver: -1},
	}
	c.due.at, c.deferred.at = never, never
	c.records.left = recordsAtOnce
	c.reading.spacing = newPollPacer(&cfg)
	c.healing = budget{most: idgen.Shards, now: idgen.Shards}
	c.reading.budget = budget{most: cfg.FetchSize, now: cfg.FetchSize, average: firstAverage}
	return c
}

// reply takes an executed call back.
func (c *relayCore) reply(now time.Duration, cl *call) {
	c.now = now
	c.noteCall(cl)
	switch cl.op {
	case opRenew, opHeartbeat, opAcquire, opRelease, opClearRewind, opKeepLow, opReport:
		c.leaseReply(cl)
	case opFetch, opFetchKey, opWriters, opBlocked, opDue, opUndefer:
		c.readReply(cl)
	case opMark:
		c.markReply(cl)
	default:
		c.laneReply(cl)
	}
}

// wake tells that something was committed.
func (c *relayCore) wake(now time.Duration, n wakeup.Wakeup) {
	c.now = now
	c.reading.woken = c.reading.woken.And(n)
	c.deferred.told = c.deferred.told || n.Deferred && c.concerns(n)
}

// concerns tells whether n is of a shard of this relay. One that it gets later brings its own
// looks.
func (c *relayCore) concerns(n wakeup.Wakeup) bool {
	for _, sh := range c.shards {
		if sh != nil && n.In(sh.no) {
			return true
		}
	}
	return false
}

// stop ends the relay: what is in flight is waited for, and everything given back.
func (c *relayCore) stop(now time.Duration) {
	c.now = now
	if c.stopping {
		return
	}
	c.stopping = true
	for _, sh := range c.shards {
		if sh != nil {
			c.yield(sh)
		}
	}
}

// abandon ends the wait of stop: only what is idle is given back.
func (c *relayCore) abandon(now time.Duration) {
	c.stop(now)
	for _, sh := range c.shards {
		if sh != nil && !sh.idle() && !sh.leaving {
			c.note(slog.LevelWarn, "shard not given back, its lease runs out",
				slog.Int("shard", sh.no), slog.Int("in_flight", sh.inflight), slog.Int("unmarked", sh.marking))
			c.drop(sh)
		}
	}
}

// advance decides what is to be done next.
func (c *relayCore) advance(now time.Duration) {
	c.now, c.wakeAt = now, never
	if c.stopped {
		return
	}
	c.updateRoutes()
	c.pump()
	c.sumUp()
	c.planMark()
	c.planLanes()
	c.planRead()
	if c.once && !c.stopping && c.quiescent() {
		c.report.Left = c.buffered
		c.stop(now)
	}
	c.planLeases()
}

// flush returns what is to be done, and forgets it.
func (c *relayCore) flush() ([]*call, []*entry, []note) {
	calls, sends, notes := c.calls, c.sends, c.notes
	c.calls, c.sends, c.notes = nil, c.sends[:0], nil
	return calls, sends, notes
}

// until returns when what is sent from a shard may still be. From one that was lost it may not be:
// what waits for the transport is its next owner's.
func (c *relayCore) until(shard int) time.Duration {
	if sh := c.shards[shard]; sh != nil {
		return sh.until
	}
	return 0
}

// at asks for an advance at t.
func (c *relayCore) at(t time.Duration) { c.wakeAt = min(c.wakeAt, t) }

func (c *relayCore) issue(cl *call) *call {
	cl.issued = c.now
	c.calls = append(c.calls, cl)
	return cl
}

func (c *relayCore) note(level slog.Level, msg string, attrs ...slog.Attr) {
	c.notes = append(c.notes, note{level, msg, attrs})
}

// noteEvent writes a note about an event, which names it and never shows it.
func (c *relayCore) noteEvent(level slog.Level, msg string, e *entry, attrs ...slog.Attr) {
	c.note(level, msg, append([]slog.Attr{
		slog.String("dispatch_id", e.ID.String()),
		slog.String("correlation_id", e.CorrelationID),
		slog.String("topic", e.Topic),
		slog.Int("shard", e.shard.no),
		slog.Int64("seq", e.Seq),
	}, attrs...)...)
}

// noteCall keeps track of whether the database answers.
func (c *relayCore) noteCall(cl *call) {
	if cl.err == nil {
		return
	}
	c.health.callErr, c.health.callErrAt = storedError(cl.err), c.now
	c.note(slog.LevelWarn, "statement failed", slog.String("statement", cl.op.String()), slog.Any("error", cl.err))
}

// pause returns how long to wait after the given number of failures of a statement.
func (c *relayCore) pause(fails int) time.Duration {
	bound := min(5*time.Second, 50*time.Millisecond<<min(fails, 10), c.cfg.LeaseTTL)
	return bound/2 + time.Duration(c.rand.Int64N(int64(bound)/2+1))
}

// newEntry returns an entry for a row of sh.
func (c *relayCore) newEntry(sh *shardState, row *outbox.Queued) *entry {
	e := c.freeEntries
	if e == nil {
		e = new(entry)
	} else {
		c.freeEntries = e.next
		*e = entry{gen: e.gen}
	}
	e.Queued, e.shard = *row, sh
	return e
}

// free ends the life of an entry that nothing refers to any more.
func (c *relayCore) free(e *entry) {
	*e = entry{gen: e.gen, next: c.freeEntries}
	c.freeEntries = e
}

// count adds e to the events in memory that wait for their outcome.
func (c *relayCore) count(e *entry) {
	if !e.counted {
		e.counted = true
		c.buffered++
		e.route.events++
		if e.parked {
			c.parkedIn++
		}
	}
}

func (c *relayCore) uncount(e *entry) {
	if e.counted {
		e.counted = false
		c.buffered--
		if e.parked {
			c.parkedIn--
		}
		c.release(e.route)
	}
}

// sendResult is the outcome of a send as the core is told.
type sendResult struct {
	entry *entry
	gen   uint32
	transport.Result
	unsent bool // it never reached the transport
}
