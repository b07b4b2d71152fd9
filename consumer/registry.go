package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/dedupe"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

// registry is what a handler knows of its consumer in the database: its number, the dispatch IDs
// that were applied last, and the horizon of its producers. Another database empties it.
type registry[TX any] struct {
	*Handler[TX]

	registering chan struct{} // held by the goroutine that registers
	current     atomic.Pointer[inbox.Registration]
	stale       atomic.Bool    // the database may have changed: register again
	window      *dedupe.Window // nil without a cache
	horizon     horizon
	aheadLog    logLimiter // of stamps in the future
}

// ensure waits until the consumer is registered.
func (rg *registry[TX]) ensure(ctx context.Context, p *progress) error {
	for {
		err := rg.register(ctx)
		if err == nil || errors.Is(err, ErrShortWindow) || !rg.waitForDatabase(ctx, p, err) {
			return err
		}
	}
}

// register makes the consumer known to the store, and warms its window the first time. After an
// error of the database the consumer is registered again: in another database, as after a restore,
// it may have another number. register ends with ctx.
func (rg *registry[TX]) register(ctx context.Context) error {
	if rg.current.Load() != nil && !rg.stale.Load() {
		return nil
	}
	// The deadline includes the wait for the turn. Otherwise many callers would time out one after
	// another.
	ctx, cancel := context.WithTimeout(ctx, rg.cfg.Timeout)
	defer cancel()
	select {
	case rg.registering <- struct{}{}:
		defer func() { <-rg.registering }()
	case <-ctx.Done():
		return fmt.Errorf("register consumer: %w", context.Cause(ctx))
	}
	first := rg.current.Load() == nil
	if !rg.stale.Swap(false) && !first {
		return nil // another goroutine has registered
	}
	if first { // before the window holds dispatch IDs
		if err := rg.inbox.checkIdentity(ctx, identityInterval); err != nil && !errors.Is(err, errAnotherDatabase) {
			return fmt.Errorf("register consumer: %w", err)
		}
	}
	r, err := rg.inbox.store.Register(ctx, rg.name, rg.inbox.cfg.Window)
	if err != nil {
		rg.stale.Store(true)
		return fmt.Errorf("register consumer: %w", err)
	}
	if first {
		if err := rg.checkWindow(ctx, r); err != nil {
			return err
		}
		if err := rg.warm(ctx, r.Consumer); err != nil {
			return err
		}
	}
	rg.current.Store(&r)
	return nil
}

func (rg *registry[TX]) warm(ctx context.Context, consumer int) error {
	if rg.window == nil {
		return nil
	}
	term := rg.window.Term()
	seen, err := rg.inbox.store.Newest(ctx, consumer, rg.inbox.cfg.CacheSize)
	if err != nil {
		return fmt.Errorf("read newest dispatch IDs: %w", err)
	}
	for _, s := range seen {
		rg.window.Add(term, s.ID, s.Digest)
	}
	return nil
}

// consumer returns the store's number for the consumer, which the caller has registered.
func (rg *registry[TX]) consumer() int { return rg.current.Load().Consumer }

// seen tells whether the window knows the message as applied. The window belongs to one database.
// After a switch to a database without the last commits, the relay sends messages again, and the
// old window would lose their effects.
func (rg *registry[TX]) seen(ctx context.Context, in *incoming) bool {
	knows := func() bool { return rg.window.Seen(in.event.ID, in.event.Digest) == dedupe.Duplicate }
	// Two looks: in between, another goroutine may have found another database and emptied the
	// window.
	return rg.window != nil && knows() && rg.inbox.checkIdentity(ctx, identityFresh) == nil && knows()
}

func (rg *registry[TX]) term() dedupe.Term {
	if rg.window == nil {
		return 0
	}
	return rg.window.Term()
}

// remember adds a dispatch ID to the window. The claim is known to be committed.
func (rg *registry[TX]) remember(term dedupe.Term, id uuid.UUID, digest transport.Digest) {
	if rg.window != nil {
		rg.window.Add(term, id, digest)
	}
}
