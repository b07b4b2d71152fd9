// Command boxpair is the operator's tool, and a relay in a process of its own.
//
//	boxpair relay      publish the events of an outbox to RabbitMQ, until stopped
//	boxpair status     show the state of an outbox or an inbox
//	boxpair pause      stop relays from sending, or a consumer from handling, for a while
//	boxpair resume     end a pause
//	boxpair deadletters list, show, redrive, discard
//	                   dead letters of an outbox or an inbox
//	boxpair effects list, show, resolve, redrive, discard
//	                   effects outside the database that wait for an operator
//	boxpair verify     compare committed events with applied messages
//	boxpair migrate    create or update the tables, or print the SQL
//	boxpair version    print the version
//	boxpair help       describe a command and its settings
//
// Every setting is a flag. Without the flag, an environment variable sets it: BOXPAIR_ and the name
// of the flag in capitals. Without flag and variable, the YAML file of -config sets it, under the
// name of the flag; an unknown name in the file is an error. Databases are named by URL:
//
//	postgres://user:password@host/database?boxpair_schema=boxpair&boxpair_prefix=
//	sqlite:path/to/file.db?boxpair_prefix=boxpair_
//
// The exit status is 0 on success. It is 1 if verify finds discrepancies, status finds a bad state,
// migrate -check finds missing migrations, a change of dead letters changes nothing, or resume finds
// no pause. It is 2 if the command failed: a wrong setting, an unreachable database, an interrupt. A
// variable that begins with BOXPAIR_ and belongs to no command is a wrong setting. Passwords are
// never printed.
package main
