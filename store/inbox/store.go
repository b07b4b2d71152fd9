package inbox

import (
	"context"
	"time"

	"github.com/boxpair/boxpair/store/control"
)

// Identifier is an optional part of a [Store] that tells a fail-over or a restore from a restart.
// An inbox calls Identity before it uses its windows, and every few seconds.
type Identifier interface {
	// Identity names the history of the database. The name changes with a fail-over to a standby, a
	// restore, and a crash that may have cost commits. A restart keeps the name. The name is "" if
	// the database does not tell.
	Identity(ctx context.Context) (string, error)
}

// DueIdentifier is an optional part of a [Store]: an idle inbox reads both in one transaction.
type DueIdentifier interface {
	// DueAndIdentity is DueMessages of [ParkedStore] and Identity of [Identifier]. The error wraps
	// [errors.ErrUnsupported] if the database needs the methods one by one.
	DueAndIdentity(ctx context.Context, consumer int, limit int) (seqs []int64, next time.Duration, identity string, err error)
}

// Store keeps inboxes. TX is the type of its transactions. The stores of this library are in
// store/postgres, store/mysql and store/sqlite. Package store/storetest tests any store against the
// contract below. No method shares a name but not the signature with a method of outbox.Store, so
// one type can implement both interfaces.
//
// All methods may be called concurrently. The database's clock decides.
type Store[TX any] interface {
	ClaimStore[TX]
	ParkedStore[TX]
	WindowStore
	HistoryStore
	control.Store
}
