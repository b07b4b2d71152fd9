// Package child is a service in a process of its own, to be killed.
//
// A program whose main function, or TestMain, begins with
//
//	child.Main()
//
// runs again as a child when [Start] asks for it: a producer, a relay, a consumer, a
// janitor, or any of them in one process. The program has to be built with -tags faults;
// Start refuses otherwise.
//
//	p, err := child.Start(ctx, child.Config{
//		Roles: []child.Role{child.Relay}, Outbox: url, AMQP: amqp, Topic: topic, Dir: dir,
//	}, "before-mark=kill@3")
//	err = p.Killed(ctx)
//
// # What it does
//
// The producer places orders: it locks the aggregate of a key, counts it, and writes the
// order with an event that tells of it, all in one transaction. An order whose outcome
// is unknown is placed again, under the same name, until it is known; so is the last one
// of a producer that was killed.
//
// The consumer adds an effect for each message to a table that has no unique constraint, adds to a
// total per key, and writes an event of its own, a receipt, to the outbox of its database. [Schema]
// holds the tables; package invariant compares them.
//
// # What it tells
//
// It logs everything, at every level, to <Name>.log in Dir, and its standard error goes
// to <Name>.err: faults announce themselves there. When it ends in good order it
// writes a [Report]: the memory that it needed, the goroutines that it left behind, its
// counters. A child ends at once when its parent is gone.
package child
