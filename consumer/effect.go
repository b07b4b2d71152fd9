package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/inbox"
)

var (
	// ErrNoEffect is returned by Effect.Prepare when the message needs no effect outside the
	// database. What Prepare changed and wrote is committed.
	ErrNoEffect = errors.New("message needs no effect outside the database")
	// ErrNoLedger is wrapped by [HandleEffect] if the store of the inbox is no [inbox.EffectStore].
	ErrNoLedger = errors.New("store keeps no ledger of effects")
)

// Effect is what a handler does outside its database, in three steps of which none spans a call
// within a transaction. I is what is to be done, R what came of it; both are kept as JSON, of at
// most 1 MiB.
type Effect[TX, I, R any] struct {
	// Prepare runs in the transaction of the message's claim, like a [HandlerFunc], and returns
	// what is to be done. That is recorded in the same transaction. It makes no call. See
	// [ErrNoEffect].
	Prepare func(ctx context.Context, w *Work[TX], msg *message.Message) (I, error)
	// Do makes the call, outside any transaction. key is the same for every attempt of this effect,
	// and no other effect has it. ctx ends with EffectConfig.Timeout. A refusal that is part of the
	// business, like a declined card, is a result and no error. See [NotDone], [Reject] and
	// [RetryAfter] for its errors.
	Do func(ctx context.Context, key uuid.UUID, intent I) (R, error)
	// Finish runs in a transaction that also makes the effect done. Its Work has the message
	// without its payload, under key as the dispatch ID: events that it writes are children of
	// that. An error has it run again, without another Do.
	Finish func(ctx context.Context, w *Work[TX], intent I, result R) error
	// Probe asks the other side whether an attempt under key was carried out, and for its result.
	// It is called instead of Do where an earlier attempt may have been; false has Do called.
	// Optional.
	Probe func(ctx context.Context, key uuid.UUID, intent I) (R, bool, error)
}

// EffectConfig configures a handler with an effect outside the database.
type EffectConfig struct {
	// Handler is for the steps that run in transactions: all of it for Prepare; Timeout,
	// LockTimeout, Isolation and Ordered for Finish. With Ordered, an effect waits until the
	// earlier ones of its key are done, dead or discarded.
	Handler HandlerConfig `yaml:"handler" envPrefix:"HANDLER_"`
	// Idempotent says that the other side carries out one key once, however often it is asked: an
	// effect that may have been carried out is tried again with the same key. Defaults to false:
	// such an effect stays uncertain, for an operator, unless Effect.Probe can tell.
	Idempotent bool `yaml:"idempotent" env:"IDEMPOTENT"`
	// Timeout bounds Do, and Probe. Defaults to 30 seconds.
	Timeout time.Duration `yaml:"timeout" env:"TIMEOUT"`
	// Lease is how long a process has an effect that it has taken up; when it ends, the process
	// counts as one that did not come back. Longer than Timeout. Defaults to Timeout, the handler's
	// LockTimeout and 10 seconds.
	Lease time.Duration `yaml:"lease" env:"LEASE"`
	// MaxAttempts is how many attempts of a step make the effect uncertain or dead. Defaults to 10.
	MaxAttempts int `yaml:"max_attempts" env:"MAX_ATTEMPTS"`
	// MinBackoff is how long an effect waits after a failed attempt at first, half of it at random.
	// It quadruples with every attempt, up to MaxBackoff. Defaults to 1 second.
	MinBackoff time.Duration `yaml:"min_backoff" env:"MIN_BACKOFF"`
	// MaxBackoff is how long it waits at most. Defaults to 15 minutes.
	MaxBackoff time.Duration `yaml:"max_backoff" env:"MAX_BACKOFF"`
	// Concurrency is how many effects this process carries out at once. Defaults to 4.
	Concurrency int `yaml:"concurrency" env:"CONCURRENCY"`
}

const (
	maxEffect        = 1 << 20
	defaultDoTimeout = 30 * time.Second
	effectGrace      = 10 * time.Second
)

func (c EffectConfig) withDefaults() (EffectConfig, error) {
	var p problems
	p.duration("Timeout", &c.Timeout, defaultDoTimeout)
	if c.Lease != 0 && c.Lease <= c.Timeout {
		p.addf("Lease: %v is not longer than the Timeout of %v", c.Lease, c.Timeout)
	}
	p.number("MaxAttempts", &c.MaxAttempts, defaultMaxAttempts)
	p.duration("MinBackoff", &c.MinBackoff, defaultMinBackoff)
	p.duration("MaxBackoff", &c.MaxBackoff, max(defaultMaxBackoff, c.MinBackoff))
	if c.MaxBackoff < c.MinBackoff {
		p.addf("MaxBackoff: %v is shorter than the MinBackoff of %v", c.MaxBackoff, c.MinBackoff)
	}
	p.number("Concurrency", &c.Concurrency, defaultParked)
	return c, p.err()
}

