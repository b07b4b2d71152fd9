// Command boxpair shows, explains and heals outboxes and inboxes, and runs relays in processes of
// their own. The command is a module of its own, so services do not get its dependencies.
//
// Every setting is a flag. Without the flag, the setting is an environment variable: BOXPAIR_ and the
// name of the flag in capitals. Without flag and variable, the setting is read from a YAML file, under
// the name of the flag: first from the context of --context, one of the mappings under contexts, then
// from the top level. A variable or a name in the file that belongs to no command is an error.
// Databases are named by URL:
//
//	postgres://user:password@host/database?boxpair_schema=boxpair&boxpair_prefix=
//	sqlite:path/to/file.db?boxpair_prefix=boxpair_
//
// If the host is a pooler in transaction mode, boxpair_direct=host:port names the server itself: the
// relay listens there, with the same user and password, and runs all its statements through the pooler.
//
// The exit status is 0 on success. Status 1 means that a command found a problem, such as a
// discrepancy, a bad state or a missing migration, or changed nothing. Status 2 means that the command
// failed: a wrong setting, an unreachable database, an interrupt. Passwords are never printed.
package main
