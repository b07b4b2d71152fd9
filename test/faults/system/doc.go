// Package system puts a whole chain together on servers with injected faults: databases, a topic
// with its queues, and children that produce, relay and consume. At rest, the package reads the
// state of the chain.
//
//	sys, err := system.New(ctx, servers, system.Config{Dir: dir})
//	defer sys.Close(ctx)
//	consumer, err := sys.Start(ctx, child.Config{Name: "consumer", Roles: []child.Role{child.Consumer}}, "")
//	relay, err := sys.Start(ctx, child.Config{Name: "relay", Roles: []child.Role{child.Relay}}, "before-mark=kill@3")
//	…
//	state, err := sys.Finish(ctx, invariant.Work{Orders: 100, Faults: 1})
//	violations := invariant.Check(state)
//
// [System.Finish] waits until the chain is at rest, stops the children, which report, and reads
// tables, logs, stored errors, and the messages that an observer's queue has recorded. Several
// systems run on the same servers without seeing each other.
package system
