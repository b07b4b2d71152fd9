// Package modeltest compares parts of the library with simple models. It holds tests only, run by
// "make model".
//
//   - The window of an inbox, in memory and in the table, against a map: package rapid draws
//     sequences of deliveries, failing commits, restarts, fail-overs and forgetting.
//   - The leases of shards against a table of owners: rapid draws the steps of several relays and
//     of time.
//   - Concurrent consumers of one database: porcupine looks for an order in which each dispatch ID
//     was applied once, and which agrees with every answer of a consumer.
//
// On SQLite, a sequence of rapid's runs in a bubble of testing/synctest: the database uses the
// process's clock, so time passes exactly as the test says. On PostgreSQL the times in the tables
// are moved instead.
//
// The tests are a module of their own, because users of the library do not need these packages.
package modeltest
