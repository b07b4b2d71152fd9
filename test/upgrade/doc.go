// Package upgrade runs an older state of the library beside this one: processes of both on the same
// tables and queues, in every combination and through an upgrade under load, as in a rolling
// deployment. The final checks are those of the fault matrix: no event lost, repeated or out of
// order.
//
//	make upgrade
//
// The older state is the commit [Base]. It is taken from the history of the repository and built in
// a temporary directory. In a clone without history these tests fail and say so.
package upgrade
