// Package boxpairtest is for the tests of services that use boxpair: it tells which events code
// under test has written, delivers events to handlers, and explores what a handler does when its
// process crashes.
//
// [SQLite] gives a test a database of its own without any server; a test against PostgreSQL or MySQL
// uses the store of the service. [Rollback] runs a test in a transaction that is never committed.
//
// A [Recorder] knows the events that were committed with its context, and [RequireWritten] compares
// them with the events that a test expects. [Deliver] hands messages to a handler, once, twice, or
// in another order, and [Crash] has the process die while it handles one.
//
// [Explore] runs a handler again and again: the database fails at each statement, the process
// crashes before COMMIT, the answer to COMMIT is lost, and each message comes again. It reports what
// a handler changes outside of its transaction, and what differs from run to run. The idea is that
// of the crash explorer of ALICE (Pillai et al., OSDI 2014), which crashes a program between two
// system calls.
//
// The crashes are simulated within the test's process: the database connection of the transaction
// fails, and everything that the consumer would do afterwards is left undone. A handler sees an
// error, as it does when its connection is lost, where a process that is killed sees nothing.
package boxpairtest
