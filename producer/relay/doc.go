// Package relay publishes the committed events of an outbox through Watermill.
//
// A [Relay] moves committed events to a Watermill publisher, in the service's own process or alone
// in another. Events of one key are sent one by one, in the order of writing; events of different
// keys are in flight at once. An event leaves the queue when the transport has confirmed it. A
// failed event is parked with a backoff, and later events of its key wait behind it; an event that
// has used up its attempts is dead and waits for an operator, who redrives or discards it.
//
// A relay that dies leaves its queue rows where they are. Another relay takes the shards over when
// their leases end, and sends every event again that was not marked as delivered.
package relay
