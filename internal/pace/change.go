package pace

import (
	"context"
	"time"
)

const (
	// PerBatch is how many rows one transaction of a long change changes at most.
	PerBatch = 500
	// batchTime is how long a transaction should take, and share the part of the time that all of them
	// take: live traffic has the rest.
	batchTime, share = 25 * time.Millisecond, 0.25
	// brieflyPerBatch, brieflyTime and brieflyShare are the same for changes that make relays load parked
	// events again.
	brieflyPerBatch, brieflyTime, brieflyShare = 100, 2 * time.Millisecond, 0.03
)

// Batches paces a long change of rows beside live traffic. It belongs to one goroutine.
type Batches struct {
	*Pace

	pause time.Duration
	trips time.Duration // of a batch, through the network: no load for the database
}

// Change returns batches for rows that nobody has in memory.
func Change() *Batches { return &Batches{Pace: New(PerBatch, batchTime, share)} }

// BriefChange returns batches for parked events, which relays load again after each batch. A batch is a
// statement and a signal. trip is the cheapest statement: it measures the network.
func BriefChange(trip func() error) (*Batches, error) {
	shortest := time.Hour
	for range 3 {
		begun := time.Now()
		if err := trip(); err != nil {
			return nil, err
		}
		shortest = min(shortest, time.Since(begun))
	}
	return &Batches{Pace: New(brieflyPerBatch, brieflyTime, brieflyShare), trips: 2 * shortest}, nil
}

// Pause returns how long Next is going to wait.
func (b *Batches) Pause() time.Duration { return b.pause }

// Next waits until the next batch may begin, and has it change at most left rows. changed returns how
// many rows it has changed.
func (b *Batches) Next(ctx context.Context, left int, change func(most int) (changed int, err error)) error {
	if err := Sleep(ctx, b.pause); err != nil {
		return err
	}
	begun := time.Now()
	n, err := change(min(b.Size(), left))
	b.pause = b.Took(time.Since(begun)-b.trips, n == b.Size())
	return err
}
