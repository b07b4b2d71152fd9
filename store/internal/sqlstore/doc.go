// Package sqlstore is what the stores on MySQL and SQLite have in common: what they do through
// database/sql with tables that differ in their types and in the names of a few columns only.
//
// A [Store] is embedded by both and has those methods of theirs that are the same on either
// database. Each is written once, in the SQL that both understand. What a database says in its own
// way stands in a statement as a word in braces, and what it does in its own way is a function of
// its [Dialect]: how it begins transactions, what it locks, and the few statements of which one
// database has a better one. On MySQL rows are locked one by one. On SQLite a transaction that
// writes is alone, so whatever the words of locks stand for there is nothing, and reading again
// under a lock is left out.
//
// A statement has
//
//   - {outbox_parked} for a table, under the prefix of the store,
//   - {now} for the clock of the database, in microseconds since 1970,
//   - {live p} and other words of [Dialect].Words, with what follows the first space in place of
//     their $,
//   - ? for an argument: a [Text], a list after IN, or rows to select from, as [Core] says.
//
// Nothing here outlives a call but what [Writers] knows of open transactions. All of it is safe for
// concurrent use.
package sqlstore