// NotDone returns an error of Do that says: the other side has certainly not carried the effect
// out. It is tried again after a backoff, whether the other side is idempotent or not. It wraps
// err, which says why, and may be a [RetryAfter].
func NotDone(err error) error {
	if err == nil {
		err = errors.New("not carried out")
	}
	return &notDone{err: err}
}

type notDone struct{ err error }

func (n *notDone) Error() string { return n.err.Error() }
func (n *notDone) Unwrap() error { return n.err }

// EffectKey returns the idempotency key of the effect that a consumer has for a message:
// idgen.OfKey of the consumer's name, "effect" and the dispatch ID. consumer is Config.Service, a
// slash and the handler's name.
func EffectKey(consumer string, id uuid.UUID) uuid.UUID {
	return idgen.OfKey(consumer, "effect", id.String(), 0)
}

// HandleEffect is [Inbox.Handle] for a handler with an effect outside the database. Its messages
// are acknowledged when their effect is recorded; [Inbox.Run], of this process or another one of
// the service, carries it out. It does no I/O.
func HandleEffect[TX, I, R any](i *Inbox[TX], name string, e Effect[TX, I, R], cfg EffectConfig) (*Handler[TX], error) {
	store, ok := i.store.(inbox.EffectStore[TX])
	cfg, err := cfg.withDefaults()
	if !ok {
		err = errors.Join(err, ErrNoLedger)
	}
	if e.Prepare == nil || e.Do == nil || e.Finish == nil {
		err = errors.Join(err, errors.New("effect: Prepare, Do and Finish are required"))
	}
	if err != nil {
		return nil, fmt.Errorf("handler %q: %w", name, err)
	}
	x := &effects[TX]{
		store: store, cfg: cfg, wake: make(chan struct{}, 1), again: cfg.Idempotent || e.Probe != nil,
		do: e.do, finish: e.finish,
	}
	if e.Probe != nil {
		x.probe = e.probe
	}
	h, err := i.newHandler(name, func(ctx context.Context, w *Work[TX], msg *message.Message) error {
		intent, err := e.Prepare(ctx, w, msg)
		if err != nil {
			if errors.Is(err, ErrNoEffect) {
				return nil
			}
			return err
		}
		return x.prepare(ctx, w, intent)
	}, cfg.Handler)
	if err != nil {
		return nil, fmt.Errorf("handler %q: %w", name, err)
	}
	if x.cfg.Lease == 0 {
		x.cfg.Lease = cfg.Timeout + h.cfg.LockTimeout + effectGrace
	}
	x.h, h.effects = h, x
	return i.add(name, h)
}

// The steps of an effect, on what the ledger keeps.

func (e *Effect[TX, I, R]) do(ctx context.Context, key uuid.UUID, intent []byte) ([]byte, error) {
	v, err := decodeEffect[I]("intent", intent)
	if err != nil {
		return nil, NotDone(Reject(err))
	}
	r, err := e.Do(ctx, key, v)
	if err != nil {
		return nil, err
	}
	return encodeEffect("result", r)
}

func (e *Effect[TX, I, R]) probe(ctx context.Context, key uuid.UUID, intent []byte) ([]byte, error) {
	v, err := decodeEffect[I]("intent", intent)
	if err != nil {
		return nil, err
	}
	r, found, err := e.Probe(ctx, key, v)
	if err != nil || !found {
		return nil, err
	}
	return encodeEffect("result", r)
}

func (e *Effect[TX, I, R]) finish(ctx context.Context, w *Work[TX], intent, result []byte) error {
	v, err := decodeEffect[I]("intent", intent)
	if err != nil {
		return err
	}
	r, err := decodeEffect[R]("result", result)
	if err != nil {
		return err
	}
	return e.Finish(ctx, w, v, r)
}

// encodeEffect returns v as the ledger keeps it. Errors say nothing of the value.
func encodeEffect(what string, v any) ([]byte, error) {
	b, err := json.Marshal(v)
	switch {
	case err != nil:
		return nil, fmt.Errorf("encode the effect's %s as JSON: unsupported type %T", what, v)
	case len(b) > maxEffect:
		return nil, fmt.Errorf("%s of the effect: has %d bytes as JSON, more than %d", what, len(b), maxEffect)
	}
	return b, nil
}

func decodeEffect[T any](what string, b []byte) (v T, err error) {
	if json.Unmarshal(b, &v) != nil {
		return v, fmt.Errorf("%s of the effect: what the ledger has is no JSON of a %T", what, v)
	}
	return v, nil
}
