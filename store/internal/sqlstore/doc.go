// Package sqlstore is the common part of the stores on MySQL and SQLite: both use database/sql, and
// tables that differ only in types and in the names of a few columns.
//
// Both stores embed a [Store] with the methods that are the same on either database, written once
// in SQL that both databases understand. Where their SQL differs, a statement has a word in braces.
// Where their behaviour differs, the [Dialect] has a function: how transactions begin, how rows are
// locked, and a few statements that one database can do better. MySQL locks single rows. SQLite
// runs one writing transaction at a time, so its lock words are empty, and reading again under a
// lock is left out.
//
// A statement has
//
//   - {outbox_parked} for a table, with the prefix of the store,
//   - {now} for the clock of the database, in microseconds since 1970,
//   - {live p} and other words of [Dialect].Words, with the text behind the first space in place
//     of their $,
//   - ? for an argument: a [Text], a list after IN, or rows to select from, as [Core] says.
//
// Only [Writers] keeps state between calls: the open transactions. The package is safe for
// concurrent use.
package sqlstore
