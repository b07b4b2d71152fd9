package outbox

import (
	"context"
	"time"
)

// TopicCounter is an optional part of a [Store] that counts waiting and dead events by topic, for
// operators. The stores of this library have it.
type TopicCounter interface {
	// CountTopics counts events by topic, in the order of the topics. It looks at no more than about
	// limit waiting and limit dead events, however many there are. Of more waiting events it looks at
	// the first ones of each shard. limit defaults to 10,000.
	CountTopics(ctx context.Context, limit int) (TopicCounts, error)
}

// TopicCounts are the topics that have waiting or dead events.
type TopicCounts struct {
	Topics []TopicCount
	// WaitingCapped and DeadCapped tell that there are more waiting or dead events than CountTopics
	// has looked at. Every topic then has at least the counted events, and a topic may be missing.
	WaitingCapped, DeadCapped bool
}

// TopicCount counts the events of one topic. An event that the log has lost has no topic and counts
// with the topic "".
type TopicCount struct {
	Topic string
	// Waiting counts pending, retrying and following events.
	Waiting int64
	// Oldest is the age of the oldest waiting event, as in [Stats].OldestPending.
	Oldest time.Duration
	// Dead counts dead events.
	Dead int64
}

// DefaultCountLimit is the limit of [TopicCounter.CountTopics] if none is given.
const DefaultCountLimit = 10_000
