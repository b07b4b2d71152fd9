// Package system puts a whole chain together on servers that can be maltreated:
// databases, a topic with its queues, children that produce, relay and consume, and
// the look at what they have done when everything has come to rest.
//
//	sys, err := system.New(ctx, servers, system.Config{Dir: dir})
//	defer sys.Close(ctx)
//	consumer, err := sys.Start(ctx, child.Config{Name: "consumer", Roles: []child.Role{child.Consumer}}, "")
//	relay, err := sys.Start(ctx, child.Config{Name: "relay", Roles: []child.Role{child.Relay}}, "before-mark=kill@3")
//	…
//	state, err := sys.Finish(ctx, invariant.Work{Orders: 100, Faults: 1})
//	violations := invariant.Check(state)
//
// [System.Finish] waits until all is at rest, stops the children, which report, and reads
// everything: tables, what an observer's queue has recorded of the wire, logs, stored errors.
// Further systems run on the same servers without seeing each other.
package system
