package audit

import (
	"context"
	"fmt"
	"time"
)

// suspect is a possible finding, which is looked up again before it is reported.
type suspect struct {
	Finding
	outbox   *outbox   // of an event
	consumer *consumer // of a message
}

// readUnsent reads the queued, parked and deferred events of all outboxes.
func (r *run) readUnsent(ctx context.Context) error {
	for _, o := range r.outboxes {
		var place Place
		for {
			page, err := o.Outbox.Unsent(ctx, place, r.cfg.PageSize)
			if err != nil {
				return fmt.Errorf("outbox %s: %w", o.Name, err)
			}
			if len(page) == 0 {
				break
			}
			for i := range page {
				r.judgeUnsent(o, &page[i])
			}
			place = page[len(page)-1].Place
			if err := r.settleIfMany(ctx); err != nil {
				return err
			}
			r.step(time.Time{})
		}
	}
	return nil
}

// judgeUnsent makes an unsent event a suspect, or counts it.
func (r *run) judgeUnsent(o *outbox, u *Unsent) {
	f := Finding{
		Database: o.Name, DispatchID: u.ID, Seq: u.Seq, Topic: u.Topic, State: u.State,
		Attempts: u.Attempts, Why: u.Why, Created: u.CreatedAt, Since: u.Since,
	}
	if u.Missing {
		// One statement writes the log and the queue, and one statement reads both: no grace time
		// applies.
		f.Kind = LogMissing
		r.tally(f)
		return
	}
	if !r.inRange(u.CreatedAt) {
		return
	}
	r.judge(f, r.onItsWay(u.CreatedAt, u.Since, u.State), func(f Finding) {
		r.events = append(r.events, suspect{Finding: f, outbox: o})
	})
}

// onItsWay tells whether an event or message is within its grace time. The grace time of a queued
// event begins with the queueing. The grace time of a parked event begins with the creation: a
// failing event may be parked again and again.
func (r *run) onItsWay(created, since time.Time, state string) bool {
	from := created
	if state == Queued && since.After(from) {
		from = since
	}
	return !from.Before(r.now.Add(-r.cfg.Grace))
}

// judge makes f a suspect, or counts it as in flight or waiting.
func (r *run) judge(f Finding, onItsWay bool, suspect func(Finding)) {
	kind, known := kindOfState(f.State)
	f.Kind = kind
	switch {
	case !known:
		r.report.Waiting[f.State]++
	case (kind == Pending || kind == Parked) && onItsWay:
		r.report.InFlight++
	default:
		suspect(f)
	}
}

// readParked reads the parked messages of all consumers.
func (r *run) readParked(ctx context.Context) error {
	for _, c := range r.consumers {
		var after int64
		for {
			page, err := c.inbox.Inbox.ParkedMessages(ctx, c.ID, after, r.cfg.PageSize)
			if err != nil {
				return fmt.Errorf("inbox %s: %w", c.inbox.Name, err)
			}
			if len(page) == 0 {
				break
			}
			for i := range page {
				r.judgeParked(c, &page[i])
			}
			after = page[len(page)-1].Seq
			if err := r.settleIfMany(ctx); err != nil {
				return err
			}
			r.step(time.Time{})
		}
	}
	return nil
}

// judgeParked makes a parked message a suspect, or counts it.
func (r *run) judgeParked(c *consumer, m *ParkedMessage) {
	if !r.inRange(m.Stamp) {
		return
	}
	f := Finding{
		Database: c.inbox.Name, Consumer: c.Name, DispatchID: m.ID, Seq: m.Seq, Topic: m.Topic, State: m.State,
		Attempts: m.Attempts, Why: m.Why, Created: m.Stamp, Since: m.ParkedAt,
	}
	r.judge(f, r.onItsWay(m.Stamp, m.ParkedAt, m.State), func(f Finding) {
		r.messages = append(r.messages, suspect{Finding: f, consumer: c})
	})
}
