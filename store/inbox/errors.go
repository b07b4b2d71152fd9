package inbox

import "errors"

var (
	// ErrRolledBack is wrapped when the database answered COMMIT with ROLLBACK,
	// as it does when a handler swallowed the error of a statement.
	ErrRolledBack = errors.New("database rolled the transaction back at commit: a statement in it had failed")
	// ErrCommitUnknown is wrapped by the error of a COMMIT whose outcome is not known.
	ErrCommitUnknown = errors.New("outcome of the commit is unknown")
	// ErrNotClaimed is what the transaction of a handler with HandlerConfig.Optimistic returns if
	// the message is not to be applied: it was applied before, is too old, or has to wait. The
	// handler returns it; what it returns then does not matter.
	ErrNotClaimed = errors.New("message is not to be applied: it was before, is too old, or follows one that is parked")
	// ErrEnded is wrapped when a transaction was ended by the function that it was given to, in a
	// way that the store could not refuse, as by a COMMIT on the connection itself. Part of the
	// work may be committed. A message whose claim is then found committed is not acknowledged but
	// set aside as [AlteredState], for an operator: nobody knows how much of its effect is there.
	ErrEnded = errors.New("the transaction may have been ended by the function that it was given to, and part of its work been committed")
	// ErrNotShared is wrapped by a store when a handler changes settings, or goes back to a
	// savepoint by SQL, in a transaction that it shares with handlers of other messages
	// ([SharesTransaction]). The message is handled alone, where it may.
	ErrNotShared = errors.New("settings and savepoints by SQL would be those of other messages in the transaction, too: the handler needs one of its own")
	// ErrNested is wrapped by a store with one writer when a message is handled with the context of
	// another handler, whose transaction would wait for itself. Nothing became of the message.
	ErrNested = errors.New("within the transaction of the same database: use that transaction, or do it after its end")
	// ErrClockJump is returned when the time up to which dispatch IDs are forgotten
	// would advance much further than time has passed.
	ErrClockJump = errors.New("database clock jumped ahead: nothing is forgotten")
	// ErrLeaseEnded is wrapped by the error of an effect whose process did not come back.
	ErrLeaseEnded = errors.New("process that carried the effect out did not come back")
)
