// Package statement holds the statements of the core of a relay. A statement is a type that holds a
// request and has room for the answer. The core reaches a store only through Execute.
package statement

import (
	"context"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

// Statement is one call of an [outbox.RelayStore].
type Statement interface {
	// Op names the called method.
	Op() Op
	// Execute calls the method and fills in the answer. After an error the answer is meaningless.
	Execute(ctx context.Context, store outbox.RelayStore, by *Asker) error
}

// Asker is the relay that issues statements.
type Asker struct {
	Name     string
	LeaseTTL time.Duration
	Hold     bool          // Config.HoldDeadKeys
	Longest  time.Duration // how far ahead an event may have been parked
}
