package inbox

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// AppliedState is the state of a message whose handler has committed, for a search. A parked message
// is [Retrying], [Following], [Dead], [TooOldState], [AlteredState] or [Discarded]. The state of a
// message whose effect outside the database is not done is "effect_" and the [EffectState].
const AppliedState State = "applied"

// Searcher is an optional part of a [Store] that finds messages in any state, for operators. The
// stores of this library have it.
type Searcher interface {
	// SearchMessages reads messages in one snapshot, without a lock. Parked messages come by
	// descending Seq, then all other messages by descending [Found.Since]. One dispatch ID may have
	// several messages: one of each consumer, and messages with other content that were set aside.
	//
	// Dispatch IDs and all states of parked messages are found through indexes. A search without
	// dispatch IDs looks at no more than q.Scan applied messages, those with the newest stamps, and
	// finds discarded effects among the q.Scan newest effects.
	SearchMessages(ctx context.Context, q Query) (Results, error)
	// MessageCauses counts the parked messages that f selects by consumer, state, topic and last
	// error, the most frequent first. f.Limit bounds the number of causes, and f.After is ignored.
	MessageCauses(ctx context.Context, f Filter) ([]Cause, error)
}

// Cause is what parked messages have in common.
type Cause struct {
	Consumer string
	State    State
	Topic    string
	Error    string
	Count    int64
	// First and Last are when the first and the last of the messages were parked.
	First, Last time.Time
	// Example is the dispatch ID of one of the messages.
	Example uuid.UUID
}

// Query selects messages in any state. Zero fields select all.
type Query struct {
	// IDs are dispatch IDs.
	IDs []uuid.UUID
	// From and To bound the dispatch ID, From ≤ ID ≤ To, so that they select by its first digits. A
	// zero To is no bound, and From is then ignored.
	From, To uuid.UUID
	// Consumer is the name of a consumer.
	Consumer string
	// States are the states of the messages.
	States []State
	// Topic and Key are compared exactly. An applied message has neither, and is not selected by them.
	Topic, Key string
	// Named is the key, or the source or the correlation ID in the metadata, compared exactly. Of parked
	// messages, it is looked for in the Scan newest, and as the key in all that wait in order; Results.More
	// says nothing of the others. An applied message is not selected by it.
	Named string
	// Error is a part of the last error, compared case-sensitively and without wildcards.
	Error string
	// Since and Until bound the time of parking or applying: Since ≤ time < Until.
	Since, Until time.Time
	// Limit bounds the number of messages. Defaults to 100.
	Limit int
	// Scan bounds the number of applied messages that are looked at, and of parked ones for Named. Defaults to 20,000.
	Scan int
	// Content reads metadata and payloads of parked messages as well; otherwise they are nil.
	Content bool
}

// Results is the result of one search.
type Results struct {
	Messages []Found
	// More tells that Limit or Scan has ended the search.
	More bool
}

// Found is a message of a consumer with what became of it.
type Found struct {
	// Message has only ID, Digest and Stamp if the message is applied, and also Topic and Key while
	// its effect outside the database is not done.
	Message
	Consumer string
	State    State
	// Why says in words why the message is in its state, for example "waits for its next attempt".
	Why string
	// Seq is the number of a parked message, or 0.
	Seq int64
	// WaitsFor is the dispatch ID of the earlier message of the key that the message waits for, or
	// uuid.Nil.
	WaitsFor uuid.UUID
	// Attempts is the number of counted attempts of a parked message or of an effect. Of an applied
	// message it is what the history of the message still knows.
	Attempts int
	// Since is when the message was applied or parked. A parked message with a claim becomes applied
	// when its handler commits.
	Since time.Time
	// NextAttemptAt is when a retrying message is handled again, or zero.
	NextAttemptAt time.Time
	LastError     string
	// Reason is why the message was discarded.
	Reason string
}
