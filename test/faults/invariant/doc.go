// Package invariant says what must hold when everything has come to rest after faults,
// whatever they were.
//
// A [State] is what was found: the orders that were placed, the events, what went over
// the wire, what the consumers have done, what is parked where, what was logged. [Check]
// compares them and returns a [Violation] for everything that cannot be. A run in which too little
// happened is [Invalid]: it proves nothing, and is not to be called a success.
//
// The checks, in the order of [Names]:
//
//	atomic      an order has its event, an event its order, with the same content
//	loss        every order's event is applied, or set aside where an operator sees it
//	duplicate   no effect happened twice
//	phantom     no effect has no order
//	order       first effects of a key are in the order in which it was written, without a gap
//	wire        first deliveries of a key reached the broker in that order
//	conserved   orders = applied + pending + set aside, for each consumer, and nothing is in two places
//	drained     everything came to rest, in time
//	claimed     what the broker handed out and got acknowledged is in the inbox, or set aside
//	receipts    a handler's events are there exactly if its effects are
//	totals      count, sum, least and most per key are those of the orders
//	bounded     memory and what is in flight stayed within their bounds
//	goroutines  none was left at a service's end
//	secrets     no password and no payload is in a log or a stored error
//
// Each has a test in this package in which it finds what was planted.
package invariant
