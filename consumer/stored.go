package consumer

import (
	"context"
	"time"

	"github.com/boxpair/boxpair/internal/pace"
	"github.com/boxpair/boxpair/store/inbox"
)

// A handler that stores messages first waits for runGrace until [Inbox.Run] is called, and looks
// every runLook.
const (
	runGrace = 5 * time.Second
	runLook  = 50 * time.Millisecond
)

// store parks a delivered message at once, due now. The verdict is [inbox.Followed] if the message
// is stored: Run handles the message as any other parked message.
func (h *Handler[TX]) store(ctx context.Context, d *delivery) attempt {
	p := inbox.Parking{
		Consumer: h.registry.consumer(), Message: d.in.toStore(),
		State: inbox.Retrying, Fresh: true, Isolation: h.cfg.Isolation,
	}
	p.Ordered = h.cfg.Order.ByKey && p.Message.Key != ""
	verdict, err := h.parkOnce(ctx, p)
	if err == nil && verdict == inbox.Applied {
		verdict = inbox.Followed
	}
	return attempt{verdict: verdict, err: err}
}

// stored records that the message is in the database, to be handled by Run.
func (h *Handler[TX]) stored(ctx context.Context, d *delivery) {
	h.succeeded(d.ref)
	d.result = resultStored
	h.counts.stored.Add(1)
	h.registry.remember(d.term, d.in.event.ID, d.in.event.Digest)
	h.inbox.reportNotRunning(ctx)
	signal(h.retries.wake)
}

// awaitRun waits until Run or RunOnce was called, and returns [ErrNotRunning] after runGrace: a
// router may begin before Run, but messages that nothing will handle must not be acknowledged.
func (i *Inbox[TX]) awaitRun(ctx context.Context) error {
	for begun := time.Now(); !i.runCalled.Load() && !i.cfg.RunElsewhere; {
		if time.Since(begun) >= runGrace {
			i.reportNotRunning(ctx)
			return ErrNotRunning
		}
		if err := pace.Sleep(ctx, runLook); err != nil {
			return err
		}
	}
	return nil
}
