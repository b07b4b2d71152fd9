// Package core decides everything that a relay does. It has no I/O, goroutines, locks or clocks:
// input goes in with the time at which it happened, and decisions come out. Equal input gives equal
// output, so a simulator can drive the package through any order of input and crash it anywhere.
//
// The state is divided among owners, which share the [Machine]:
//
//	leases    which shards this relay owns, and until when
//	loading   which keys of an acquired shard are blocked
//	reader    which rows of the queue are fetched next; late, numbers and laps say from where on
//	deferred  when deferred events are moved to the queue
//	due       when parked events are fetched
//	keys      which events are in memory, and which event of a key goes first
//	dispatch  which event is sent next, and what its outcome means
//	routes    which routes work; routeLog and reports report stalled ones
//	marks     which confirmed events are removed from the queue
//	parking   which parked events are changed
//	lows      where the next owner of a shard begins to read
//
// An event goes through reader, keys, dispatch and marks. A refused event goes from dispatch through
// routes to parking, and comes back through due.
package core
