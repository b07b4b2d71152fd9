package consumer

import "errors"

var (
	// ErrRolledBack is wrapped when the database answered COMMIT with ROLLBACK,
	// as it does when a handler swallowed the error of a statement.
	ErrRolledBack = errors.New("database rolled the transaction back at commit: a statement in it had failed")
	// ErrCommitUnknown is wrapped by the error of a COMMIT whose outcome is not known.
	ErrCommitUnknown = errors.New("outcome of the commit is unknown")
	// ErrClockJump is returned when the time up to which dispatch IDs are forgotten
	// would advance much further than time has passed.
	ErrClockJump = errors.New("database clock jumped ahead: nothing is forgotten")
)
