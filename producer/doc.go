// Package producer is the sending side: an outbox. Events are written in the transaction of the
// change that they describe. Package producer/relay publishes committed events.
//
// # Writing
//
// An [Outbox] is made once, over a store. Its [Writer] belongs to one transaction:
// [Outbox.Transact] runs a whole transaction and passes its writer to a function, and [Outbox.Tx]
// makes a writer for a transaction of the caller's. Dispatch IDs name events. They are computed,
// not drawn (package idgen): code that runs again writes the same events, and the outbox knows them
// already.
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
// in a relay's memory, parked is a row among the parked events, and a delivered event has none of
// these rows. The event itself is in an immutable log meanwhile.
//
// # Deferred events
//
// An event with a time ([Event].DeliverAt) is sent at that time, by the database's clock. Until
// then it uses up no attempt, holds up no other event, and can be cancelled or moved:
// [Writer.Cancel], [Writer.Reschedule]. A relay moves due events to the queue, and sends them from
// there: a transaction that finds an event still deferred decides about it with its commit.
//
// # Retention
//
// A [Janitor] removes events that were delivered or discarded longer than its retention ago, with
// their receipts and attempts. Until then they can be replayed and looked at, and an event that is
// written again is known. The janitor works in batches. Several janitors at a time do no harm, and
// an undelivered event is never removed.
//
// # Sending again
//
// [Outbox.Replay] queues retained events again under their old dispatch IDs, by ID, topic, key or
// time, a bounded number at once: consumers that applied them run nothing, new consumers catch up.
// [Outbox.Redrive] sends dead events again. Every event carries the end of its re-send horizon
// ([Config].ResendFor): consumers have to remember its dispatch ID for longer. after it, replay and
// redrive are refused unless forced.
//
// # What survives a crash
//
// Before COMMIT neither the change nor its events exist; after it both do, and any relay finds the
// events, with or without a wake-up. A relay that dies leaves its queue rows where they are;
// another takes its shards over when the lease ends and sends every event again that was not
// marked. An event that was confirmed but not marked is sent twice, under the same dispatch ID, and
// the inbox drops the copy.
//
// # Guarantees
//
// A change and its events commit together or not at all. A committed event is published until the
// transport confirms it, or is parked where an operator sees it. First deliveries of one key keep
// the order in which the events were written. An event written again with equal content is a no-op;
// with other content the transaction cannot commit.
//
// # Assumptions
//
// Order needs producers that serialise on the key before they write: by a row lock on the aggregate
// taken first, or by [Config].LockKeys. The store tells the truth about commits; a database
// fail-over that loses commits loses their events.
//
// # Limitations
//
// There is no order between keys, and none past a dead event unless the relay holds dead keys. A
// deferred event takes its place among the events of its key when it is due. A caller who rolls
// back to a savepoint of his own instead of [Writer.Savepoint] hides the error from the writer and
// disturbs its count.
package producer
