package core

import (
	"log/slog"
	"math"
	"math/rand/v2"
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/transport"
)

// Machine makes the decisions of a relay. It is a state machine without I/O, goroutines, locks or
// clocks: input comes with its time, and decisions are output. Equal input gives equal output, so a
// simulator can drive the machine through any order of input and crash the machine anywhere.
//
// Input is Reply, Outcome, Overdue, Wake, Listening, Witness, Suspended, Stop and Abandon, in any number, then Advance. Output is
// the result of Flush: calls, each to be executed and given back by Reply; sends, each to be
// answered by Outcome; and notes for the log. Without input, the next Advance is due at the time
// that NextAdvance returns.
//
// The state is divided among owners, which share the machine. Only its owner writes a field, except
// for fields of shardState, keyLine, route and Entry.
//
// At most one call on leases, one report, one read, one mark, and one change of parked events per
// shard are under way at once. Calls overlap with sends.
type Machine struct {
	settings
	clock
	decisions
	owners

	shards   [idgen.Shards]*shardState
	stopping bool
	stopped  bool
	report   Report
	health   coreHealth
	failing  map[statement.Op]failing
}

// owners are the parts of the machine, in the order of an event's way; see the package
// documentation.
type owners struct {
	leases   leases
	witness  witnesses
	loading  loading
	signals  signals
	reader   reader
	late     lateCommits
	numbers  numbering
	laps     laps
	deferred deferrals
	due      duePoll
	keys     keys
	dispatch dispatcher
	routes   routes
	routeLog routeLog
	reports  reports
	marks    marking
	parking  parking
	lows     lowKeeper
	pauses   pauses
	rates    rates
}

// settings do not change while the machine runs.
type settings struct {
	cfg    Options
	limits coreLimits
	topics Topics
	rand   *rand.Rand
	once   bool // stop when no event is due
}

// clock is the time of one step.
type clock struct {
	now    time.Duration
	wakeAt time.Duration // of the next Advance without input
}

// decisions are the result of one step.
type decisions struct {
	calls   []*Call
	sends   []*Entry
	notes   []Note
	notices []Notice
}

// coreLimits are numbers on which no order depends. A simulator makes the limits small, to reach
// the cases beyond them.
type coreLimits struct {
	cold    int   // rows read of a polled shard, and of a late range
	follow  int   // events of a shard to be moved behind parked heads, beyond which the shard is not read on
	blocked int   // keys in one statement
	due     int   // parked heads in one statement
	stall   int   // events that a stalled route keeps in memory to be probed
	undefer int   // deferred events of a shard in one statement
	span    int64 // least IDs covered by a page of a lap
	page    int   // rows of a page of a lap that is not urgent

	// sweep is the time between two sweeps, see revisit.
	sweep time.Duration
	// Late ranges reach down to the floor of a writer for the time writesLong, and until readsLong
	// events were read; see lateCommits.
	writesLong time.Duration
	readsLong  int
}

var defaultLimits = coreLimits{
	cold: 16, follow: 2000, blocked: 1000, due: 256, stall: 32, undefer: 32, span: 1 << 14, page: 128,
	sweep: 5 * time.Minute, writesLong: time.Second, readsLong: 1000,
}

// Report counts events, as relay.Report does.
type Report struct{ Delivered, Failed, Dead, Left int }

// coreHealth holds numbers for Health, without influence on decisions.
type coreHealth struct {
	callErr               string
	callErrAt             time.Duration
	read, renewed, marked time.Duration // last successes; -1: never
	failedOver            time.Duration // -1: never
	reads                 int64
	reading               time.Duration // of all reads together
}

// Note is a record for the log.
type Note struct {
	Level slog.Level
	Msg   string
	Attrs []slog.Attr
}

const never = time.Duration(math.MaxInt64)

