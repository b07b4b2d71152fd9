// Package modeltest compares parts of the library with models of them that are simple
// enough to be believed. It holds tests only, run by "make model".
//
//   - The window of an inbox, in memory and in the table, against a map: package rapid draws
//     sequences of deliveries, failing commits, restarts, fail-overs and forgetting.
//   - The leases of shards against a table of owners: rapid draws what several relays do, and
//     how time passes.
//   - Concurrent consumers of one database: porcupine looks for an order in which each
//     dispatch ID was applied once, in accordance with every answer that a consumer gave.
//
// On SQLite, a sequence of rapid's runs in a bubble of testing/synctest: the database's clock is
// the process's, so time passes exactly as a test says. On PostgreSQL the times in the tables are
// moved instead.
//
// The module is its own, because users need no such packages.
package modeltest
