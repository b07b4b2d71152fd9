package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/boxpair/boxpair/internal/pace"
	"github.com/boxpair/boxpair/store/inbox"
)

const (
	// identityInterval is the time between two looks at the database's identity. A pooler may move
	// sessions to another server without any connection of ours breaking.
	identityInterval = 5 * time.Second
	// identityFresh is how long after a look a window is believed. Within it no standby is
	// promoted, found by a relay, and read, and what it has sent again arrives here. Looking for
	// each copy would cost what windows save.
	identityFresh = 100 * time.Millisecond
)

var errAnotherDatabase = errors.New("database is another one than before")

// identity is which database an inbox knows that it is on.
type identity struct {
	turn chan struct{} // is held by who looks

	mu     sync.Mutex
	name   string    // "" until the database has told; is changed by whoever has the turn
	looked time.Time // when the last look that was answered began
}

func (i *identity) fresh(within time.Duration) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return !i.looked.IsZero() && time.Since(i.looked) < within
}

// record takes note of what a look has found, whose turn is held.
func (i *identity) record(name string, begun time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.looked = begun
	if name != "" {
		i.name = name
	}
}

// watchIdentity looks at the database's identity until ctx ends.
func (i *Inbox[TX]) watchIdentity(ctx context.Context) {
	for {
		_ = i.checkIdentity(ctx, 0) // whoever needs the database will notice an error
		if pace.Sleep(ctx, identityInterval) != nil {
			return
		}
	}
}

// checkIdentity returns nil if the database was the one that it was before at most within ago, and looks if
// need be. When it is another one, all handlers forget their windows: claims that were committed
// last may be missing there, with their effects.
func (i *Inbox[TX]) checkIdentity(ctx context.Context, within time.Duration) error {
	store, ok := i.store.(inbox.Identifier)
	if !ok || i.identity.fresh(within) {
		return nil
	}
	// The turn is waited for within the same bound, or many would wait for it one after another.
	ctx, cancel := context.WithTimeout(ctx, identityInterval)
	defer cancel()
	select {
	case i.identity.turn <- struct{}{}:
		defer func() { <-i.identity.turn }()
	case <-ctx.Done():
		return fmt.Errorf("identify the database: %w", context.Cause(ctx))
	}
	if i.identity.fresh(within) {
		return nil // another goroutine has looked
	}
	begun := time.Now()
	name, err := store.Identity(ctx)
	if err != nil {
		return fmt.Errorf("identify the database: %w", err)
	}
	defer i.identity.record(name, begun) // after the windows are forgotten, or others would believe them
	before := i.identity.name
	if before == "" || name == "" || name == before {
		return nil
	}
	i.log.ErrorContext(ctx, "database is another one than before, as after a fail-over, a restore or a crash: "+
		"what was remembered in memory is forgotten", "before", before, "now", name)
	for _, h := range i.all() {
		h.invalidate()
	}
	return errAnotherDatabase
}

// invalidate makes a handler ask the database again for what it knew from it.
func (h *Handler[TX]) invalidate() {
	h.stale.Store(true)
	if h.window != nil {
		h.window.Forget()
	}
}
