package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/dedupe"
	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/internal/pace"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

// Handler is a consumer: it applies each of its messages once. A Handler is safe for concurrent
// use.
type Handler[TX any] struct {
	inbox *Inbox[TX]
	name  string
	fn    HandlerFunc[TX]
	batch BatchFunc[TX] // nil unless the handler takes batches
	cfg   HandlerConfig
	log   *slog.Logger

	registering  chan struct{} // held by the goroutine that registers
	registration atomic.Pointer[inbox.Registration]
	stale        atomic.Bool    // the database may have changed: register again
	window       *dedupe.Window // nil without a cache
	// returned remembers messages that this process returned to the transport: redelivered by the
	// transport, they are no suspects.
	returned *dedupe.Window

	groups    *groups[TX] // nil without group commit
	extension Extension   // nil without an extension

	gate gate

	wake      chan struct{} // parked messages may be due
	leftovers leftovers
	counts    counts
	horizon   horizon
	aheadLog  logLimiter // of stamps in the future
}

// Name returns the consumer's name.
func (h *Handler[TX]) Name() string { return h.name }

// Stats reads the state of the consumer's inbox.
func (h *Handler[TX]) Stats(ctx context.Context) (inbox.Stats, error) {
	if err := h.register(ctx); err != nil {
		return inbox.Stats{}, err
	}
	stats, err := h.inbox.store.InboxStats(ctx, h.consumer())
	if err == nil && h.extension != nil {
		err = h.extension.AddStats(ctx, &stats)
	}
	return stats, err
}

// Consume handles one message; it is a Watermill NoPublishHandlerFunc. Consume blocks until the
// message was applied, was parked or is a duplicate, and returns nil: the transport acknowledges
// the message. If the message's context ended, or the database was in trouble for Config.MaxHold,
// Consume returns an error: the message was neither applied nor parked, and the transport delivers
// it again. The error wraps [ErrShortWindow] if the consumer must not start, and [ErrOtherKey] if
// the subscriber orders the message of an Ordered handler by another key. The end of the message's
// context does not cut a transaction short.
func (h *Handler[TX]) Consume(msg *message.Message) error {
	d := &delivery{redelivered: transport.Redelivered(msg)}
	err := h.consume(msg.Context(), msg, d)
	if err == nil {
		return nil
	}
	h.counts.returned.Add(1)
	if d.in == nil {
		return fmt.Errorf("consumer %s: %w", h.name, err)
	}
	// The transport will mark the message as redelivered, but its handler has returned.
	h.returned.Add(h.returned.Term(), d.in.event.ID, transport.Digest{})
	return fmt.Errorf("consumer %s: dispatch %s: %w", h.name, d.in.event.ID, err)
}

func (h *Handler[TX]) consume(ctx context.Context, msg *message.Message, d *delivery) error {
	if err := fault.Hit(ctx, fault.Received); err != nil {
		return err
	}
	in, err := h.read(ctx, msg)
	d.in, d.ref = in, messageRef{h.name, in.event.ID}
	if err := h.ensureRegistered(ctx, &d.progress); err != nil {
		return err
	}
	if err != nil {
		return h.refuse(ctx, d, err)
	}
	if err := fault.Hit(ctx, fault.IDRead); err != nil {
		return err
	}
	if key, ok := transport.OrderingKey(ctx); ok && h.cfg.Ordered && in.event.Key != "" && key != in.event.Key {
		h.log.ErrorContext(ctx, "subscriber keeps messages in order by another key than HandlerConfig.Key says: message refused", h.attrs(in)...)
		return ErrOtherKey
	}
	h.checkStamp(ctx, in)
	if h.seen(ctx, in) {
		h.counts.window.Add(1)
		return nil
	}
	if err := h.ensureRegistered(ctx, &d.progress); err != nil { // in case seen has found another database
		return err
	}
	if err := fault.Hit(ctx, fault.WindowAsked); err != nil {
		return err
	}
	d.suspect = d.redelivered && h.returned.Seen(in.event.ID, transport.Digest{}) == dedupe.Miss
	if err := h.handle(ctx, d); err != nil {
		return err
	}
	return fault.Hit(ctx, fault.WindowFilled)
}

// ensureRegistered waits until the consumer is registered.
func (h *Handler[TX]) ensureRegistered(ctx context.Context, p *progress) error {
	for {
		err := h.register(ctx)
		if err == nil || errors.Is(err, ErrShortWindow) || !h.waitForDatabase(ctx, p, err) {
			return err
		}
	}
}

