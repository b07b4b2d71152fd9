// Package upgrade runs an older state of the library beside this one: processes of both on the same
// tables and the same queues, in every combination and through an upgrade under load, as a rolling
// deployment does. What is checked in the end is what the fault matrix checks: nothing lost,
// nothing repeated, nothing out of order.
//
//	make upgrade
//
// The older state is the commit [Base]. It is taken from the history of the repository and built in
// a temporary directory, so a clone without history cannot run these tests and says so.
package upgrade
