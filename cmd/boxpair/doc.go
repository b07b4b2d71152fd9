// Command boxpair shows, explains and heals outboxes and inboxes, and runs relays in processes of
// their own. It is a module of its own, so that its dependencies are no dependencies of a service.
//
// Every setting is a flag. Without the flag, an environment variable sets it: BOXPAIR_ and the name
// of the flag in capitals. Without flag and variable, a YAML file sets it, under the name of the
// flag: first the file's context of --context, a mapping of names to settings under contexts, then
// the settings beside it. A variable or a name in the file that belongs to no command is an error.
// Databases are named by URL:
//
//	postgres://user:password@host/database?boxpair_schema=boxpair&boxpair_prefix=
//	sqlite:path/to/file.db?boxpair_prefix=boxpair_
//
// The exit status is 0 on success. It is 1 if a command found what it looks for, such as a
// discrepancy, a bad state or a missing migration, or if it changed nothing. It is 2 if the command
// failed: a wrong setting, an unreachable database, an interrupt. Passwords are never printed.
package main
