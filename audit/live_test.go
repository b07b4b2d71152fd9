package audit_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/audit"
	"github.com/boxpair/boxpair/consumer"
)

func TestWhatIsWithinTheGraceTimeIsInFlight(t *testing.T) {
	each(t, func(t *testing.T, p *pairRig) {
		p.out.write(event(100)) // pending, and young
		p.in.run(`DELETE FROM {inbox} WHERE dispatch_id = $1`, p.in.id(p.ids[0]))
		p.out.run(`UPDATE {outbox_receipts} SET delivered_at = delivered_at + {hour}`) // old, and delivered just now
		report := p.audit(nil)
		p.want(report, nil)
		if report.InFlight != 2 {
			t.Errorf("%d in flight, want 2", report.InFlight)
		}
	})
}

// TestLivePairUnderTrafficHasNoFindings runs audits with almost no grace while events are written,
// delivered and applied. Here an event leaves its queue only after its message is applied, so at no
// time is an event delivered and not applied, or applied and not committed. An auditor that
// believed its first reading of the two sides would see such events all the time.
func TestLivePairUnderTrafficHasNoFindings(t *testing.T) {
	each(t, func(t *testing.T, p *pairRig) {
		var parts sync.WaitGroup
		done := p.traffic(&parts)
		defer parts.Wait()
		for round := 0; round < 3 || !done(); round++ {
			report := p.audit(func(c *audit.Config) { c.Grace, c.PageSize = 1, 50 })
			for _, kind := range []audit.Kind{audit.NotApplied, audit.NotCommitted, audit.DigestDiffers, audit.LogMissing} {
				if n := report.Findings[kind]; n > 0 {
					t.Fatalf("round %d: %d of %s: %+v", round, n, kind, report.Examples)
				}
			}
		}
	})
}

// traffic writes, relays and applies some hundreds of events, and returns a function that tells
// whether all are done.
func (p *pairRig) traffic(parts *sync.WaitGroup) (done func() bool) {
	handler := p.in.consume(consumer.HandlerConfig{}, func() error { return nil })
	var written, relayed atomic.Bool
	parts.Go(func() {
		defer written.Store(true)
		for i := 1000; i < 1300 && !p.Failed(); i += 3 {
			p.out.write(event(i), event(i+1), event(i+2))
		}
	})
	parts.Go(func() {
		defer relayed.Store(true)
		for last := false; !last && !p.Failed(); {
			last = written.Load() // before the pass that leaves nothing
			if err := p.out.relay(p.Context(), line(handler)); err != nil {
				p.Errorf("relay: %v", err)
			}
		}
	})
	return relayed.Load
}

// late is an inbox that calls happen between two readings.
type late struct {
	audit.Inbox
	once   sync.Once
	happen func()
}

func (l *late) FindClaims(ctx context.Context, consumer int, ids []uuid.UUID) ([]audit.FoundClaim, error) {
	l.once.Do(l.happen)
	return l.Inbox.FindClaims(ctx, consumer, ids)
}

func TestCandidateIsLookedUpAgain(t *testing.T) {
	each(t, func(_ *testing.T, p *pairRig) {
		id := p.in.id(p.ids[6])
		p.in.run(`UPDATE {inbox} SET consumer = 99 WHERE dispatch_id = $1`, id)
		happened := false
		p.want(p.audit(func(c *audit.Config) {
			c.Inboxes[0].Inbox = &late{Inbox: p.in.auditor, happen: func() {
				happened = true
				p.in.run(`UPDATE {inbox} SET consumer = 1 WHERE dispatch_id = $1`, id)
			}}
		}), nil)
		if !happened {
			p.Error("the candidate was not looked up")
		}
	})
}

func TestWhatMovedOnIsNoFinding(t *testing.T) {
	each(t, func(_ *testing.T, p *pairRig) {
		p.parkMessage(4, "dead", true)
		p.want(p.audit(func(c *audit.Config) {
			c.Inboxes[0].Inbox = &late{Inbox: p.in.auditor, happen: func() { // redriven and applied
				p.in.run(`DELETE FROM {inbox_parked}`)
				p.in.run(`UPDATE {inbox} SET applied_at = stamp`)
			}}
		}), nil)
	})
}

func TestForgottenIsOutsideOfWhatIsRetained(t *testing.T) {
	each(t, func(t *testing.T, p *pairRig) {
		p.in.run(`DELETE FROM {inbox}`)
		p.in.run(`UPDATE {inbox_consumers} SET forgotten_until = {now}`)
		report := p.audit(nil)
		p.want(report, nil)
		if report.Outside != (audit.Outside{Forgotten: delivered}) || report.Consumers[0].ForgottenUntil.IsZero() {
			t.Errorf("%+v, %+v", report.Outside, report.Consumers)
		}
	})
}

func TestForgottenWhileTheAuditRunsIsOutsideToo(t *testing.T) {
	each(t, func(t *testing.T, p *pairRig) {
		report := p.audit(func(c *audit.Config) {
			c.Inboxes[0].Inbox = &forgetful{Inbox: p.in.auditor, forget: func() {
				p.in.run(`UPDATE {inbox_consumers} SET forgotten_until = {now}`)
				p.in.run(`DELETE FROM {inbox}`)
			}}
		})
		p.want(report, nil)
		if report.Outside.Forgotten != delivered {
			t.Errorf("%+v", report.Outside)
		}
	})
}

// forgetful is an inbox whose janitor runs between two readings.
type forgetful struct {
	audit.Inbox
	once   sync.Once
	forget func()
}

