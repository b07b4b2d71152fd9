// Package core makes the decisions of a relay. It has no I/O, goroutines, locks or clocks: a
// [Machine] gets input together with its time, and returns decisions.
//
// The state of the machine is divided among owners:
//
//	leases    which shards this relay owns, and until when
//	witness   whether other relays have ended before their leases
//	loading   which keys of an acquired shard are blocked
//	signals   whether the relay learns of the commits of others
//	reader    which rows of the queue are fetched next
//	late      which rows may still appear below the read position of a shard
//	numbers   whether the numbers of events ascend
//	laps      when skipped events are read again
//	deferred  when deferred events are moved to the queue
//	due       when parked events are fetched
//	keys      which events are in memory, and which event of a key goes first
//	dispatch  which event is sent next, and what its outcome means
//	routes    which routes work
//	routeLog  which records about routes are logged
//	reports   what the relay tells operators of itself
//	marks     which confirmed events are removed from the queue
//	parking   which parked events are changed
//	pauses    what operators have paused
//	rates     how many events a limited downstream gets
//	lows      where the next owner of a shard begins to read
//
// An event goes through reader, keys, dispatch and marks. A refused event goes from dispatch
// through routes to parking, and comes back through due.
package core
