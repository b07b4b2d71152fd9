// Package statement holds the statements that the core of a relay asks for: requests with their
// answers, and the one place that gives them to a store.
package statement

import (
	"context"
	"time"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/store/outbox"
)

// Op names a method of [outbox.RelayStore].
type Op uint8

// The methods, in the order of who asks: leases, reader, marks and parking.
const (
	Renew Op = iota
	Heartbeat
	Acquire
	Release
	ClearRewind
	KeepLow
	Report
	Fetch
	FetchKey
	Writers
	Blocked
	Due
	Mark
	Heal
	Park
	Follow
	Retry
	Sent
	FetchParked
	Undefer
)

var opNames = [...]string{
	"renew", "heartbeat", "acquire", "release", "clear rewind", "keep low", "report routes", "fetch", "fetch key", "writers",
	"blocked", "due", "mark", "heal", "park", "follow", "retry", "sent", "fetch parked", "undefer",
}

// String returns the name of the statement, for log records.
func (o Op) String() string { return opNames[o] }

// OnLeases tells whether the call is the lease keeper's: it must not take as
// long as a lease lasts.
func (o Op) OnLeases() bool { return o <= Report }

// Points returns what is reached before and after a call of o, if it changes anything.
func (o Op) Points() (before, after fault.Point) {
	switch o {
	case Acquire:
		return fault.BeforeLease, fault.Leased
	case Mark:
		return fault.BeforeMark, fault.Marked
	case Heal, Park, Follow, Retry, Sent, Undefer:
		return fault.BeforePark, fault.Parked
	default:
		return "", ""
	}
}

// Statement is one call of a [outbox.RelayStore]: what it asks for, and its answer.
type Statement struct {
	Op Op

	// What is asked. Each statement has some of it.
	Leases   []outbox.Lease
	Numbers  []int // of shards
	Ranges   []outbox.Range
	Marks    []outbox.Mark
	Failures []outbox.Failure
	Seqs     []int64
	Key      string
	From     int64 // of FetchKey
	Limit    int
	After    outbox.BlockedKey
	Since    outbox.DuePoint // of Due
	Ticket   int64
	Forget   bool
	Read     int64                 // of CheckSequence
	Routes   []outbox.StalledRoute // of ReportRoutes
	Lows     []outbox.Low          // of KeepLow
	History  string                // of KeepLow

	// The answer.
	Err      error
	Live     int
	Identity string
	Sequence error // that it begins anew
	Grants   []outbox.Grant
	Renewals []outbox.Renewal
	Rows     []outbox.Queued
	Names    []string
	Blocked  []outbox.BlockedKey
	Moved    []outbox.Moved
	Next     time.Duration
	Lost     []int
	Gone     bool // the shard's lease is lost
}

// Asker is the relay that a statement is of.
type Asker struct {
	Name     string
	LeaseTTL time.Duration
	Hold     bool          // Config.HoldDeadKeys
	Longest  time.Duration // how far ahead an event may have been parked
}

// Execute runs the statement and fills in the answer. It is the only place that
// touches the store.
func (s *Statement) Execute(ctx context.Context, store outbox.RelayStore, by *Asker) {
	me := by.Name
	switch s.Op {
	case Renew:
		s.Renewals, s.Err = store.Renew(ctx, me, by.LeaseTTL, s.Leases)
	case Heartbeat:
		s.Live, s.Err = store.Heartbeat(ctx, me, by.LeaseTTL)
		if known, ok := store.(outbox.Identifier); ok && s.Err == nil {
			s.Identity, s.Err = known.Identity(ctx)
		}
		if numbered, ok := store.(outbox.SequenceChecker); ok && s.Err == nil {
			s.Sequence = numbered.CheckSequence(ctx, s.Read)
		}
	case Acquire:
		s.Grants, s.Err = store.Acquire(ctx, me, by.LeaseTTL, s.Limit)
	case Release:
		s.Err = store.Release(ctx, me, s.Leases, s.Forget)
	case ClearRewind:
		s.Err = store.ClearRewind(ctx, me, s.Leases[0], s.Ticket)
	case KeepLow:
		s.Err = store.KeepLow(ctx, me, s.Lows, s.History)
	case Report:
		s.Err = store.ReportRoutes(ctx, me, s.Routes)
	case Fetch:
		s.Rows, s.Err = store.Fetch(ctx, s.Ranges)
	case FetchKey:
		s.Rows, s.Err = store.FetchKey(ctx, s.Numbers[0], s.Key, s.From, s.Limit)
	case Writers:
		s.Names, s.Err = store.Writers(ctx)
	case Blocked:
		s.Blocked, s.Err = store.Blocked(ctx, s.Numbers, by.Hold, s.After, s.Limit)
	case Due:
		s.Rows, s.Next, s.Err = store.Due(ctx, s.Numbers, by.Hold, s.Since, by.Longest, s.Limit)
	case Mark:
		s.Lost, s.Err = store.Mark(ctx, me, s.Marks)
	case Undefer:
		var u outbox.Undeferred
		u, s.Err = store.Undefer(ctx, me, s.Leases, s.Limit)
		s.Moved, s.Next, s.Lost = u.Moved, u.Next, u.Lost
	default:
		s.ExecuteParked(ctx, store, by)
	}
}

// ExecuteParked runs the statements about parked events.
func (s *Statement) ExecuteParked(ctx context.Context, store outbox.RelayStore, by *Asker) {
	me := by.Name
	switch s.Op {
	case Heal:
		s.Err = store.Heal(ctx, me, s.Leases, by.Hold)
	case Park:
		s.Gone, s.Err = store.Park(ctx, me, s.Leases[0], s.Failures)
	case Follow:
		s.Gone, s.Err = store.Follow(ctx, me, s.Leases[0], s.Marks)
	case Retry:
		s.Gone, s.Err = store.Retry(ctx, me, s.Leases[0], s.Failures, by.Hold)
	case Sent:
		s.Gone, s.Err = store.Sent(ctx, me, s.Leases[0], s.Seqs, by.Hold)
	case FetchParked:
		s.Rows, s.Err = store.FetchParked(ctx, s.Numbers[0], s.Key, by.Hold, s.Limit)
	}
}
