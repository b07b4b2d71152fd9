package effects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/consumer/internal/field"
	"github.com/boxpair/boxpair/idgen"
)

var (
	// ErrNoEffect is returned by Effect.Prepare for a message that needs no effect outside the
	// database. The changes and events of Prepare are committed.
	ErrNoEffect = errors.New("message needs no effect outside the database")
	// ErrNoLedger is wrapped by [New] and [Handle] if the store of the inbox is no
	// [inbox.EffectStore].
	ErrNoLedger = errors.New("store keeps no ledger of effects")
)

// Effect is an effect outside the database, in three steps. No step makes a call within a
// transaction. I is the intent and R the result, each kept as JSON of at most 1 MiB.
type Effect[TX, I, R any] struct {
	// Prepare runs in the transaction of the message's claim, like a [consumer.HandlerFunc], and
	// returns the intent, which is recorded in the same transaction. Prepare makes no call. See
	// [ErrNoEffect].
	Prepare func(ctx context.Context, w *consumer.Work[TX], msg *message.Message) (I, error)
	// Do makes the call, outside any transaction. key is the same for every attempt of this effect,
	// and differs between effects. ctx ends with Config.Timeout. A refusal that is part of the
	// business, like a declined card, is a result and no error. See [NotDone], [consumer.Reject]
	// and [consumer.RetryAfter] for errors of Do.
	Do func(ctx context.Context, key uuid.UUID, intent I) (R, error)
	// Finish runs in the transaction that makes the effect done. w has the message without the
	// payload, and with key as the dispatch ID: events written by Finish are children of key. After
	// an error Finish runs again, without another Do.
	Finish func(ctx context.Context, w *consumer.Work[TX], intent I, result R) error
	// Probe asks the other side whether an attempt under key was carried out, and for the result.
	// Probe is called before Do if an earlier attempt may have been carried out. If Probe returns
	// true, Do is not called. Optional.
	Probe func(ctx context.Context, key uuid.UUID, intent I) (R, bool, error)
}

// Config configures a handler with an effect outside the database.
type Config struct {
	// Handler configures the steps that run in transactions: all fields apply to Prepare; Timeout,
	// LockTimeout and Isolation also apply to Finish. With Order.ByKey, an effect waits until the
	// earlier effects of its key are done, dead or discarded.
	Handler consumer.HandlerConfig `yaml:"handler" envPrefix:"HANDLER_"`
	// Idempotent tells that the other side carries out one key once, however many requests arrive:
	// an effect that may have been carried out is tried again with the same key. Defaults to false:
	// such an effect stays uncertain, for an operator, unless Effect.Probe can tell.
	Idempotent bool `yaml:"idempotent" env:"IDEMPOTENT"`
	// Timeout bounds Probe and Do together. Defaults to 30 seconds.
	Timeout time.Duration `yaml:"timeout" env:"TIMEOUT"`
	// Lease is how long an effect belongs to the process that has taken it up. When the lease ends,
	// the process counts as dead. Longer than Timeout. Defaults to the sum of Timeout, the
	// handler's LockTimeout and 10 seconds.
	Lease time.Duration `yaml:"lease" env:"LEASE"`
	// MaxAttempts is how many attempts of a step make the effect uncertain or dead. Defaults to 10.
	MaxAttempts int `yaml:"max_attempts" env:"MAX_ATTEMPTS"`
	// MinBackoff is the wait after the first failed attempt, half of it at random. The wait
	// quadruples with every attempt, up to MaxBackoff. Defaults to 1 second.
	MinBackoff time.Duration `yaml:"min_backoff" env:"MIN_BACKOFF"`
	// MaxBackoff is the longest wait. Defaults to 15 minutes.
	MaxBackoff time.Duration `yaml:"max_backoff" env:"MAX_BACKOFF"`
	// Concurrency is how many effects this process carries out at once. Defaults to 4.
	Concurrency int `yaml:"concurrency" env:"CONCURRENCY"`
}

const (
	maxValue           = 1 << 20
	defaultTimeout     = 30 * time.Second
	leaseGrace         = 10 * time.Second
	defaultMaxAttempts = 10
	defaultMinBackoff  = time.Second
	defaultMaxBackoff  = 15 * time.Minute
	defaultConcurrency = 4
	defaultLimit       = 100
)

func (c Config) withDefaults() (Config, error) {
	var p field.Problems
	p.Duration("Timeout", &c.Timeout, defaultTimeout)
	if c.Lease != 0 && c.Lease <= c.Timeout {
		p.Addf("Lease: %v is not longer than the Timeout of %v", c.Lease, c.Timeout)
	}
	p.Number("MaxAttempts", &c.MaxAttempts, defaultMaxAttempts)
	p.Duration("MinBackoff", &c.MinBackoff, defaultMinBackoff)
	p.Duration("MaxBackoff", &c.MaxBackoff, max(defaultMaxBackoff, c.MinBackoff))
	if c.MaxBackoff < c.MinBackoff {
		p.Addf("MaxBackoff: %v is shorter than the MinBackoff of %v", c.MaxBackoff, c.MinBackoff)
	}
	p.Number("Concurrency", &c.Concurrency, defaultConcurrency)
	return c, p.Err()
}