// register makes the consumer known to the store, and warms its window the first time. After an
// error of the database the consumer is registered again: in another database, as after a restore,
// it may have another number. register ends with ctx.
func (h *Handler[TX]) register(ctx context.Context) error {
	if h.registration.Load() != nil && !h.stale.Load() {
		return nil
	}
	// The deadline includes the wait for the turn. Otherwise many callers would time out one after
	// another.
	ctx, cancel := context.WithTimeout(ctx, h.cfg.Timeout)
	defer cancel()
	select {
	case h.registering <- struct{}{}:
		defer func() { <-h.registering }()
	case <-ctx.Done():
		return fmt.Errorf("register consumer: %w", context.Cause(ctx))
	}
	first := h.registration.Load() == nil
	if !h.stale.Swap(false) && !first {
		return nil // another goroutine has registered
	}
	if first { // before the window holds dispatch IDs
		if err := h.inbox.checkIdentity(ctx, identityInterval); err != nil && !errors.Is(err, errAnotherDatabase) {
			return fmt.Errorf("register consumer: %w", err)
		}
	}
	r, err := h.inbox.store.Register(ctx, h.name, h.inbox.cfg.Window)
	if err != nil {
		h.stale.Store(true)
		return fmt.Errorf("register consumer: %w", err)
	}
	if first {
		if err := h.checkWindow(ctx, r); err != nil {
			return err
		}
		if err := h.warm(ctx, r.Consumer); err != nil {
			return err
		}
	}
	h.registration.Store(&r)
	return nil
}

func (h *Handler[TX]) warm(ctx context.Context, consumer int) error {
	if h.window == nil {
		return nil
	}
	term := h.window.Term()
	seen, err := h.inbox.store.Newest(ctx, consumer, h.inbox.cfg.CacheSize)
	if err != nil {
		return fmt.Errorf("read newest dispatch IDs: %w", err)
	}
	for _, s := range seen {
		h.window.Add(term, s.ID, s.Digest)
	}
	return nil
}

// consumer returns the store's number for the consumer, which the caller has registered.
func (h *Handler[TX]) consumer() int { return h.registration.Load().Consumer }

// seen tells whether the window knows the message as applied. The window belongs to one database.
// After a switch to a database without the last commits, the relay sends messages again, and the
// old window would lose their effects.
func (h *Handler[TX]) seen(ctx context.Context, in *incoming) bool {
	knows := func() bool { return h.window.Seen(in.event.ID, in.event.Digest) == dedupe.Duplicate }
	// Two looks: in between, another goroutine may have found another database and emptied the
	// window.
	return h.window != nil && knows() && h.inbox.checkIdentity(ctx, identityFresh) == nil && knows()
}

func (h *Handler[TX]) term() dedupe.Term {
	if h.window == nil {
		return 0
	}
	return h.window.Term()
}

// remember adds a dispatch ID to the window. The claim is known to be committed.
func (h *Handler[TX]) remember(term dedupe.Term, id uuid.UUID, digest transport.Digest) {
	if h.window != nil {
		h.window.Add(term, id, digest)
	}
}

// noteDatabaseError counts an error that may be the database's fault.
func (h *Handler[TX]) noteDatabaseError(p *progress, err error) inbox.ErrorClass {
	h.inbox.outages.databaseError(p.ref)
	h.counts.databaseErrors.Add(1)
	return h.invalidateAfter(err)
}

// invalidateAfter drops the handler's cached state of the database unless err is a conflict: after
// any other error the database may be another one.
func (h *Handler[TX]) invalidateAfter(err error) inbox.ErrorClass {
	class := h.inbox.store.Classify(err)
	if class == inbox.Conflict {
		return class
	}
	h.invalidate()
	return class
}

// waitForDatabase waits before the next try after an error of the database. It returns false
// without a next try: ctx ended, Config.MaxHold is over, or the message was consumed within another
// handler, whose transaction holds the awaited database.
func (h *Handler[TX]) waitForDatabase(ctx context.Context, p *progress, err error) bool {
	if errors.Is(err, inbox.ErrNested) {
		return false
	}
	class := h.noteDatabaseError(p, err)
	now := time.Now()
	if p.since.IsZero() {
		p.since = now
	}
	wait := outageWait
	if class == inbox.Conflict {
		wait = conflictWait
	}
	wait = h.inbox.jitter(min(wait<<min(p.waits, 10), maxWait))
	p.waits++
	if now.Add(wait).Sub(p.since) > h.inbox.cfg.MaxHold {
		return false
	}
	return pace.Sleep(ctx, wait) == nil
}

func randomUpTo(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d + 1)
}
