// Package relay publishes the committed events of an outbox through Watermill.
//
// A [Relay] sends committed events to a Watermill publisher, in the service's process or in a
// process of its own. Events of one key are sent in the order of writing; events of different keys
// are in flight at once. An event leaves the queue when the transport has confirmed the event. A
// failed event is parked with a backoff, and later events of its key wait. An event that has used
// up its attempts is dead until an operator redrives or discards the event.
//
// A relay that dies leaves its queue rows in place. Another relay takes over the shards when the
// leases end, and sends every unmarked event again.
package relay