// New returns a machine that owns no shard yet. Only topics.Route is needed. With once, the machine
// stops when no event is due.
func New(cfg Options, topics Topics, rnd *rand.Rand, once bool) *Machine {
	if topics.Batch == nil {
		topics.Batch = func(string) (int, int) { return 0, 0 }
	}
	if topics.Downstream == nil {
		topics.Downstream = func(string) Downstream { return Downstream{} }
	}
	if topics.Matches == nil {
		topics.Matches = func(pattern, topic string) bool { return pattern == topic }
	}
	c := &Machine{
		failing: make(map[statement.Op]failing),
		settings: settings{
			cfg:    cfg,
			limits: defaultLimits,
			topics: topics,
			rand:   rnd,
			once:   once,
		},
		health: coreHealth{callErrAt: -1, read: -1, renewed: -1, marked: -1, failedOver: -1},
	}
	c.owners = owners{
		leases:  leases{Machine: c},
		witness: witnesses{Machine: c},
		loading: loading{Machine: c},
		signals: signals{Machine: c},
		reader: reader{
			Machine: c, pacer: newPollPacer(&cfg),
			budget: budget{most: cfg.FetchSize, now: cfg.FetchSize, average: firstAverage},
		},
		late:     lateCommits{Machine: c},
		numbers:  numbering{Machine: c},
		laps:     laps{Machine: c},
		deferred: deferrals{Machine: c, next: never},
		due:      duePoll{Machine: c, next: never},
		keys:     keys{Machine: c},
		dispatch: dispatcher{Machine: c},
		routes:   routes{Machine: c, byTopic: make(map[string]*route), byName: make(map[string]*route), success: -1},
		routeLog: routeLog{Machine: c, left: recordsAtOnce},
		reports:  reports{Machine: c, byTopic: make(map[string]*sentCount)},
		marks:    marking{Machine: c},
		parking:  parking{Machine: c, healing: budget{most: idgen.Shards, now: idgen.Shards}},
		lows:     lowKeeper{Machine: c},
		pauses:   pauses{Machine: c},
		rates:    rates{Machine: c, byName: make(map[string]*rateLimit)},
	}
	return c
}

// Reply takes an executed call back.
func (c *Machine) Reply(now time.Duration, cl *Call) {
	c.now = now
	c.noteCall(cl)
	switch op := cl.Op(); op {
	case statement.OpRenew, statement.OpHeartbeat, statement.OpAcquire, statement.OpRelease, statement.OpClearRewind, statement.OpKeepLow,
		statement.OpAttest, statement.OpEndedWitnesses, statement.OpExpire:
		c.leases.reply(cl)
		if s, is := cl.Statement.(*renew); is && s.poll != nil {
			c.joined(cl.Err, s)
		}
	case statement.OpReport:
		c.reports.reply(cl)
	case statement.OpFetch, statement.OpFetchKey, statement.OpWriters, statement.OpBlocked, statement.OpDue, statement.OpUndefer:
		c.reader.reply(cl)
	case statement.OpMark:
		c.marks.reply(cl)
	case statement.OpPauses:
		c.pauses.reply(cl)
	case statement.OpTakeTokens:
		c.rates.reply(cl)
	default:
		c.parking.reply(cl)
	}
}

// Outcome takes the outcome of a send.
func (c *Machine) Outcome(now time.Duration, res SendResult) {
	c.now = now
	c.dispatch.outcome(res)
}

// Overdue gives up the outcomes of the sends up to a number: the contexts of these sends ended a
// while ago.
func (c *Machine) Overdue(now time.Duration, through int64) {
	c.now = now
	c.dispatch.overdue(through)
}

// Done returns the counts so far.
func (c *Machine) Done() Report { return c.report }

// NextAdvance returns when Advance is due without further input, and whether the machine has
// stopped.
func (c *Machine) NextAdvance() (at time.Duration, stopped bool) { return c.wakeAt, c.stopped }

// Wake tells the machine of commits, of an operator's change, or of shards that another relay has given
// back.
func (c *Machine) Wake(now time.Duration, n wakeup.Wakeup) {
	c.now = now
	c.leases.told = c.leases.told || n.Changed
	if n.Freed {
		c.leases.freed()
	}
	n.Changed, n.Freed = false, false
	if n.None() {
		return
	}
	c.reader.woken = c.reader.woken.And(n)
	if c.concerns(n) {
		c.deferred.woken = c.deferred.woken || n.Deferred
		c.signals.woken()
	}
	c.witness.woken(n.Shards)
}

// Listening tells the machine that a signal of the store has arrived, or with heard false that
// listening for signals has ended.
func (c *Machine) Listening(now time.Duration, heard bool) {
	c.now = now
	c.signals.listening(heard)
}

// Heard tells whether a signal of the store has arrived since listening began, or since events came
// without one.
func (c *Machine) Heard() bool { return c.signals.heard }

// Witness takes the witness of the session in which the relay listens; 0: there is none.
func (c *Machine) Witness(now time.Duration, witness int64) {
	c.now = now
	c.witness.changed(witness)
}

// Suspended tells the machine that the process stood still for a while, and may not know yet that its
// session has ended.
func (c *Machine) Suspended(now time.Duration) {
	c.now = now
	c.witness.suspended()
}

// concerns tells whether n is about a shard of this relay. Shards acquired later are polled anyway.
func (c *Machine) concerns(n wakeup.Wakeup) bool {
	for _, sh := range c.shards {
		if sh != nil && n.In(sh.no) {
			return true
		}
	}
	return false
}

