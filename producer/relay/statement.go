package relay

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
		return fault.BeforeLease, fault.Leased
	case opMark:
		return fault.BeforeMark, fault.Marked
	case opHeal, opPark, opFollow, opRetry, opSent, opUndefer:
		return fault.BeforePark, fault.Parked
	default:
		return "", ""
	}
}

// statement is one call of a [outbox.RelayStore]: what it asks for, and its answer.
type statement struct {
	op op

	// What is asked. Each statement has some of it.
	leases   []outbox.Lease
	numbers  []int // of shards
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
	read     int64                 // of CheckSequence
	routes   []outbox.StalledRoute // of ReportRoutes
	lows     []outbox.Low          // of KeepLow
	history  string                // of KeepLow

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

// asker is the relay that a statement is of.
type asker struct {
	name     string
	leaseTTL time.Duration
	hold     bool          // Config.HoldDeadKeys
	longest  time.Duration // how far ahead an event may have been parked
}

// execute runs the statement and fills in the answer. It is the only place that
// touches the store.
func (s *statement) execute(ctx context.Context, store outbox.RelayStore, by *asker) {
	me := by.name
	switch s.op {
	case opRenew:
		s.renewals, s.err = store.Renew(ctx, me, by.leaseTTL, s.leases)
	case opHeartbeat:
		s.live, s.err = store.Heartbeat(ctx, me, by.leaseTTL)
		if known, ok := store.(outbox.Identifier); ok && s.err == nil {
			s.identity, s.err = known.Identity(ctx)
		}
		if numbered, ok := store.(outbox.SequenceChecker); ok && s.err == nil {
			s.sequence = numbered.CheckSequence(ctx, s.read)
		}
	case opAcquire:
		s.grants, s.err = store.Acquire(ctx, me, by.leaseTTL, s.limit)
	case opRelease:
		s.err = store.Release(ctx, me, s.leases, s.forget)
	case opClearRewind:
		s.err = store.ClearRewind(ctx, me, s.leases[0], s.ticket)
	case opKeepLow:
		s.err = store.KeepLow(ctx, me, s.lows, s.history)
	case opReport:
		s.err = store.ReportRoutes(ctx, me, s.routes)
	case opFetch:
		s.rows, s.err = store.Fetch(ctx, s.ranges)
	case opFetchKey:
		s.rows, s.err = store.FetchKey(ctx, s.numbers[0], s.key, s.from, s.limit)
	case opWriters:
		s.names, s.err = store.Writers(ctx)
	case opBlocked:
		s.blocked, s.err = store.Blocked(ctx, s.numbers, by.hold, s.after, s.limit)
	case opDue:
		s.rows, s.next, s.err = store.Due(ctx, s.numbers, by.hold, s.since, by.longest, s.limit)
	case opMark:
		s.lost, s.err = store.Mark(ctx, me, s.marks)
	case opUndefer:
		var u outbox.Undeferred
		u, s.err = store.Undefer(ctx, me, s.leases, s.limit)
		s.moved, s.next, s.lost = u.Moved, u.Next, u.Lost
	default:
		s.executeParked(ctx, store, by)
	}
}

// executeParked runs the statements about parked events.
func (s *statement) executeParked(ctx context.Context, store outbox.RelayStore, by *asker) {
	me := by.name
	switch s.op {
	case opHeal:
		s.err = store.Heal(ctx, me, s.leases, by.hold)
	case opPark:
		s.gone, s.err = store.Park(ctx, me, s.leases[0], s.failures)
	case opFollow:
		s.gone, s.err = store.Follow(ctx, me, s.leases[0], s.marks)
	case opRetry:
		s.gone, s.err = store.Retry(ctx, me, s.leases[0], s.failures, by.hold)
	case opSent:
		s.gone, s.err = store.Sent(ctx, me, s.leases[0], s.seqs, by.hold)
	case opFetchParked:
		s.rows, s.err = store.FetchParked(ctx, s.numbers[0], s.key, by.hold, s.limit)
	}
}