// NotDone returns an error of Do for an effect that was certainly not carried out. The effect is
// tried again after a backoff, even if the other side is not idempotent. The error wraps err, the
// reason, which may be of [consumer.RetryAfter].
func NotDone(err error) error {
	if err == nil {
		err = errors.New("not carried out")
	}
	return &notDone{err: err}
}

type notDone struct{ err error }

func (n *notDone) Error() string { return n.err.Error() }
func (n *notDone) Unwrap() error { return n.err }

// Key returns the idempotency key of a consumer's effect for a message: idgen.OfKey of the
// consumer's name, "effect" and the dispatch ID. The consumer's name is consumer.Config.Service, a
// slash and the handler's name.
func Key(consumer string, id uuid.UUID) uuid.UUID {
	return idgen.OfKey(consumer, "effect", id.String(), 0)
}

// Handler is a consumer with an effect outside the database.
type Handler[TX any] struct {
	*consumer.Handler[TX]

	effects *runner[TX]
}

// Counters counts the effects of a handler in this process, since the handler was made.
type Counters struct {
	// Done counts finished effects, and Failed attempts without a result.
	Done, Failed int64
}

// Effects returns the counters of effects.
func (h *Handler[TX]) Effects() Counters {
	return Counters{Done: h.effects.done.Load(), Failed: h.effects.failures.Load()}
}

// Handle is [consumer.Inbox.Handle] for a handler with an effect outside the database. A message is
// acknowledged when its intent is recorded. [consumer.Inbox.Run] of any process of the service
// carries the effect out. Handle does no I/O.
func Handle[TX, I, R any](i *consumer.Inbox[TX], name string, e Effect[TX, I, R], cfg Config) (*Handler[TX], error) {
	store, storeErr := ledger(i)
	cfg, err := cfg.withDefaults()
	err = errors.Join(err, storeErr)
	if e.Prepare == nil || e.Do == nil || e.Finish == nil {
		err = errors.Join(err, errors.New("effect: Prepare, Do and Finish are required"))
	}
	if err != nil {
		return nil, fmt.Errorf("handler %q: %w", name, err)
	}
	x := &runner[TX]{
		store: store, cfg: cfg, wake: make(chan struct{}, 1), again: cfg.Idempotent || e.Probe != nil,
		do: e.do, finish: e.finish,
	}
	if e.Probe != nil {
		x.probe = e.probe
	}
	prepare := func(ctx context.Context, w *consumer.Work[TX], msg *message.Message) error {
		intent, err := e.Prepare(ctx, w, msg)
		if err != nil {
			if errors.Is(err, ErrNoEffect) {
				return nil
			}
			return err
		}
		return x.prepare(ctx, w, intent)
	}
	h, err := i.HandleExtended(name, prepare, cfg.Handler, func(host *consumer.Host[TX]) consumer.Extension {
		x.host = host
		if x.cfg.Lease == 0 {
			x.cfg.Lease = cfg.Timeout + host.Config().LockTimeout + leaseGrace
		}
		return x
	})
	if err != nil {
		return nil, err
	}
	return &Handler[TX]{h, x}, nil
}

// The steps of an effect, on intents and results as the ledger keeps them.

func (e *Effect[TX, I, R]) do(ctx context.Context, key uuid.UUID, intent []byte) ([]byte, error) {
	v, err := decode[I]("intent", intent)
	if err != nil {
		return nil, NotDone(consumer.Reject(err))
	}
	r, err := e.Do(ctx, key, v)
	if err != nil {
		return nil, err
	}
	return encode("result", r)
}

func (e *Effect[TX, I, R]) probe(ctx context.Context, key uuid.UUID, intent []byte) ([]byte, error) {
	v, err := decode[I]("intent", intent)
	if err != nil {
		return nil, err
	}
	r, found, err := e.Probe(ctx, key, v)
	if err != nil || !found {
		return nil, err
	}
	return encode("result", r)
}

func (e *Effect[TX, I, R]) finish(ctx context.Context, w *consumer.Work[TX], intent, result []byte) error {
	v, err := decode[I]("intent", intent)
	if err != nil {
		return err
	}
	r, err := decode[R]("result", result)
	if err != nil {
		return err
	}
	return e.Finish(ctx, w, v, r)
}

// encode returns v as the ledger keeps values. An error does not show v.
func encode(what string, v any) ([]byte, error) {
	b, err := json.Marshal(v)
	switch {
	case err != nil:
		return nil, fmt.Errorf("encode the effect's %s as JSON: unsupported type %T", what, v)
	case len(b) > maxValue:
		return nil, fmt.Errorf("%s of the effect: has %d bytes as JSON, more than %d", what, len(b), maxValue)
	}
	return b, nil
}

func decode[T any](what string, b []byte) (v T, err error) {
	if json.Unmarshal(b, &v) != nil {
		return v, fmt.Errorf("%s of the effect: what the ledger has is no JSON of a %T", what, v)
	}
	return v, nil
}
