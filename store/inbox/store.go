package inbox

import "context"

// Identifier is a store that can tell whether it still is the database that it was.
// An inbox asks for it before it believes its windows, and every few seconds, if its store is one.
type Identifier interface {
	// Identity names the history of the database: another name after a fail-over to a standby, a
	// restore, or a crash that may have cost commits, the same after a restart. It returns "" if
	// the database does not tell.
	Identity(ctx context.Context) (string, error)
}

// Store keeps inboxes. TX is the type of its transactions. The stores of this
// library are in store/postgres, store/mysql and store/sqlite; package store/storetest holds
// the contract below as tests for any other. No method has the name of one that a producer's store
// has and another signature, so one store can be both.
//
// All methods may be called concurrently. Times that decide anything are the database's.
type Store[TX any] interface {
	ClaimStore[TX]
	ParkedStore[TX]
	WindowStore
	HistoryStore
}
