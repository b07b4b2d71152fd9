package inbox

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
)

// ErrEffectConflict is wrapped when a message prepares an effect and the ledger has another effect
// under its dispatch ID.
var ErrEffectConflict = errors.New("ledger has another effect of this dispatch ID")

// EffectState is the state of an effect in the ledger.
type EffectState string

const (
	// EffectPending effects will be carried out, now or after a backoff.
	EffectPending EffectState = "pending"
	// EffectDoing effects belong to a process until their lease ends.
	EffectDoing EffectState = "doing"
	// EffectAnswered effects were carried out with a known result, and are not finished yet.
	EffectAnswered EffectState = "answered"
	// EffectUncertain effects may have been carried out, and wait for an operator. A doing effect
	// without a result becomes uncertain when its lease ends.
	EffectUncertain EffectState = "uncertain"
	// EffectDead effects have used up their attempts, or were rejected. A dead effect with a result
	// was carried out, and Finish fails; without a result it was not carried out.
	EffectDead EffectState = "dead"
	// EffectDone effects were carried out and finished.
	EffectDone EffectState = "done"
	// EffectDiscarded effects were given up by an operator, and are kept with the reason.
	EffectDiscarded EffectState = "discarded"
)

// Effect is an effect as the ledger keeps it.
type Effect struct {
	Seq      int64     // ascends in the order in which effects are prepared
	Consumer string    // the consumer's name
	ID       uuid.UUID // the dispatch ID of the message
	Key      uuid.UUID // the idempotency key
	Topic    string    // of the message
	OrderKey string    // the key of the message
	Metadata map[string]string
	State    EffectState
	// Uncertain tells that an attempt with an unknown result may have been carried out.
	Uncertain  bool
	Attempts   int
	Intent     []byte
	Result     []byte // nil if unknown
	PreparedAt time.Time
	DueAt      time.Time // zero unless pending or answered
	LeaseUntil time.Time // zero unless doing
	EndedAt    time.Time // zero unless done or discarded
	LastError  string
	Reason     string // why it was discarded
}

// EffectIntent is an effect to record.
type EffectIntent struct {
	Consumer int
	ID, Key  uuid.UUID
	Topic    string
	OrderKey string
	Ordered  bool // later effects of the key wait for this one
	Metadata map[string]string
	Intent   []byte
}

// EffectTake asks for due effects.
type EffectTake struct {
	Consumer int
	Limit    int
	Lease    time.Duration
	// Again makes effects pending again when their lease ends without a result, up to MaxAttempts.
	// Without Again, or after MaxAttempts, such effects become uncertain.
	Again       bool
	MaxAttempts int
}

// EffectRun is an effect that a process has taken. Run numbers the takes of an effect: a report
// with an earlier number changes nothing.
type EffectRun struct {
	Effect
	Run int64
}

// EffectOutcome is the outcome of a run that does not finish the effect.
type EffectOutcome struct {
	State     EffectState // pending, answered, uncertain or dead
	Uncertain bool
	Attempts  int
	In        time.Duration // until the effect is due, for pending and answered
	Result    []byte        // nil if unknown
	// Noted is the outcome to add to the history of the message ([Attempt]); "" adds no entry.
	Noted     string
	LastError string // at most 1 KiB, valid UTF-8
}

// EffectFilter selects effects. Zero fields select all.
type EffectFilter struct {
	Consumer string
	IDs      []uuid.UUID // dispatch IDs of the messages
	Keys     []uuid.UUID // idempotency keys
	States   []EffectState
	// Since and Until bound the time of preparation: Since ≤ time < Until.
	Since, Until time.Time
	// After continues a listing behind the effect with this Seq.
	After int64
	// Limit bounds the number of returned or changed effects. Defaults to 100.
	Limit int
}

// EffectChange is an operator's change of effects.
type EffectChange struct {
	// State is EffectPending to try effects again (effects with a known result become answered),
	// EffectAnswered to record that effects were carried out with Result, or EffectDiscarded.
	State  EffectState
	Result []byte
	// Reason is kept in the history of the message, and with a discarded effect.
	Reason string
}

// EffectStats counts the effects of a consumer that are not done.
type EffectStats struct {
	Pending   int64
	Doing     int64
	Answered  int64
	Uncertain int64
	Dead      int64
	// Oldest is the age of the oldest effect that is neither done, dead nor discarded.
	Oldest time.Duration
}

// EffectStore is an optional part of a [Store] that keeps the ledger of effects. Handlers with
// effects outside the database need a store with this part.
type EffectStore[TX any] interface {
	// PrepareEffect records e in tx, pending and due. If the ledger has an effect of the consumer
	// and dispatch ID already, an equal intent changes nothing, and a different intent gives an
	// error that wraps [ErrEffectConflict].
	PrepareEffect(ctx context.Context, tx TX, e EffectIntent) error
	// TakeEffects makes due pending and answered effects doing, under a lease by the database's
	// clock, counts an attempt of each, and returns them. Effects locked by another process are
	// skipped. An ordered effect is taken only if no earlier ordered effect of its key is pending,
	// doing, answered or uncertain. TakeEffects first ends expired leases: an effect with a known
	// result becomes answered, or dead after MaxAttempts; an effect without a result becomes
	// pending with Uncertain set, or uncertain. next is how long from now another effect may be
	// due, or 0 if none is known. TakeEffects is committed on return.
	TakeEffects(ctx context.Context, t EffectTake) (runs []EffectRun, next time.Duration, err error)
	// SettleEffect records the outcome of a run. It returns false and records nothing if a later
	// run began, or an operator changed the effect. It is committed on return.
	SettleEffect(ctx context.Context, r *EffectRun, o EffectOutcome) (bool, error)
	// FinishEffect locks the effect of r, runs fn in the same transaction, makes the effect done
	// with its result, and commits. It returns false and does not run fn if a later run began, or
	// an operator changed the effect. Otherwise it is like [ClaimStore.Apply]. It uses only the
	// isolation and the timeouts of c.
	FinishEffect(ctx context.Context, c Claim, r *EffectRun, result []byte, fn func(ctx context.Context, tx TX) error) (bool, error)

	// ListEffects reads effects by ascending Seq. An effect whose lease has ended without a result
	// is listed as uncertain.
	ListEffects(ctx context.Context, f EffectFilter) ([]Effect, error)
	// ChangeEffects changes effects that f selects: dead and uncertain effects to pending; dead and
	// uncertain effects without a result to answered; pending, answered, dead and uncertain effects
	// to discarded. It returns their dispatch IDs. Reports of runs in flight change nothing any
	// more.
	ChangeEffects(ctx context.Context, f EffectFilter, c EffectChange) ([]uuid.UUID, error)
	// ForgetEffects removes at most limit effects of consumer that ended longer than age ago, and
	// returns the number of removed effects.
	ForgetEffects(ctx context.Context, consumer int, age time.Duration, limit int) (int, error)
	// EffectStats counts the effects of consumer by state.
	EffectStats(ctx context.Context, consumer int) (EffectStats, error)
}
