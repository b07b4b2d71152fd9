// Package child is a service in a process of its own, to be killed.
//
// A program whose main function, or TestMain, begins with
//
//	child.Main()
//
// can run again as a child of [Start]: a producer, a relay, a consumer, a janitor, or several of
// them in one process. The program must be built with -tags faults; Start refuses otherwise.
//
//	p, err := child.Start(ctx, child.Config{
//		Roles: []child.Role{child.Relay}, Outbox: url, AMQP: amqp, Topic: topic, Dir: dir,
//	}, "before-mark=kill")
//
// # Work
//
// The producer places orders. In one transaction it locks and counts the aggregate of a key, and
// writes the order with its event. An order with an unknown outcome is placed again, under its
// name, until the outcome is known; so is the last order of a killed producer.
//
// The consumer adds an effect for each message to a table without any unique constraint, adds to a
// total per key, and writes an event of its own, a receipt, to the outbox of its database. [Schema]
// holds the tables; package invariant compares them.
//
// # Output
//
// The child logs at every level to <Name>.log in Dir, and its standard error goes to <Name>.err,
// where faults announce themselves. At an orderly end it writes a [Report]: its memory, its leaked
// goroutines, its counters. A child ends at once when its parent is gone.
package child
