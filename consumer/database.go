package consumer

import (
	"context"
	"time"
)

// Identifier is a store that can tell whether it still is the database that it was.
// [Inbox.Run] asks for it every few seconds, if its store is one.
type Identifier interface {
	// Identity names the history of the database: another name after a fail-over to a standby
	// or a restore, the same after a restart. It returns "" if the database does not tell.
	Identity(ctx context.Context) (string, error)
}

// identityInterval is the time between two looks at the database's identity. A pooler may move
// sessions to another server without any connection of ours breaking.
const identityInterval = 5 * time.Second

// watch has all handlers forget their windows when the database is another one than
// before: claims that were committed last may be missing there, with their effects.
func (i *Inbox[TX]) watch(ctx context.Context) {
	store, ok := i.store.(Identifier)
	if !ok {
		return
	}
	before := ""
	for {
		identity, err := identify(ctx, store)
		switch {
		case err != nil || identity == "": // whoever needs the database will notice
		case before == "":
			before = identity
		case identity != before:
			i.log.ErrorContext(ctx, "database is another one than before, as after a fail-over or a restore: "+
				"what was remembered in memory is forgotten", "before", before, "now", identity)
			before = identity
			for _, h := range i.all() {
				h.doubt()
			}
		}
		if !sleep(ctx, identityInterval) {
			return
		}
	}
}

func identify(ctx context.Context, store Identifier) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, identityInterval)
	defer cancel()
	return store.Identity(ctx)
}

// doubt makes a handler ask the database again for what it knew from it.
func (h *Handler[TX]) doubt() {
	h.stale.Store(true)
	if h.window != nil {
		h.window.Forget()
	}
}
