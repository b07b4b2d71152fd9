package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/dedupe"
	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/internal/pace"
	"github.com/boxpair/boxpair/internal/within"
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

	groups    *groups[TX] // nil without group commit
	extension Extension   // nil without an extension

	registry  registry[TX]
	suspects  suspects[TX]
	retries   retries[TX]
	forgetter forgetter[TX]
	permits   permits[TX]
	gate      gate
	counts    counts
	backlogs  backlogs

	stall      atomic.Bool // OnStalled is to be told that the database works again; changed with stallTurn
	stallTurn  sync.Mutex  // also held until the notice is put: notices come in the order of the changes
	stallLimit logLimiter  // of notices
}

// Name returns the consumer's name.
func (h *Handler[TX]) Name() string { return h.name }

// Stats reads the state of the consumer's inbox.
func (h *Handler[TX]) Stats(ctx context.Context) (inbox.Stats, error) {
	if err := h.registry.register(ctx); err != nil {
		return inbox.Stats{}, err
	}
	stats, err := h.inbox.store.InboxStats(ctx, h.registry.consumer())
	if err == nil && h.extension != nil {
		err = h.extension.AddStats(ctx, &stats)
	}
	return stats, err
}

// Consume handles one message; it is a Watermill NoPublishHandlerFunc. Consume blocks until the
// message was applied, was parked or is a duplicate, and returns nil: the transport acknowledges
// the message. If the message's context ended, or the message was held for Config.MaxHold, Consume
// returns an error: the message was neither applied nor parked, and the transport delivers it again.
// The error wraps [ErrPaused] if the consumer is paused, [ErrRateLimited] if the message waited
// because of HandlerConfig.MaxPerSecond, [ErrShortWindow] if the consumer must not start, and
// [ErrOtherKey] if the subscriber orders the message of a handler with Order.ByKey by another key.
// The end of the message's context does not cut a transaction short.
func (h *Handler[TX]) Consume(msg *message.Message) error {
	h.counts.inFlight.Add(1)
	defer h.counts.inFlight.Add(-1)
	d := &delivery{redelivered: transport.Redelivered(msg)}
	log := h.beginLog(msg.Context())
	err := h.consume(msg.Context(), msg, d)
	log.delivered(d, err)
	if err == nil {
		return nil
	}
	h.counts.returned.Add(1)
	if d.in == nil {
		return fmt.Errorf("consumer %s: %w", h.name, err)
	}
	// The transport will mark the message as redelivered, but its handler has returned.
	h.suspects.returned.Add(h.suspects.returned.Term(), d.in.event.ID, transport.Digest{})
	return fmt.Errorf("consumer %s: dispatch %s: %w", h.name, d.in.event.ID, err)
}

// consumeOnly is [Handler.Consume] as a handler that returns no messages.
func (h *Handler[TX]) consumeOnly(msg *message.Message) ([]*message.Message, error) { //nolint:unparam // as Watermill wants it
	return nil, h.Consume(msg)
}

func (h *Handler[TX]) consume(ctx context.Context, msg *message.Message, d *delivery) error {
	if err := fault.Hit(ctx, fault.Received); err != nil {
		return err
	}
	in, err := h.read(ctx, msg)
	d.in, d.ref = in, messageRef{h.name, in.event.ID}
	h.counts.received(in.event.Topic)
	h.backlogs.add(ctx)
	if within.Handles(ctx, in.event.ID) {
		return ErrTwoInboxes
	}
	if err := h.registry.ensure(ctx, &d.progress); err != nil {
		return err
	}
	if err != nil {
		if err := h.permits.resumed(ctx, &d.progress); err != nil {
			return err
		}
		return h.refuse(ctx, d, err)
	}
	if err := fault.Hit(ctx, fault.IDRead); err != nil {
		return err
	}
	if key, ok := transport.OrderingKey(ctx); ok && h.cfg.Order.ByKey && in.event.Key != "" && key != in.event.Key {
		h.log.ErrorContext(ctx, "subscriber keeps messages in order by another key than HandlerConfig.Order.Key says: message refused", h.attrs(in)...)
		return ErrOtherKey
	}
	h.registry.checkStamp(ctx, in)
	if h.registry.seen(ctx, in) {
		h.counts.window.Add(1)
		d.result = resultDuplicate
		return nil
	}
	if err := h.registry.ensure(ctx, &d.progress); err != nil { // in case seen has found another database
		return err
	}
	if err := fault.Hit(ctx, fault.WindowAsked); err != nil {
		return err
	}
	d.suspect = d.redelivered && h.suspects.returned.Seen(in.event.ID, transport.Digest{}) == dedupe.Miss
	if err := h.handle(ctx, d); err != nil {
		return err
	}
	return fault.Hit(ctx, fault.WindowFilled)
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
	h.registry.invalidate()
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
		h.stalled(now, err)
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
