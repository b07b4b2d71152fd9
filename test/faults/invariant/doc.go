// Package invariant checks the invariants that hold when a system has come to rest after faults
// of any kind.
//
// A [State] is the observed state: the placed orders, the events, the messages on the wire, the
// effects of consumers, the parked rows, the logs. [Check] compares these parts and returns a
// [Violation] for each contradiction. A run with too little work is [Invalid]: the run proves
// nothing, and is not to be called a success.
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
// Each check has a test in this package in which it finds a planted violation.
package invariant
