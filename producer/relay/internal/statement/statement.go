// Package statement holds the statements that the core of a relay asks for. Each is a type that
// holds a request and has a place for its answer. Execute is the only way from the core to a store.
package statement

import (
	"context"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

// Statement is one call of an [outbox.RelayStore].
type Statement interface {
	// Op names the method that is called.
	Op() Op
	// Execute calls the method and fills in the answer. After an error the answer is meaningless.
	Execute(ctx context.Context, store outbox.RelayStore, by *Asker) error
}

// Asker is the relay that asks.
type Asker struct {
	Name     string
	LeaseTTL time.Duration
	Hold     bool          // Config.HoldDeadKeys
	Longest  time.Duration // how far ahead an event may have been parked
}
