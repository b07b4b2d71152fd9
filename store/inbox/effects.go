package inbox

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
)

// ErrEffectConflict is wrapped when a message is to have an effect outside the database and the
// ledger has another one under its dispatch ID.
var ErrEffectConflict = errors.New("ledger has another effect of this dispatch ID")

// EffectState is the state of an effect in the ledger.
type EffectState string

const (
	// EffectPending effects are to be carried out, now or after a backoff.
	EffectPending EffectState = "pending"
	// EffectDoing effects were taken up by a process, until their lease ends.
	EffectDoing EffectState = "doing"
	// EffectAnswered effects were carried out, with a known result; what is to follow is not done
	// yet.
	EffectAnswered EffectState = "answered"
	// EffectUncertain effects may have been carried out, and nobody tries again by himself. So
	// counts one that was taken up by a process which did not come back before its lease ended.
	EffectUncertain EffectState = "uncertain"
	// EffectDead effects have used up their attempts, or were rejected. One that has a result was
	// carried out, and Finish fails; any other one was not.
	EffectDead EffectState = "dead"
	// EffectDone effects were carried out, and finished.
	EffectDone EffectState = "done"
	// EffectDiscarded effects were given up by an operator. They are kept with the reason.
	EffectDiscarded EffectState = "discarded"
)

// Effect is an effect as the ledger keeps it.
type Effect struct {
	Seq      int64     // its place among those of its consumer
	Consumer string    // the consumer's name
	ID       uuid.UUID // the dispatch ID of the message
	Key      uuid.UUID // the idempotency key
	Topic    string    // of the message
	OrderKey string    // the key of the message
	Metadata map[string]string
	State    EffectState
	// Uncertain tells that an attempt may have been carried out whose result is not known.
	Uncertain  bool
	Attempts   int
	Intent     []byte
	Result     []byte // nil if it is not known
	PreparedAt time.Time
	DueAt      time.Time // zero unless pending or answered
	LeaseUntil time.Time // zero unless doing
	EndedAt    time.Time // zero unless done or discarded
	LastError  string
	Reason     string // why it was discarded
}

// EffectIntent is an effect to be recorded.
type EffectIntent struct {
	Consumer int
	ID, Key  uuid.UUID
	Topic    string
	OrderKey string
	Ordered  bool // later effects of the key wait for this one
	Metadata map[string]string
	Intent   []byte
}

// EffectTake asks for effects that may be taken up.
type EffectTake struct {
	Consumer int
	Limit    int
	Lease    time.Duration
	// Again makes effects whose process did not come back pending again, until they have
	// MaxAttempts; otherwise they become uncertain.
	Again       bool
	MaxAttempts int
}

// EffectRun is an effect that was taken up. Run is the number of the take-up: what is reported
// under an earlier one changes nothing.
type EffectRun struct {
	Effect
	Run int64
}

// EffectOutcome says what became of an effect that was taken up, if it is not finished.
type EffectOutcome struct {
	State     EffectState // pending, answered, uncertain or dead
	Uncertain bool
	Attempts  int
	In        time.Duration // until it is due, for pending and answered
	Result    []byte        // nil if it is not known
	// Noted is what the history of the message calls it, or "" for nothing.
	Noted     string
	LastError string // at most 1 KiB, valid UTF-8
}

// EffectFilter selects effects. Zero fields select all.
type EffectFilter struct {
	Consumer string
	IDs      []uuid.UUID // dispatch IDs of the messages
	Keys     []uuid.UUID // idempotency keys
	States   []EffectState
	// Since and Until bound when they were prepared: Since ≤ time < Until.
	Since, Until time.Time
	// After continues a listing behind the effect with this Seq.
	After int64
	// Limit is at most how many are returned or changed. Defaults to 100.
	Limit int
}

// EffectChange is what an operator makes of effects.
type EffectChange struct {
	// State is EffectPending for those to be tried again (EffectAnswered where the result is
	// known), EffectAnswered for those that were carried out with Result, or EffectDiscarded.
	State  EffectState
	Result []byte
	// Reason is kept in the history of the message, and with an effect that is discarded.
	Reason string
}

// EffectStats counts the effects of a consumer that are not done.
type EffectStats struct {
	Pending   int64
	Doing     int64
	Answered  int64
	Uncertain int64
	Dead      int64
	// Oldest is the age of the oldest that is neither done, dead nor discarded.
	Oldest time.Duration
}

// EffectStore is what the ledger of effects needs of a store, besides [Store]. A store that is none
// can have no handlers with effects outside the database.
type EffectStore[TX any] interface {
	// PrepareEffect records e in tx, pending and due. If the ledger has an effect of the consumer
	// and dispatch ID, an equal intent changes nothing, and any other one gives an error that wraps
	// [ErrEffectConflict].
	PrepareEffect(ctx context.Context, tx TX, e EffectIntent) error
	// TakeEffects makes pending and answered effects that are due doing, under a lease by the
	// database's clock, counts an attempt of each, and returns them. Whatever another process has
	// locked is passed over. Where effects of a key are ordered, only the first that is neither
	// dead, done nor discarded is taken. Before that it deals with those whose lease has ended: one
	// whose result is known becomes answered, or dead after MaxAttempts; others become pending with
	// Uncertain set, or uncertain. next is how long from now something may be due (0: nothing is
	// known to be). It is committed on return.
	TakeEffects(ctx context.Context, t EffectTake) (runs []EffectRun, next time.Duration, err error)
	// SettleEffect records what became of a run, and tells whether it did: not if a later run
	// began, or an operator changed the effect. It is committed on return.
	SettleEffect(ctx context.Context, r *EffectRun, o EffectOutcome) (bool, error)
	// FinishEffect locks the effect of r, runs fn in the same transaction, makes the effect done
	// with its result, and commits. It gives false and does not run fn if a later run began, or an
	// operator changed the effect. Otherwise it is like [ClaimStore.Apply]; of c it takes the
	// isolation and the bounds.
	FinishEffect(ctx context.Context, c Claim, r *EffectRun, result []byte, fn func(ctx context.Context, tx TX) error) (bool, error)

	// ListEffects reads effects by ascending Seq. One whose lease has ended without a result is
	// uncertain.
	ListEffects(ctx context.Context, f EffectFilter) ([]Effect, error)
	// ChangeEffects changes effects that f selects: dead and uncertain ones to pending; dead and
	// uncertain ones whose result is not known to answered; pending, answered, dead and uncertain
	// ones to discarded. It returns their dispatch IDs. What was in flight for them changes nothing
	// any more.
	ChangeEffects(ctx context.Context, f EffectFilter, c EffectChange) ([]uuid.UUID, error)
	// ForgetEffects removes effects of consumer that ended longer than age ago, at most limit, and
	// tells how many.
	ForgetEffects(ctx context.Context, consumer int, age time.Duration, limit int) (int, error)
	// EffectStats counts.
	EffectStats(ctx context.Context, consumer int) (EffectStats, error)
}
