package inbox

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/transport"
)

// Registration is the stored state of a consumer.
type Registration struct {
	Consumer int
	// ForgottenUntil is the time up to which dispatch IDs are forgotten, or zero if none are.
	ForgottenUntil time.Time
	// Horizon is the longest time after its stamp that a producer may send an event again, as noted
	// by [WindowStore.NoteHorizon]. Events with this horizon may arrive until HorizonUntil. Both
	// are zero after HorizonUntil, and if no horizon was noted.
	Horizon      time.Duration
	HorizonUntil time.Time
}

// Seen is an applied dispatch ID, for warming a window.
type Seen struct {
	ID     uuid.UUID
	Digest transport.Digest
}

// Forgotten is the result of one batch of [WindowStore.Forget].
type Forgotten struct {
	IDs int
	// Through is the latest stamp of the removed IDs, or zero without any. The next batch may begin
	// there.
	Through time.Time
}

// WindowStore registers consumers, and remembers and forgets their dispatch IDs.
type WindowStore interface {
	// Register makes a consumer known by name and keeps its window. A new consumer has forgotten
	// nothing.
	Register(ctx context.Context, name string, window time.Duration) (Registration, error)
	// NoteHorizon notes that events of consumer may be sent again for horizon after their stamps,
	// and may arrive until until. A longer horizon replaces a shorter horizon. An equal horizon
	// extends the time. Any horizon replaces a horizon whose time is over.
	NoteHorizon(ctx context.Context, consumer int, horizon time.Duration, until time.Time) error
	// Newest reads the last limit dispatch IDs that consumer applied, newest last.
	Newest(ctx context.Context, consumer int, limit int) ([]Seen, error)
	// AdvanceForgotten sets the time up to which consumer forgets to window before now, never back,
	// and commits. A consumer that has been known for less than window has nothing to forget: its
	// time does not change, so that it may read history of any age. If the database's clock has
	// advanced by more than maxStep since the last successful call, or since the registration, the
	// call is refused with a [ClockJumpError]. AdvanceForgotten returns the time that holds now.
	AdvanceForgotten(ctx context.Context, consumer int, window, maxStep time.Duration) (time.Time, error)
	// Forget removes at most limit dispatch IDs of consumer, oldest first, with a stamp not before
	// after and before the latest forgotten time that was set at least grace ago. IDs of parked
	// messages stay.
	Forget(ctx context.Context, consumer int, grace time.Duration, after time.Time, limit int) (Forgotten, error)
	// ForgetDiscarded removes at most limit parked messages of consumer that were discarded longer
	// than age ago, and returns the number of removed messages. Their dispatch IDs stay, and are
	// forgotten like the IDs of applied messages.
	ForgetDiscarded(ctx context.Context, consumer int, age time.Duration, limit int) (int, error)
	// InboxStats reads the state of a consumer's inbox.
	InboxStats(ctx context.Context, consumer int) (Stats, error)
}

// Stats is the state of a consumer's inbox at one moment.
type Stats struct {
	Retrying  int64
	Following int64
	Dead      int64
	TooOld    int64
	Altered   int64
	// OldestParked is the age of the oldest retrying or following message.
	OldestParked time.Duration
	// ForgottenUntil is the time up to which dispatch IDs are forgotten.
	ForgottenUntil time.Time
	// Horizon is the longest time after its stamp that a producer may send an event again, among
	// events that may still arrive. With a horizon beyond the consumer's window, late copies will
	// be set aside as too old.
	Horizon time.Duration
	// Effects counts the unfinished effects outside the database, for a handler with effects.
	Effects EffectStats
}
