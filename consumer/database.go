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
	// identityInterval is the time between two checks of the database's identity. A pooler may move
	// sessions to another server without breaking a connection to this process.
	identityInterval = 5 * time.Second
	// identityWait is how much later a check comes by itself, if no look for due messages has taken it
	// along.
	identityWait = 500 * time.Millisecond
	// identityFresh is how long windows are believed after a check. No fail-over is faster, from
	// the promotion of a standby to the arrival of a relay's repeated events here. A check for each
	// copy would cost as much as windows save.
	identityFresh = 100 * time.Millisecond
)

var errAnotherDatabase = errors.New("database is another one than before")

// identity is the identity of the database of an inbox.
type identity struct {
	turn chan struct{} // held by the goroutine that checks

	mu     sync.Mutex
	name   string    // "" until the first check; changed by the holder of the turn
	looked time.Time // when the latest successful check began
}

func (i *identity) fresh(within time.Duration) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return !i.looked.IsZero() && time.Since(i.looked) < within
}

// age returns how long ago the latest successful check began, and 0 before the first.
func (i *identity) age() time.Duration {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.looked.IsZero() {
		return 0
	}
	return time.Since(i.looked)
}

// record records the result of a check. The caller holds the turn.
func (i *identity) record(name string, begun time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.looked = begun
	if name != "" {
		i.name = name
	}
}

// watchIdentity checks the database's identity at intervals, until ctx ends.
func (i *Inbox[TX]) watchIdentity(ctx context.Context) {
	for {
		_ = i.checkIdentity(ctx, identityInterval) // the next use of the database meets the same error
		wait := identityInterval
		if age := i.identity.age(); age < identityInterval {
			wait += identityWait - age
		}
		if pace.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// dueMessages reads due messages of a consumer, and takes along a check of the database's identity
// that would come soon. The error is errAnotherDatabase, without messages, as of checkIdentity.
func (i *Inbox[TX]) dueMessages(ctx context.Context, consumer, limit int) (seqs []int64, next time.Duration, err error) {
	store, ok := i.store.(inbox.DueIdentifier)
	if !ok || i.identity.fresh(identityInterval/2) {
		return i.store.DueMessages(ctx, consumer, limit)
	}
	select {
	case i.identity.turn <- struct{}{}:
		defer func() { <-i.identity.turn }()
	default: // a check is under way
		return i.store.DueMessages(ctx, consumer, limit)
	}
	begun := time.Now()
	both, cancel := context.WithTimeout(ctx, identityInterval) // others may wait for the turn
	defer cancel()
	seqs, next, name, err := store.DueAndIdentity(both, consumer, limit)
	if errors.Is(err, errors.ErrUnsupported) {
		return i.store.DueMessages(ctx, consumer, limit)
	}
	if err == nil {
		err = i.identified(ctx, name, begun)
	}
	if err != nil {
		return nil, 0, err
	}
	return seqs, next, nil
}

// checkIdentity returns nil if the database is the same as before, by a check at most within old or
// by a new check, or if the store is no [inbox.Identifier]. For another database, which may lack
// the last claims and their effects, all windows are emptied.
func (i *Inbox[TX]) checkIdentity(ctx context.Context, within time.Duration) error {
	store, ok := i.store.(inbox.Identifier)
	if !ok || i.identity.fresh(within) {
		return nil
	}
	// The deadline includes the wait for the turn. Otherwise many callers would time out one after
	// another.
	ctx, cancel := context.WithTimeout(ctx, identityInterval)
	defer cancel()
	select {
	case i.identity.turn <- struct{}{}:
		defer func() { <-i.identity.turn }()
	case <-ctx.Done():
		return fmt.Errorf("identify the database: %w", context.Cause(ctx))
	}
	if i.identity.fresh(within) {
		return nil // another goroutine has checked
	}
	begun := time.Now()
	name, err := store.Identity(ctx)
	if err != nil {
		return fmt.Errorf("identify the database: %w", err)
	}
	return i.identified(ctx, name, begun)
}

// identified takes over the name that the database has told in a check. The caller holds the turn.
func (i *Inbox[TX]) identified(ctx context.Context, name string, begun time.Time) error {
	defer i.identity.record(name, begun) // after the windows are emptied: until then no goroutine may believe a window
	before := i.identity.name
	if before == "" || name == "" || name == before {
		return nil
	}
	i.log.ErrorContext(ctx, "database is another one than before, as after a fail-over, a restore or a crash: "+
		"what was remembered in memory is forgotten", "before", before, "now", name)
	for _, h := range i.all() {
		h.registry.invalidate()
	}
	return errAnotherDatabase
}

// invalidate drops the handler's cached state of the database: the consumer's number and the
// window.
func (rg *registry[TX]) invalidate() {
	rg.stale.Store(true)
	if rg.window != nil {
		rg.window.Forget()
	}
}