// Stop begins to stop the machine: it waits for the outcomes of events in flight and gives all
// shards back.
func (c *Machine) Stop(now time.Duration) {
	c.now = now
	if c.stopping {
		return
	}
	c.stopping = true
	for _, sh := range c.shards {
		if sh != nil {
			c.leases.yield(sh)
		}
	}
}

// Abandon ends the wait of Stop: only idle shards are given back.
func (c *Machine) Abandon(now time.Duration) {
	c.Stop(now)
	for _, sh := range c.shards {
		if sh != nil && !sh.idle() && !sh.leaving {
			c.note(slog.LevelWarn, "shard not given back, its lease runs out",
				slog.Int("shard", sh.no), slog.Int("in_flight", sh.inflight), slog.Int("unmarked", sh.marking))
			c.leases.drop(sh)
		}
	}
}

// Advance makes the decisions that are due.
func (c *Machine) Advance(now time.Duration) {
	c.now, c.wakeAt = now, never
	if c.stopped {
		return
	}
	c.routes.update()
	c.dispatch.pump()
	c.routeLog.sumUp()
	c.marks.plan()
	c.parking.plan()
	c.pauses.plan()
	c.rates.plan()
	c.reader.plan()
	if c.once && !c.stopping && c.quiescent() {
		c.report.Left = c.keys.buffered + c.pauses.left
		c.Stop(now)
	}
	c.leases.plan()
	c.reports.plan()
}

// Flush returns the decisions since the last Flush, without the notices.
func (c *Machine) Flush() ([]*Call, []*Entry, []Note) {
	calls, sends, notes := c.calls, c.sends, c.notes
	c.calls, c.sends, c.notes = nil, c.sends[:0], nil
	return calls, sends, notes
}

// Notices returns what observers are to be told since the last call, with Options.Observed.
func (c *Machine) Notices() []Notice {
	notices := c.notices
	c.notices = nil
	return notices
}

// Until returns the time until which events of a shard may be sent, or 0 for a lost shard, whose
// waiting events belong to the next owner.
func (c *Machine) Until(shard int) time.Duration {
	if sh := c.shards[shard]; sh != nil {
		return sh.until
	}
	return 0
}

// at asks for an Advance at t.
func (c *Machine) at(t time.Duration) { c.wakeAt = min(c.wakeAt, t) }

func (c *Machine) issue(cl *Call) *Call {
	cl.issued = c.now
	c.calls = append(c.calls, cl)
	return cl
}

func (c *Machine) note(level slog.Level, msg string, attrs ...slog.Attr) {
	c.notes = append(c.notes, Note{level, msg, attrs})
}

// noteEvent writes a note about an event, with the names of the event and without its content.
func (c *Machine) noteEvent(level slog.Level, msg string, e *Entry, attrs ...slog.Attr) {
	c.note(level, msg, append([]slog.Attr{
		slog.String("dispatch_id", e.ID.String()),
		slog.String("correlation_id", e.CorrelationID),
		slog.String("topic", e.Topic),
		slog.Int("shard", e.shard.no),
		slog.Int64("seq", e.Seq),
	}, attrs...)...)
}

// failing is a statement that fails again and again.
type failing struct {
	failures int
	tellAt   time.Duration
}

// noteCall notes the failure of a call. The notes about a statement that goes on failing are up to a
// minute apart.
func (c *Machine) noteCall(cl *Call) {
	op := cl.Op()
	if cl.Err == nil {
		delete(c.failing, op)
		return
	}
	if op == statement.OpReport { // nothing depends on it, and reports tell of it
		return
	}
	c.health.callErr, c.health.callErrAt = storedError(cl.Err), c.now
	f := c.failing[op]
	f.failures++
	if c.now >= f.tellAt {
		c.note(slog.LevelWarn, "statement failed", slog.String("statement", op.String()), slog.Int("failures", f.failures), slog.Any("error", cl.Err))
		f.tellAt = c.now + min(time.Minute, time.Second<<min(f.failures, 6))
	}
	c.failing[op] = f
}

// pause returns how long to wait after the given number of failures of a statement.
func (c *Machine) pause(fails int) time.Duration {
	bound := min(5*time.Second, 50*time.Millisecond<<min(fails, 10), c.cfg.LeaseTTL)
	return bound/2 + time.Duration(c.rand.Int64N(int64(bound)/2+1))
}

// SendResult is the outcome of a send, as input of the machine.
type SendResult struct {
	Entry *Entry
	Gen   uint32
	transport.Result
	Unsent bool // the event never reached the transport
}
