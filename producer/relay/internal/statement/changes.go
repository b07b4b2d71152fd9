package statement

import (
	"context"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

// Mark removes confirmed events from the queue.
type Mark struct {
	Marks []outbox.Mark

	Lost []int // shards whose lease is lost
}

// Op is [OpMark].
func (*Mark) Op() Op { return OpMark }

// Execute implements [Statement].
func (s *Mark) Execute(ctx context.Context, store outbox.RelayStore, by *Asker) (err error) {
	s.Lost, err = store.Mark(ctx, by.Name, s.Marks)
	return err
}

// Undefer moves due deferred events to the queue.
type Undefer struct {
	Leases []outbox.Lease
	Limit  int // events of a shard

	Moved []outbox.Moved
	Next  time.Duration // until the next event is due; 0: not known
	Lost  []int         // shards whose lease is lost
}

// Op is [OpUndefer].
func (*Undefer) Op() Op { return OpUndefer }

// Execute implements [Statement].
func (s *Undefer) Execute(ctx context.Context, store outbox.RelayStore, by *Asker) error {
	u, err := store.Undefer(ctx, by.Name, s.Leases, s.Limit)
	s.Moved, s.Next, s.Lost = u.Moved, u.Next, u.Lost
	return err
}

// Heal gives heads to followers without one.
type Heal struct {
	Leases []outbox.Lease
}

// Op is [OpHeal].
func (*Heal) Op() Op { return OpHeal }

// Execute implements [Statement].
func (s *Heal) Execute(ctx context.Context, store outbox.RelayStore, by *Asker) error {
	return store.Heal(ctx, by.Name, s.Leases, by.Hold)
}

// Fenced is the common part of statements that change parked events of one shard.
type Fenced struct {
	Lease outbox.Lease

	Gone bool // the lease is lost
}

// LeaseLost tells whether the lease is lost.
func (f *Fenced) LeaseLost() bool { return f.Gone }

// Park parks queued events that failed.
type Park struct {
	Fenced
	Failures []outbox.Failure
}

// Op is [OpPark].
func (*Park) Op() Op { return OpPark }

// Execute implements [Statement].
func (s *Park) Execute(ctx context.Context, store outbox.RelayStore, by *Asker) (err error) {
	s.Gone, err = store.Park(ctx, by.Name, s.Lease, s.Failures)
	return err
}

// Follow moves queued events behind the parked head of their key.
type Follow struct {
	Fenced
	Marks []outbox.Mark
}

// Op is [OpFollow].
func (*Follow) Op() Op { return OpFollow }

// Execute implements [Statement].
func (s *Follow) Execute(ctx context.Context, store outbox.RelayStore, by *Asker) (err error) {
	s.Gone, err = store.Follow(ctx, by.Name, s.Lease, s.Marks)
	return err
}

// Retry records further failures of parked events.
type Retry struct {
	Fenced
	Failures []outbox.Failure
}

// Op is [OpRetry].
func (*Retry) Op() Op { return OpRetry }

// Execute implements [Statement].
func (s *Retry) Execute(ctx context.Context, store outbox.RelayStore, by *Asker) (err error) {
	s.Gone, err = store.Retry(ctx, by.Name, s.Lease, s.Failures, by.Hold)
	return err
}

// Sent records the success of parked events of any shards.
type Sent struct {
	Marks []outbox.Mark

	Lost []int // shards whose lease is lost
}

// Op is [OpSent].
func (*Sent) Op() Op { return OpSent }

// Execute implements [Statement].
func (s *Sent) Execute(ctx context.Context, store outbox.RelayStore, by *Asker) (err error) {
	s.Lost, err = store.Sent(ctx, by.Name, s.Marks, by.Hold)
	return err
}
