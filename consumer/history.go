package consumer

import (
	"context"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
)

// Attempts reads the failed attempts to handle a message and what operators did to it, oldest
// first, at most limit (0: 100), of every consumer that shares the tables. It knows what
// Config.HistoryFor has left.
func (i *Inbox[TX]) Attempts(ctx context.Context, id uuid.UUID, limit int) ([]inbox.Attempt, error) {
	return i.store.MessageAttempts(ctx, "", id, limitOf(limit))
}

// Attempts is [Inbox.Attempts] for this consumer alone.
func (h *Handler[TX]) Attempts(ctx context.Context, id uuid.UUID, limit int) ([]inbox.Attempt, error) {
	return h.inbox.store.MessageAttempts(ctx, h.name, id, limitOf(limit))
}
