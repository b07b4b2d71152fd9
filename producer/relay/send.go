package relay

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/producer/relay/internal/core"
	"github.com/boxpair/boxpair/transport"
)

// sendAll sends events from one goroutine, so the transport gets the events in the order of the
// core.
func (l *relayLoop) sendAll(ctx context.Context) {
	deadlines := sendDeadlines{timeout: l.cfg.SendTimeout, ended: l.box.overdue}
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

// send sends one event, with its batch tail. The lease is checked again, since the goroutine may
// have waited for the transport, or the whole process may have been suspended.
func (l *relayLoop) send(ctx context.Context, e *core.Entry) {
	gen := e.Gen
	if now := l.now(); now >= time.Duration(l.until[e.Shard].Load()) || l.still.doubtful(now) {
		l.box.outcome(core.SendResult{Entry: e, Gen: gen, Unsent: true})
		return
	}
	if err := readable(e); err != nil {
		l.box.outcome(core.SendResult{Entry: e, Gen: gen, Result: transport.Result{Outcome: transport.Invalid, Err: err}})
		return
	}
	topic, msgs := e.Topic, messagesTo(ctx, e)
	if err := fault.Hit(ctx, fault.BeforePublish); err != nil {
		l.box.outcome(core.SendResult{Entry: e, Gen: gen, Result: transport.Result{Outcome: transport.Unavailable, Err: err}})
		return
	}
	l.give(ctx, topic, msgs, l.logging(ctx, e, func(res transport.Result) {
		if err := fault.Hit(ctx, fault.OutcomeKnown); err != nil {
			res = transport.Result{Outcome: transport.Unavailable, Err: err}
		}
		l.box.outcome(core.SendResult{Entry: e, Gen: gen, Result: l.drop.judge(topic, len(msgs), res)})
	}))
	_ = fault.Hit(ctx, fault.Published)
}

// give hands a message or a batch to the sender. give does not recover from a panic: the sender may
// hold locks and stand still from then on, whereas a new process goes on.
func (l *relayLoop) give(ctx context.Context, topic string, msgs []*message.Message, done func(transport.Result)) {
	if batches, ok := l.sender.(transport.BatchSender); ok && len(msgs) > 1 {
		batches.SendBatch(ctx, topic, msgs, done)
		return
	}
	l.sender.Send(ctx, topic, msgs[0], done)
}

// readable returns an error if e, or an event of its batch tail, is unreadable and so can never be
// sent.
func readable(e *core.Entry) error {
	problem := e.Unreadable
	for _, member := range e.BatchTail {
		problem = cmp.Or(problem, member.Unreadable)
	}
	if problem != "" {
		return fmt.Errorf("event cannot be read: %s", problem)
	}
	return nil
}

// messagesTo returns the messages of e and of its batch tail, for one send.
func messagesTo(ctx context.Context, e *core.Entry) []*message.Message {
	msgs := make([]*message.Message, 1, 1+len(e.BatchTail))
	msgs[0] = messageTo(ctx, e)
	for _, member := range e.BatchTail {
		msgs = append(msgs, messageTo(ctx, member))
	}
	return msgs
}

// messageTo returns e's message for one send.
func messageTo(ctx context.Context, e *core.Entry) *message.Message {
	msg := e.Message()
	transport.SetOccurredAt(msg, e.OccurredAt, e.Stamp)
	if e.Redelivered {
		ctx = transport.WithRedelivered(ctx)
	}
	msg.SetContext(ctx)
	return msg
}

// sendDeadlines hands out contexts that end after a timeout. All sends within a sixteenth of the
// timeout share a context, since a timer per send would cost more than the send.
type sendDeadlines struct {
	timeout time.Duration
	ended   func(through int64) // called with the number of the last send whose context ended answerSlack ago

	sends   int64 // number of sends so far, in the order of the core
	current context.Context
	last    *atomic.Int64 // the last send that got current
	renewAt time.Time
	open    []sendDeadline
}

type sendDeadline struct {
	at     time.Time
	cancel context.CancelFunc
}

// answerSlack is how long a publisher may take to answer after the context of a send has ended.
const answerSlack = time.Second

func (d *sendDeadlines) context(parent context.Context) context.Context {
	d.sends++
	now := time.Now()
	if d.current != nil && now.Before(d.renewAt) {
		d.last.Store(d.sends)
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
	last := new(atomic.Int64)
	last.Store(d.sends)
	d.last = last
	context.AfterFunc(ctx, func() {
		if parent.Err() == nil {
			time.AfterFunc(answerSlack, func() { d.ended(last.Load()) })
		}
	})
	return ctx
}

func (d *sendDeadlines) end() {
	for _, o := range d.open {
		o.cancel()
	}
}
