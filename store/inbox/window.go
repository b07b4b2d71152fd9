package inbox

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/transport"
)

// Registration is what a store knows of a consumer.
type Registration struct {
	Consumer int
	// ForgottenUntil is the time up to which dispatch IDs are forgotten. Zero: none is.
	ForgottenUntil time.Time
	// Horizon is the longest time after its stamp that a producer may send an event again, as
	// [WindowStore.NoteHorizon] was told, and HorizonUntil until when one with it may come. Zero
	// if that is over, or nobody has said.
	Horizon      time.Duration
	HorizonUntil time.Time
}

// Seen is an applied dispatch ID, for warming a window.
type Seen struct {
	ID     uuid.UUID
	Digest transport.Digest
}

// Forgotten tells what a batch of forgetting has removed.
type Forgotten struct {
	IDs int
	// Through is the latest stamp of what was removed, from which the next batch may look on.
	// Zero if nothing was.
	Through time.Time
}

// WindowStore is what the memory of an inbox needs of a store.
type WindowStore interface {
	// Register makes a consumer known by name, on the first call with nothing forgotten, and
	// keeps its window.
	Register(ctx context.Context, name string, window time.Duration) (Registration, error)
	// NoteHorizon keeps that events of consumer may be sent again for horizon after their stamps,
	// and that such a one may come until then. A longer horizon replaces a shorter one, as does any
	// when the one that is kept is over; an equal one extends its time.
	NoteHorizon(ctx context.Context, consumer int, horizon time.Duration, until time.Time) error
	// Newest reads the dispatch IDs that consumer applied last, newest last, at most limit.
	Newest(ctx context.Context, consumer int, limit int) ([]Seen, error)
	// AdvanceForgotten sets the time up to which consumer forgets to window before now, never back,
	// and commits. A consumer that has been known for less than window has nothing to forget: then
	// nothing changes, so that it may read history of any age. A step beyond maxStep, counted from
	// the last one, is refused with [ErrClockJump]: if the database's clock has gone further than
	// that since the last call, or the first registration. It returns the time that holds now.
	AdvanceForgotten(ctx context.Context, consumer int, window, maxStep time.Duration) (time.Time, error)
	// Forget removes dispatch IDs of consumer with a stamp before the time up to which
	// it forgets, as that was at least grace ago, and not before after, the oldest first, at most
	// limit. IDs of parked messages stay.
	Forget(ctx context.Context, consumer int, grace time.Duration, after time.Time, limit int) (Forgotten, error)
	// ForgetDiscarded removes parked messages of consumer that were discarded longer than age
	// ago, at most limit, and tells how many. Their dispatch IDs stay, to be forgotten like
	// those of applied ones.
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
	// Horizon is the longest time after its stamp that a producer may send an event
	// again, of those that may still come. If it exceeds the consumer's window, late copies will be
	// set aside as too old.
	Horizon time.Duration
	// Effects counts the effects outside the database that are not done, for a handler with such
	// effects.
	Effects EffectStats
}
