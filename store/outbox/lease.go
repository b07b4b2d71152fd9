package outbox

// Lease is a relay's ownership of a shard for a time. Epoch grows with every change of owner, and
// fences off earlier owners.
type Lease struct {
	Shard int
	Epoch int64
}

// Grant is a lease that was just acquired.
type Grant struct {
	Lease
	// Abrupt tells that the former owner did not give the shard back. Consumers may have begun to
	// handle the events that the former owner had in flight.
	Abrupt bool
	// Low, Tail and History are the last arguments of [RelayStore.KeepLow] for the shard. They are
	// zero if KeepLow was not called, if a later owner ran a version without KeepLow, or if the log
	// has no event at or above Low and Tail, as after a reset of the sequence.
	Low     int64
	Tail    Tail
	History string
	// Ticket is the last rewind ticket of the shard, see [Renewal], or 0 without any. Low and Tail
	// are below RewindTo of the ticket, unless an owner has done the rewind.
	Ticket int64
}

// Low is a low-water mark: the queue of a shard has no row with an ID up to Seq, and no open
// transaction can commit one there. Seq 0 says nothing.
type Low struct {
	Lease
	Seq int64
	// Tail is kept besides; nil leaves the kept tail as it is.
	Tail *Tail
}

// Tail tells which events a relay has read and left in the queue of a shard: every queue row with
// an ID up to Seq is of an event without a key, or of a key in Passed. No open transaction can
// commit another row there. Seq 0 says nothing.
type Tail struct {
	Seq int64
	// Passed is opaque to stores. It has up to a megabyte.
	Passed []byte
}

// Renewal is a lease that was renewed.
type Renewal struct {
	Lease
	// Rewind tells that an operator has redriven, discarded or replayed events of the shard. The
	// owner heals the shard, loads its blocked keys again, reads the queue from the event RewindTo
	// on, and passes Ticket to [RelayStore.ClearRewind]. Tickets of a shard ascend.
	Rewind   bool
	RewindTo int64
	Ticket   int64
}
