// Package producer is the sending side: an outbox that events are written to
// in the transaction of the change they tell of. Package producer/relay publishes
// what was committed.
//
// # Writing
//
// An [Outbox] is made once, over a store. Its [Writer] belongs to one
// transaction: [Outbox.Transact] runs a whole transaction and hands its writer
// out, and [Outbox.Tx] makes one for a transaction of the caller's. Events are
// named by dispatch IDs that are computed, not drawn (package idgen), so running
// the same code again writes the same events, and the outbox knows them already.
//
// # Publishing
//
// A relay (package producer/relay) publishes committed events, in the service's own process or
// alone in another.
//
// # States of an event
//
//	deferred ──► pending (when due), or cancelled
//	pending ──► sending ──► delivered
//	               │
//	               └──► parked: retrying ⇄ sending
//	                            following (behind an earlier event of its key)
//	                            dead ──► redriven (retrying again) or discarded
//
// Deferred is a row in a table of its own, pending is a row in the queue, sending is a pending row
// in a relay's memory, parked is a row among the parked events, and delivered is the absence of
// both. The event itself stands in an immutable log meanwhile.
//
// # Deferred events
//
// An event with a time ([Event].DeliverAt) is sent when that has come, by the database's clock.
// Until then it burns no attempt and holds up no other event, whatever their number, and can be
// given up or moved: [Writer.Cancel], [Writer.Reschedule]. A relay moves what is due to the queue,
// and what it sends stands in the queue: who finds an event still deferred has decided about it
// when his transaction commits.
//
// # Retention
//
// A [Janitor] removes events that were delivered or discarded longer than its retention
// ago, with their receipts and attempts. Until then they can be replayed and looked at, and
// an event that is written again is known. It works in batches, several at a time do no harm, and
// an event that is not delivered is never removed.
//
// # Sending again
//
// [Outbox.Replay] queues retained events again under their old dispatch IDs, by ID, topic, key or
// time, a bounded number at once: consumers that applied them run nothing, new ones catch up.
// [Outbox.Redrive] does it with dead events. Every event carries the time until which it may be
// sent again ([Config].ResendFor), so that consumers know how long they have to remember; after it,
// both are refused unless forced.
//
// # What survives a crash
//
// Before COMMIT neither the change nor its events exist; after it both do, and
// any relay finds the events, told or not. A relay that dies leaves its queue rows
// where they are; another takes its shards over when the lease ends and sends again
// whatever was not marked. What had been confirmed but not marked is then
// sent twice, under the same dispatch ID, and the inbox drops the copy.
//
// # Guarantees
//
// A change and its events commit together or not at all. A committed event is
// published until the transport confirms it, or is parked where an operator sees
// it. First deliveries of one key keep the order in which the events were written.
// An event written again with equal content is a no-op; with other content the
// transaction cannot commit.
//
// # Assumptions
//
// Order needs producers that serialise on the key before they write: by a row lock
// on the aggregate taken first, or by [Config].LockKeys. The store tells the
// truth about commits; a database fail-over that loses commits loses their events.
//
// # Limitations
//
// There is no order between keys, and none past a dead event unless the relay holds dead keys. A
// deferred event takes its place among those of its key when it is due. A caller who rolls back to
// a savepoint of his own, not the writer's, and goes on has hidden the error from the writer and
// disturbed its count.
package producer
