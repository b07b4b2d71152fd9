package outbox

// Lease is a relay's ownership of a shard for a time. Epoch grows with every
// change of owner and fences off whoever owned the shard before.
type Lease struct {
	Shard int
	Epoch int64
}

// Grant is a lease that was just acquired.
type Grant struct {
	Lease
	// Abrupt tells that the former owner did not give the shard back: what it had
	// in flight may have been started by consumers.
	Abrupt bool
	// Low, Tail and History are what [RelayStore.KeepLow] has kept of the shard: empty if nothing
	// is, if an owner since then does not know of it, or if the log has no event at or above Low
	// and Tail, as after numbers began anew.
	Low     int64
	Tail    Tail
	History string
	// Ticket is the last one that the shard had, as in [Renewal], 0 if it had none. Low and Tail
	// are below the rewind that it asks for, unless an owner has done that.
	Ticket int64
}

// Low tells that the queue of a shard has no row with an ID up to Seq, and that no writer can
// commit one there any more. 0: it is not known to be so of any.
type Low struct {
	Lease
	Seq int64
	// Tail is kept besides. nil leaves the one that is kept.
	Tail *Tail
}

// Tail tells which events a relay has read and left in the queue of a shard: each queue row with an
// ID up to Seq is of an event without a key, or of a key that Passed names. No writer can commit
// one there any more. A Seq of 0 says nothing.
type Tail struct {
	Seq int64
	// Passed is opaque to stores. It may take a megabyte.
	Passed []byte
}

// Renewal is a lease that was renewed.
type Renewal struct {
	Lease
	// Rewind tells that an operator has changed what is to be sent from this shard: the shard is to
	// be healed, its blocked keys loaded anew and the queue read from the event RewindTo on. Ticket
	// names the request for [RelayStore.ClearRewind]. Tickets of a shard ascend.
	Rewind   bool
	RewindTo int64
	Ticket   int64
}
