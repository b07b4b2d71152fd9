package producer

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/transport"
)

// sendAll sends what the core has decided to send, in its order, from one
// goroutine, so that it reaches the transport in that order.
func (l *relayLoop) sendAll(ctx context.Context) {
	deadlines := sendDeadlines{timeout: l.cfg.SendTimeout}
	defer deadlines.end()
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-l.sendq:
			l.send(deadlines.context(ctx), e)
		}
	}
}

// send sends one event. The lease is looked at once more: this goroutine may
// have waited for the transport, or the whole process for somebody to wake it.
func (l *relayLoop) send(ctx context.Context, e *entry) {
	gen := e.gen
	if l.now() >= time.Duration(l.until[e.shard.no].Load()) {
		l.box.outcome(sendResult{entry: e, gen: gen, unsent: true})
		return
	}
	if err := e.readable(); err != nil {
		l.box.outcome(sendResult{entry: e, gen: gen, Result: transport.Result{Outcome: transport.Invalid, Err: err}})
		return
	}
	msg := e.messageTo(ctx)
	if err := fault.Hit(ctx, fault.R3); err != nil {
		l.box.outcome(sendResult{entry: e, gen: gen, Result: transport.Result{Outcome: transport.Unavailable, Err: err}})
		return
	}
	done := func(res transport.Result) {
		if err := fault.Hit(ctx, fault.R5); err != nil {
			res = transport.Result{Outcome: transport.Unavailable, Err: err}
		}
		l.box.outcome(sendResult{entry: e, gen: gen, Result: res})
	}
	if batches, ok := l.sender.(transport.BatchSender); ok && len(e.riders) > 0 {
		msgs := make([]*message.Message, 1, 1+len(e.riders))
		msgs[0] = msg
		for _, rider := range e.riders {
			msgs = append(msgs, rider.messageTo(ctx))
		}
		batches.SendBatch(ctx, e.Topic, msgs, done)
	} else {
		l.sender.Send(ctx, e.Topic, msg, done)
	}
	_ = fault.Hit(ctx, fault.R4)
}

// readable returns an error if e, or what is in a batch with it, cannot be read and so never be sent.
func (e *entry) readable() error {
	what := e.Unreadable
	for _, rider := range e.riders {
		what = cmp.Or(what, rider.Unreadable)
	}
	if what != "" {
		return fmt.Errorf("event cannot be read: %s", what)
	}
	return nil
}

// messageTo returns e's message for one send.
func (e *entry) messageTo(ctx context.Context) *message.Message {
	msg := e.Message()
	if e.redelivered {
		ctx = transport.WithRedelivered(ctx)
	}
	msg.SetContext(ctx)
	return msg
}

// sendDeadlines hands out contexts that end after a timeout. One serves the sends of
// a sixteenth of it, since a timer for each would cost more than the send.
type sendDeadlines struct {
	timeout time.Duration
	current context.Context
	renewAt time.Time
	open    []sendDeadline
}

type sendDeadline struct {
	at     time.Time
	cancel context.CancelFunc
}

func (d *sendDeadlines) context(parent context.Context) context.Context {
	now := time.Now()
	if d.current != nil && now.Before(d.renewAt) {
		return d.current
	}
	for len(d.open) > 0 && d.open[0].at.Before(now) {
		d.open[0].cancel()
		d.open = d.open[1:]
	}
	share := d.timeout / 16
	ctx, cancel := context.WithTimeout(parent, d.timeout+share)
	d.current, d.renewAt = ctx, now.Add(share)
	d.open = append(d.open, sendDeadline{now.Add(d.timeout + share), cancel})
	return ctx
}

func (d *sendDeadlines) end() {
	for _, o := range d.open {
		o.cancel()
	}
}
