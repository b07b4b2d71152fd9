package statement

import (
	"context"
	"errors"

	"github.com/boxpair/boxpair/store/outbox"
)

// Renew extends leases.
type Renew struct {
	Leases []outbox.Lease
	Beat   *Heartbeat // wanted in the same transaction; nil in the answer if there was none
	Poll   *Fetch     // wanted in the same transaction as well; nil: no poll is wanted

	Renewals []outbox.Renewal
	PollErr  error // of Poll, where the leases were extended
}

// Op is [OpRenew].
func (*Renew) Op() Op { return OpRenew }

// Execute implements [Statement].
func (s *Renew) Execute(ctx context.Context, store outbox.RelayStore, by *Asker) (err error) {
	beat := s.Beat
	s.Beat = nil
	if pulser, ok := store.(outbox.Pulser); ok && beat != nil {
		pulse, err := pulser.Pulse(ctx, by.Name, by.LeaseTTL, s.Leases, beat.Read, s.Poll.poll())
		if err == nil {
			beat.Live, beat.Identity, beat.Sequence = pulse.Live, pulse.Identity, pulse.Sequence
			s.Renewals, s.Beat = pulse.Renewals, beat
			if s.Poll != nil {
				s.Poll.Rows, s.Poll.Next = pulse.Rows, pulse.Next
			}
		}
		if !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
	}
	s.Renewals, err = store.Renew(ctx, by.Name, by.LeaseTTL, s.Leases)
	if s.Poll != nil && err == nil {
		s.PollErr = s.Poll.Execute(ctx, store, by)
	}
	return err
}

// Heartbeat makes the relay visible and counts the visible relays.
type Heartbeat struct {
	Read int64 // highest number of an event read so far

	Live     int
	Identity string // of the database; "" if unknown
	Sequence error  // an [outbox.SequenceError] if the numbers of events begin anew
}

// Op is [OpHeartbeat].
func (*Heartbeat) Op() Op { return OpHeartbeat }

// Execute implements [Statement].
func (s *Heartbeat) Execute(ctx context.Context, store outbox.RelayStore, by *Asker) (err error) {
	s.Live, err = store.Heartbeat(ctx, by.Name, by.LeaseTTL)
	if known, ok := store.(outbox.Identifier); ok && err == nil {
		s.Identity, err = known.Identity(ctx)
	}
	if numbered, ok := store.(outbox.SequenceChecker); ok && err == nil {
		s.Sequence = numbered.CheckSequence(ctx, s.Read)
	}
	return err
}

// Acquire takes free shards.
type Acquire struct {
	Limit int // shards

	Grants []outbox.Grant
}

// Op is [OpAcquire].
func (*Acquire) Op() Op { return OpAcquire }

// Execute implements [Statement].
func (s *Acquire) Execute(ctx context.Context, store outbox.RelayStore, by *Asker) (err error) {
	s.Grants, err = store.Acquire(ctx, by.Name, by.LeaseTTL, s.Limit)
	return err
}

// Release gives shards back.
type Release struct {
	Leases []outbox.Lease
	Forget bool // the relay ends
}

// Op is [OpRelease].
func (*Release) Op() Op { return OpRelease }

// Execute implements [Statement].
func (s *Release) Execute(ctx context.Context, store outbox.RelayStore, by *Asker) error {
	return store.Release(ctx, by.Name, s.Leases, s.Forget)
}

// ClearRewind tells the database that the shard was set back.
type ClearRewind struct {
	Lease  outbox.Lease
	Ticket int64
}

// Op is [OpClearRewind].
func (*ClearRewind) Op() Op { return OpClearRewind }

// Execute implements [Statement].
func (s *ClearRewind) Execute(ctx context.Context, store outbox.RelayStore, by *Asker) error {
	return store.ClearRewind(ctx, by.Name, s.Lease, s.Ticket)
}

// KeepLow keeps the places where the next owners of shards begin to read.
type KeepLow struct {
	Lows    []outbox.Low
	History string // identity of the database in which the places are true
}

// Op is [OpKeepLow].
func (*KeepLow) Op() Op { return OpKeepLow }

// Execute implements [Statement].
func (s *KeepLow) Execute(ctx context.Context, store outbox.RelayStore, by *Asker) error {
	return store.KeepLow(ctx, by.Name, s.Lows, s.History)
}

// Attest records the witness of the relay's session with leases. The machine asks for it only if the
// store is an [outbox.Witnesser], as for the next two.
type Attest struct {
	Leases  []outbox.Lease
	Witness int64 // 0: there is none
}

// Op is [OpAttest].
func (*Attest) Op() Op { return OpAttest }

// Execute implements [Statement].
func (s *Attest) Execute(ctx context.Context, store outbox.RelayStore, by *Asker) error {
	return store.(outbox.Witnesser).Attest(ctx, by.Name, s.Leases, s.Witness)
}

// EndedWitnesses looks for owners of leases whose sessions have ended.
type EndedWitnesses struct {
	Ended []int64
}

// Op is [OpEndedWitnesses].
func (*EndedWitnesses) Op() Op { return OpEndedWitnesses }

// Execute implements [Statement].
func (s *EndedWitnesses) Execute(ctx context.Context, store outbox.RelayStore, _ *Asker) (err error) {
	s.Ended, err = store.(outbox.Witnesser).EndedWitnesses(ctx)
	return err
}

// Expire ends the leases of such owners.
type Expire struct {
	Witnesses []int64
}

// Op is [OpExpire].
func (*Expire) Op() Op { return OpExpire }

// Execute implements [Statement].
func (s *Expire) Execute(ctx context.Context, store outbox.RelayStore, _ *Asker) error {
	return store.(outbox.Witnesser).Expire(ctx, s.Witnesses)
}
