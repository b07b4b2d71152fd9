// Command boxpair is the operator's tool, and a relay in a process of its own.
//
//	boxpair relay      publish what an outbox holds to RabbitMQ, until told to stop
//	boxpair status     show what waits in an outbox
//	boxpair deadletters list, show, redrive, discard
//	                   dead letters of an outbox or an inbox
//	boxpair effects list, show, resolve, redrive, discard
//	                   effects outside the database that wait for an operator
//	boxpair verify     compare what producers committed with what consumers applied
//	boxpair migrate    make the tables, or print the SQL that does
//	boxpair version    print the version
//	boxpair help       describe a command and its settings
//
// Every setting is a flag, and an environment variable for when the flag is not given: BOXPAIR_ and
// the name of the flag in capitals. What neither gives is read from the YAML file that -config
// names, under the names of the flags; a name that is not known is an error. Databases are named by
// URL:
//
//	postgres://user:password@host/database?boxpair_schema=boxpair&boxpair_prefix=
//	sqlite:path/to/file.db?boxpair_prefix=boxpair_
//
// The exit status is 0 if all is well, 1 if verify has found discrepancies, status a bad state,
// migrate -check missing migrations, or if nothing was changed that was meant to be, and 2 if
// something could not be done: a wrong setting, an unreachable database, an interrupt. A variable
// that begins with BOXPAIR_ and is none of any command is a wrong setting. Passwords are never
// printed.
package main
