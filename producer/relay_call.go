package producer

import (
	"context"
	"time"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/store/outbox"
)

// op names a method of [outbox.RelayStore].
type op uint8

const (
	opRenew op = iota
	opHeartbeat
	opAcquire
	opRelease
	opClearRewind
	opKeepLow
	opReport
	opFetch
	opFetchKey
	opWriters
	opBlocked
	opDue
	opMark
	opHeal
	opPark
	opFollow
	opRetry
	opSent
	opFetchParked
	opUndefer
)

var opNames = [...]string{
	"renew", "heartbeat", "acquire", "release", "clear rewind", "keep low", "report routes", "fetch", "fetch key", "writers",
	"blocked", "due", "mark", "heal", "park", "follow", "retry", "sent", "fetch parked", "undefer",
}

func (o op) String() string { return opNames[o] }

// onLeases tells whether the call is the lease keeper's: it must not take as
// long as a lease lasts.
func (o op) onLeases() bool { return o <= opReport }

// points returns what is reached before and after a call of o, if it changes anything.
func (o op) points() (before, after fault.Point) {
	switch o {
	case opAcquire:
		return fault.R1, fault.R2
	case opMark:
		return fault.R6, fault.R8
	case opHeal, opPark, opFollow, opRetry, opSent, opUndefer:
		return fault.R10, fault.R11
	default:
		return "", ""
	}
}

// call is one statement that the core asks for, and its answer. The core makes
// it, whoever drives the core executes it, and the core is given it back.
type call struct {
	op     op
	issued time.Duration // when the core asked, which is before the statement began

	// What is asked.
	shards   []*shardState // that it is about
	leases   []outbox.Lease
	ranges   []outbox.Range
	marks    []outbox.Mark
	failures []outbox.Failure
	seqs     []int64
	key      string
	from     int64 // of FetchKey
	limit    int
	after    outbox.BlockedKey
	since    outbox.DuePoint // of Due
	ticket   int64
	forget   bool
	untold   []int64               // opRenew: shardState.untold of shards, when it was issued
	read     int64                 // of CheckSequence
	routes   []outbox.StalledRoute // of ReportRoutes
	lows     []outbox.Low          // of KeepLow
	history  string                // of KeepLow

	// What the core remembers with it.
	entries  []*entry
	line     *keyLine
	versions []uint32 // of shards, when it was issued
	reload   bool     // opHeal: and then the blocked keys are loaded
	back     bool     // opFetch: a page of laps
	urgent   bool     // opFetch: and these are in a hurry
	news     bool     // opFetch: what was committed is looked for where that was
	above    []int    // opFetch: which of ranges are above the marks of shards
	looks    []int64  // opFetch: from where on it looks below the marks of shards
	known    []int64  // opFetch: shardState.known of shards, when it was issued
	old      int64    // opFetch: the lowest floor that looks need not reach down to
	sampled  int64    // opFetch: lateness.sampled, when it was issued

	wanted    [][]int64 // opFetch: rows of shards that are read by their Seqs
	lookLimit int       // opFetch: how many rows a look may bring

	// The answer.
	err      error
	live     int
	identity string
	sequence error // that it begins anew
	grants   []outbox.Grant
	renewals []outbox.Renewal
	rows     []outbox.Queued
	names    []string
	blocked  []outbox.BlockedKey
	moved    []outbox.Moved
	next     time.Duration
	lost     []int
	gone     bool // the shard's lease is lost
}

// numbers returns the shards' numbers, as statements want them.
func (c *call) numbers() []int {
	numbers := make([]int, len(c.shards))
	for i, sh := range c.shards {
		numbers[i] = sh.no
	}
	return numbers
}

// execute runs the statement and fills in the answer. It is the only place that
// touches the store.
func (c *call) execute(ctx context.Context, store outbox.RelayStore, cfg *RelayConfig) {
	me := cfg.Name
	switch c.op {
	case opRenew:
		c.renewals, c.err = store.Renew(ctx, me, cfg.LeaseTTL, c.leases)
	case opHeartbeat:
		c.live, c.err = store.Heartbeat(ctx, me, cfg.LeaseTTL)
		if known, ok := store.(outbox.Identifier); ok && c.err == nil {
			c.identity, c.err = known.Identity(ctx)
		}
		if numbered, ok := store.(outbox.SequenceChecker); ok && c.err == nil {
			c.sequence = numbered.CheckSequence(ctx, c.read)
		}
	case opAcquire:
		c.grants, c.err = store.Acquire(ctx, me, cfg.LeaseTTL, c.limit)
	case opRelease:
		c.err = store.Release(ctx, me, c.leases, c.forget)
	case opClearRewind:
		c.err = store.ClearRewind(ctx, me, c.leases[0], c.ticket)
	case opKeepLow:
		c.err = store.KeepLow(ctx, me, c.lows, c.history)
	case opReport:
		c.err = store.ReportRoutes(ctx, me, c.routes)
	case opFetch:
		c.rows, c.err = store.Fetch(ctx, c.ranges)
	case opFetchKey:
		c.rows, c.err = store.FetchKey(ctx, c.shards[0].no, c.key, c.from, c.limit)
	case opWriters:
		c.names, c.err = store.Writers(ctx)
	case opBlocked:
		c.blocked, c.err = store.Blocked(ctx, c.numbers(), cfg.HoldDeadKeys, c.after, c.limit)
	case opDue:
		c.rows, c.next, c.err = store.Due(ctx, c.numbers(), cfg.HoldDeadKeys, c.since, cfg.Backoff.longest(), c.limit)
	case opMark:
		c.lost, c.err = store.Mark(ctx, me, c.marks)
	case opUndefer:
		var u outbox.Undeferred
		u, c.err = store.Undefer(ctx, me, c.leases, c.limit)
		c.moved, c.next, c.lost = u.Moved, u.Next, u.Lost
	default:
		c.executeParked(ctx, store, cfg)
	}
}

// executeParked runs the statements about parked events.
func (c *call) executeParked(ctx context.Context, store outbox.RelayStore, cfg *RelayConfig) {
	me := cfg.Name
	switch c.op {
	case opHeal:
		c.err = store.Heal(ctx, me, c.leases, cfg.HoldDeadKeys)
	case opPark:
		c.gone, c.err = store.Park(ctx, me, c.leases[0], c.failures)
	case opFollow:
		c.gone, c.err = store.Follow(ctx, me, c.leases[0], c.marks)
	case opRetry:
		c.gone, c.err = store.Retry(ctx, me, c.leases[0], c.failures, cfg.HoldDeadKeys)
	case opSent:
		c.gone, c.err = store.Sent(ctx, me, c.leases[0], c.seqs, cfg.HoldDeadKeys)
	case opFetchParked:
		c.rows, c.err = store.FetchParked(ctx, c.shards[0].no, c.key, cfg.HoldDeadKeys, c.limit)
	}
}
