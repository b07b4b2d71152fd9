package consumer

import (
	"context"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
)

// Attempts reads the history of a message, for all consumers that share the tables: failed attempts
// and changes by operators, oldest first, at most limit entries (0: 100). Entries older than
// Config.HistoryFor are gone.
func (i *Inbox[TX]) Attempts(ctx context.Context, id uuid.UUID, limit int) ([]inbox.Attempt, error) {
	return i.store.MessageAttempts(ctx, "", id, limitOf(limit))
}

// Attempts is [Inbox.Attempts] for this consumer alone.
func (h *Handler[TX]) Attempts(ctx context.Context, id uuid.UUID, limit int) ([]inbox.Attempt, error) {
	return h.inbox.store.MessageAttempts(ctx, h.name, id, limitOf(limit))
}
