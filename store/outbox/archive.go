package outbox

import (
	"context"
	"time"
)

// ArchiveBytes is the size of the payloads and headers at which a list of an [ArchiveStore] ends
// before its limit, so that the list fits into memory.
const ArchiveBytes = 16 << 20

// ArchiveStore is an optional part of a [Store] that shows a janitor which events it is about to
// remove, so that the janitor can archive them. The stores of this library have it. Calls may run
// concurrently like those of [JanitorStore].
type ArchiveStore interface {
	JanitorStore
	// ListDelivered reads the events that RemoveDelivered with the same arguments would remove now,
	// without a lock. The list may end after any event, also between two events of a receipt; it has
	// at least one event if there is one.
	ListDelivered(ctx context.Context, retention time.Duration, after time.Time, limit int) (Removable, error)
	// ListDiscarded reads the events that RemoveDiscarded with the same arguments would remove now,
	// without a lock.
	ListDiscarded(ctx context.Context, retention time.Duration, limit int) (Removable, error)
	// RemoveListed removes the listed rows in one transaction, and no others. An event that has to
	// stay by now stays: it was replayed, redriven or written again since. The result takes Full and
	// Through from the list.
	RemoveListed(ctx context.Context, retention time.Duration, list Removable) (Removed, error)
}

// Archived is an event past its retention.
type Archived struct {
	Record
	// Seq is the event's place in the log.
	Seq int64
	// State is [DeliveredState], [Discarded] or [Cancelled].
	State State
	// EndedAt is when the last listed copy was confirmed, or when the event was discarded or
	// cancelled.
	EndedAt time.Time
	// Attempts is the number of counted attempts of an event that was not delivered.
	Attempts int
	// LastError is the last failure of an event that was not delivered.
	LastError string
	// Reason is why the event was discarded or cancelled.
	Reason string
	// Unreadable names a column that could not be decoded, and is left out of the record.
	Unreadable string
}

// Removable lists rows that are past their retention.
type Removable struct {
	// Events are the events with their content.
	Events []Archived
	// Seqs are the places in the log of all events to remove. An event that the log has lost is
	// among Seqs only.
	Seqs []int64
	// Receipts are the receipts whose events are all listed or stay.
	Receipts []Receipt
	// Discarded tells that the events were discarded or cancelled, not delivered.
	Discarded bool
	// Full tells that more rows may be left.
	Full bool
	// Through is the time of the last listed receipt. The next list may begin there.
	Through time.Time

	bytes int64
	ended map[int64]time.Time
}

// Receipt identifies a receipt.
type Receipt struct {
	At time.Time
	ID int64
}

// Sized is an event of a receipt, and the size of its payload and headers.
type Sized struct{ Seq, Bytes int64 }

// Take adds a receipt and those of its events that may be removed, for stores that build a list. It
// returns false if the list has become full.
func (r *Removable) Take(receipt Receipt, events []Sized) bool {
	r.Through = receipt.At
	for _, e := range events {
		if !r.TakeEvent(e, receipt.At) {
			return false
		}
	}
	r.Receipts = append(r.Receipts, receipt)
	return true
}

// TakeEvent adds an event that ended at a time, for stores that build a list. It returns false, and
// leaves out the event, if the list has become full.
func (r *Removable) TakeEvent(e Sized, at time.Time) bool {
	if r.ended == nil {
		r.ended = make(map[int64]time.Time)
	}
	if _, has := r.ended[e.Seq]; !has {
		if len(r.Seqs) > 0 && r.bytes+e.Bytes > ArchiveBytes {
			r.Full = true
			return false
		}
		r.Seqs = append(r.Seqs, e.Seq)
		r.bytes += e.Bytes
	}
	r.ended[e.Seq] = at
	return true
}

// EndedAt returns the time that Take or TakeEvent was given last for an event.
func (r *Removable) EndedAt(seq int64) time.Time { return r.ended[seq] }
