// Package producer is the sending side: an outbox. An event is written in the transaction of the
// change that the event describes.
//
// # Writing
//
// An application makes one [Outbox] over a store. A [Writer] belongs to one transaction:
// [Outbox.Transact] runs a transaction and passes its writer to a function, and [Outbox.Tx] returns
// a writer for a transaction of the caller. Dispatch IDs name events. A dispatch ID is computed,
// not random (package idgen): code that runs again writes the same events, and the outbox
// recognizes them.
//
// Code that publishes through Watermill uses [Outbox.Publisher]. The publisher is made once, and
// finds the transaction in the context of each message. An event bus of Watermill's cqrs component
// takes keys and identities from the types of events:
//
//	func (e *OrderPlaced) EventKey() string { return e.Order }
//	func (e *OrderPlaced) EventIdentity() producer.Identity {
//		return producer.Identity{Source: "order/" + e.Order, Version: e.Version}
//	}
//
//	publisher, err := outbox.Publisher(producer.PublisherConfig{})
//	bus, err := cqrs.NewEventBusWithConfig(publisher, cqrs.EventBusConfig{
//		Marshaler: cqrs.CommandEventMarshalerDecorator{
//			CommandEventMarshaler: cqrs.JSONMarshaler{},
//			DecorateFunc:          producer.Describe,
//		}, …
//	})
//	err = outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
//		…
//		return bus.Publish(ctx, &OrderPlaced{…})
//	})
//
// # Publishing
//
// A relay (package producer/relay) publishes committed events, in the service's process or in a
// process of its own.
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
// A deferred event has a row in a table of deferred events, a pending event has a row in the queue,
// and a parked event has a row among the parked events. A sending event is a pending event in a
// relay's memory. A delivered event has only its row in the immutable log, where every event stays
// from the first write until the janitor removes the event.
//
// # Deferred events
//
// An event with a delivery time ([Event].DeliverAt) is sent at that time, by the database's clock.
// Until then the event uses up no attempt, delays no event, and can be cancelled or rescheduled
// ([Writer.Cancel], [Writer.Reschedule]). A relay moves due events to the queue and sends them from
// there. So a transaction that still finds the event deferred decides about the event by its
// commit.
//
// # Retention
//
// A [Janitor] removes events that were delivered or discarded longer ago than its retention, with
// their receipts and attempts. Until then, events can be replayed and inspected, and a repeated
// write is recognized. The janitor works in batches and never removes an undelivered event. Several
// janitors may run at once.
//
// # Sending again
//
// [Outbox.Replay] queues retained events again under their old dispatch IDs, selected by ID, topic,
// key or time, a bounded number at once. A consumer that has applied an event skips the copy; a new
// consumer catches up. [Outbox.Redrive] sends dead events again. Every event carries the end of its
// re-send horizon ([Config].ResendFor). Consumers must remember dispatch IDs beyond the horizon.
// After the horizon, replay and redrive are refused unless forced.
//
// # What survives a crash
//
// Before COMMIT, neither the change nor its events exist. After COMMIT, any relay finds the events,
// with or without a wake-up. A relay that dies leaves its queue rows in place. Another relay takes
// over the shards when the leases end, and sends every unmarked event again. So an event that was
// confirmed but not marked is sent twice under one dispatch ID, and the inbox drops the copy.
//
// # Guarantees
//
// A change and its events commit together or not at all. A committed event is published until the
// transport confirms the event, or is parked where an operator sees the event. First deliveries of
// one key keep the order of writing. Writing an event again with equal content is a no-op; with
// different content, the transaction cannot commit.
//
// # Assumptions
//
// Order needs producers that serialise on the key before they write: by a row lock on the
// aggregate, or by [Config].LockKeys. Commits are durable: a database fail-over that loses commits
// loses their events.
//
// # Limitations
//
// Events of different keys have no order. A key goes on past a dead event unless the relay holds
// dead keys. A deferred event takes its place among the events of its key when the event is due. A
// rollback to a savepoint not made by [Writer.Savepoint] hides the error from the writer and
// falsifies the writer's count of events.
package producer
