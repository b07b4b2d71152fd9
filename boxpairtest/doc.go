// Package boxpairtest helps to test services that use boxpair. The package records the events that
// code under test writes, delivers events to handlers, and explores handlers whose process crashes.
//
// [SQLite] gives a test a database of its own without any server; a test against PostgreSQL or MySQL
// uses the store of the service. [Rollback] runs a test in a transaction that is never committed.
//
// A [Recorder] records the events that are committed with its context, and [RequireWritten] compares
// the events with the expected events. [Deliver] hands messages to a handler, once, twice, or in
// another order, and [Crash] lets the process die while the handler handles a message.
//
// [Explore] runs a handler again and again: the database fails at each statement, the process
// crashes before COMMIT, the answer to COMMIT is lost, and each message comes again. Explore reports
// changes outside of the transaction, and differences between runs. The idea is from the crash
// explorer of ALICE (Pillai et al., OSDI 2014), which crashes a program between two system calls.
//
// The crashes are simulated within the test's process: the database connection of the transaction
// fails, and the consumer does none of its later steps. The handler sees the error of a lost
// connection; in a killed process there would be no error.
package boxpairtest
