// Package migrations holds the tables of this library as numbered SQL files,
// one folder per database, and knows which of them a database still lacks.
//
// A store applies them: call its Migrate function, which takes a lock, so two
// processes may start at once, and records what was applied in the table
// schema_migrations. Migrations only go forward. A file that was released never
// changes: its checksum is recorded, and a difference is an error.
//
// # As plain files
//
// The files are plain SQL and can be applied by any other tool, in the order of their numbers, each
// in one transaction; those for MySQL and MariaDB commit by themselves, and can be run again. The
// PostgreSQL files need their schema first:
//
//	CREATE SCHEMA boxpair;
//
// Use Migrate or another tool for a database, not both: they do not know
// of each other's records.
//
// # Privileges
//
// [PostgresGrants] returns the statements that give the roles of a PostgreSQL database what
// the parts of this library need and no more. The same is in grants/postgres.sql, for other
// tools.
//
// # Names
//
// In the files, every name of a table, index, sequence, view and function is in double quotes. In
// those for PostgreSQL it begins with outbox or inbox and carries the schema "boxpair" where the
// grammar allows one; in those for SQLite it begins with boxpair_; in those for MySQL and MariaDB
// all names, of columns too, are in backquotes, and those of tables and views begin with boxpair_.
// For other [Names], this package rewrites what is in these quotes: the schema is replaced, and the
// prefix is put before or replaced. Strings and comments are left as they are; the bodies of
// functions, between dollar quotes, are not.
package migrations
