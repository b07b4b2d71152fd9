// Package migrations holds the tables of this library as numbered SQL files, one folder per
// database, and computes which migrations a database lacks.
//
// A store applies the migrations: call its Migrate function. Migrate takes a lock, so that two
// processes may start at once, and records the applied migrations in the table schema_migrations.
// Migrations only go forward. A released file never changes: its checksum is recorded, and a
// difference is an error.
//
// # As plain files
//
// The files are plain SQL. Any tool can apply them, in the order of their numbers, each file in one
// transaction. Statements for MySQL and MariaDB commit by themselves, and can be run again.
// The PostgreSQL files need their schema first:
//
//	CREATE SCHEMA boxpair;
//
// Use one tool for a database, Migrate or another: tools do not read each other's records.
//
// # Privileges
//
// [PostgresGrants] returns the statements that give the roles of a PostgreSQL database the least
// privileges for the parts of this library. For other tools, grants/postgres.sql holds the same
// statements.
//
// # Names
//
// The files quote every name of a table, index, sequence, view and function:
//
//   - For PostgreSQL in double quotes. A name begins with outbox or inbox, and carries the schema
//     "boxpair" where the grammar allows a schema.
//   - For SQLite in double quotes. A name begins with boxpair_.
//   - For MySQL and MariaDB in backquotes, names of columns too. A name of a table or view begins
//     with boxpair_.
//
// For other [Names], this package rewrites the quoted names: it replaces the schema, and prepends
// or replaces the prefix. Strings and comments stay as they are; the bodies of functions, between
// dollar quotes, are rewritten too.
package migrations