func (f *forgetful) Claims(ctx context.Context, consumer int, after audit.ClaimPlace, before time.Time, limit int) ([]audit.Claim, error) {
	f.once.Do(f.forget)
	return f.Inbox.Claims(ctx, consumer, after, before, limit)
}

func TestOlderThanTheConsumerIsOutside(t *testing.T) {
	each(t, func(t *testing.T, p *pairRig) {
		p.in.run(`DELETE FROM {inbox}`)
		p.in.run(`UPDATE {inbox_consumers} SET registered_at = {now}`)
		report := p.audit(nil)
		p.want(report, nil)
		if report.Outside != (audit.Outside{BeforeConsumer: delivered}) {
			t.Errorf("%+v", report.Outside)
		}
	})
}

func TestWhatTheOutboxHasRemovedIsOutside(t *testing.T) {
	each(t, func(t *testing.T, p *pairRig) {
		// As a janitor does, delete the oldest receipts and their events. An older dead event
		// stays.
		p.parkEvent(100, "dead")
		p.out.run(`UPDATE {outbox_events} SET created_at = created_at - {hour} - {hour} WHERE id = 13`)
		p.out.run(`DELETE FROM {outbox_events} WHERE id <= 4`)
		p.out.run(`DELETE FROM {outbox_receipts}`)
		p.out.run(`INSERT INTO {outbox_receipts} (delivered_at, relay, event_ids) VALUES ({now} - {hour} + {hour} / 2, 'r', ` + p.out.words["ids"] + `)`)
		report := p.audit(func(c *audit.Config) { c.Accept = []audit.Kind{audit.Dead} })
		if !report.Clean || report.Outside != (audit.Outside{NotRetained: 4}) || report.Outboxes[0].RetainedSince.IsZero() {
			t.Errorf("%+v", report)
		}
	})
}

func TestEmptyOutboxThatNeverHadAnEventHasRemovedNone(t *testing.T) {
	t.Parallel()
	for kind, open := range databases {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			d := open(t)
			span, err := d.auditor.Span(t.Context())
			if err != nil || !span.RetainedSince.IsZero() || span.Last != 0 || time.Since(span.Now).Abs() > time.Minute {
				t.Errorf("Span() = %+v, %v", span, err)
			}
			ids := d.write(event(1), event(2))
			ok(t, d.relay(t.Context(), line(d.consume(consumer.HandlerConfig{}, func() error { return nil }))))
			for _, table := range []string{"events", "queue", "receipts", "parked"} {
				d.run(`DELETE FROM {outbox_` + table + `}`)
			}
			span, err = d.auditor.Span(t.Context())
			if err != nil || time.Since(span.RetainedSince).Abs() > time.Minute {
				t.Errorf("after %d events were removed, Span() = %+v, %v", len(ids), span, err)
			}
		})
	}
}

func TestOnlyTheGivenTimeIsChecked(t *testing.T) {
	each(t, func(t *testing.T, p *pairRig) {
		for i, id := range p.ids { // one every ten minutes
			back := strconv.Itoa(delivered-i) + ` * ({hour} / 6)`
			p.out.run(`UPDATE {outbox_events} SET created_at = {now} - `+back+` WHERE dispatch_id = $1`, p.out.id(id))
			p.in.run(`UPDATE {inbox} SET stamp = {now} - `+back+` WHERE dispatch_id = $1`, p.in.id(id))
		}
		p.in.run(`DELETE FROM {inbox} WHERE dispatch_id = $1`, p.in.id(p.ids[0]))
		p.out.run(`UPDATE {outbox_receipts} SET delivered_at = delivered_at - {hour}`)
		p.in.run(`UPDATE {inbox_consumers} SET registered_at = registered_at - {hour}`)
		now := time.Now()
		report := p.audit(func(c *audit.Config) {
			c.From, c.Until = now.Add(-65*time.Minute), now.Add(-35*time.Minute)
		})
		p.want(report, nil)
		if report.Outboxes[0].Events != 3 || report.Consumers[0].Claims != 3 {
			t.Errorf("checked %+v, %+v, want three events and their claims", report.Outboxes, report.Consumers)
		}
		p.wantOne(p.audit(func(c *audit.Config) { c.Until = now.Add(-35 * time.Minute) }), audit.NotApplied)
		p.wantOne(p.audit(func(c *audit.Config) { c.From = now.Add(-125 * time.Minute) }), audit.NotApplied)
	})
}

func TestClaimWithAnotherStampIsFound(t *testing.T) {
	each(t, func(t *testing.T, p *pairRig) {
		// The stamps are those of messages without a stamp, or of deferred events.
		p.in.run(`UPDATE {inbox} SET stamp = stamp + {hour} / 2 WHERE dispatch_id = $1`, p.in.id(p.ids[1]))
		p.in.run(`UPDATE {inbox} SET stamp = {now} WHERE dispatch_id = $1`, p.in.id(p.ids[2]))
		p.want(p.audit(nil), nil)
	})
}

func TestErrorSaysWhichDatabase(t *testing.T) {
	each(t, func(t *testing.T, p *pairRig) {
		cfg := p.config()
		cfg.Outboxes[0].Outbox = broken{p.out.auditor}
		a, err := audit.New(cfg)
		ok(t, err)
		if _, err := a.Run(t.Context()); err == nil || err.Error() != "audit: outbox orders: no disk" {
			t.Errorf("Run() = %v", err)
		}
	})
}

type broken struct{ audit.Outbox }

func (broken) Events(context.Context, int64, int) ([]audit.Event, error) {
	return nil, errors.New("no disk")
}
