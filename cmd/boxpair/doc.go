// Command boxpair is the operator's tool.
//
//	boxpair verify     compare what producers committed with what consumers applied
//	boxpair migrate    make the tables, or print the SQL that does
//	boxpair version    print the version
//	boxpair help       describe a command and its settings
//
// Every setting is a flag, and an environment variable for when the flag is not given:
// BOXPAIR_ and the name of the flag in capitals. Databases are named by URL:
//
//	postgres://user:password@host/database?boxpair_schema=boxpair&boxpair_prefix=
//	sqlite:path/to/file.db?boxpair_prefix=boxpair_
//
// The exit status is 0 if all is well, 1 if verify has found discrepancies, and 2 if
// something could not be done: a wrong setting, an unreachable database, an interrupt.
// Passwords are never printed.
package main
