package opsscene

import (
	"context"
	"fmt"
	"time"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// Fill brings events, messages and effects into every state.
func (s *Scene) Fill(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		s.fillDelivered, s.fillRejected, s.fillDead, s.fillRetrying, s.fillEffects, s.fillDeferred, s.fillPending, s.fillReports, s.Pause,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// each writes n events, and gives them to do one by one.
func (s *Scene) each(ctx context.Context, topic, key string, n int, payload string, do func(i int, q *outbox.Queued) error) error {
	if _, err := s.Write(ctx, topic, key, n, time.Time{}, payload); err != nil {
		return err
	}
	queued, err := s.Queued(ctx, n)
	if err != nil {
		return err
	}
	for i := range queued {
		if err := do(i, &queued[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *Scene) fillDelivered(ctx context.Context) error {
	return s.each(ctx, "order.placed", "", 12, `{"customer":"ada","total":4990}`, func(_ int, q *outbox.Queued) error {
		s.Consume(ctx, q, s.reserve, s.notify)
		return s.Deliver(ctx, []outbox.Queued{*q})
	})
}

func (s *Scene) fillRejected(ctx context.Context) error {
	err := s.each(ctx, "order.placed", "", 3, `{"reject":true}`, func(_ int, q *outbox.Queued) error {
		s.Consume(ctx, q, s.reserve, s.notify)
		return s.Deliver(ctx, []outbox.Queued{*q})
	})
	if err != nil {
		return err
	}
	return s.each(ctx, "order.placed", "", 2, `{"fail":true}`, func(_ int, q *outbox.Queued) error {
		s.Consume(ctx, q, s.reserve)
		return s.Deliver(ctx, []outbox.Queued{*q})
	})
}

func (s *Scene) fillDead(ctx context.Context) error {
	err := s.each(ctx, "mail.requested", "", 14, `{"to":"ada@example.org"}`, func(_ int, q *outbox.Queued) error {
		return s.Fail(ctx, q, 10, true, "returned by the broker: 312 NO_ROUTE (exchange boxpair, routing key mail.requested)")
	})
	if err != nil {
		return err
	}
	return s.each(ctx, "report.rendered", "", 3, `{"pages":1200}`, func(i int, q *outbox.Queued) error {
		return s.Fail(ctx, q, 10, true, fmt.Sprintf("refused by the broker: message of %d bytes is larger than max-message-size", 16_900_100+i))
	})
}

func (s *Scene) fillRetrying(ctx context.Context) error {
	return s.each(ctx, "order.shipped", "order-4242", 4, `{"parcel":"JD0123"}`, func(i int, q *outbox.Queued) error {
		if i > 0 {
			return s.Follow(ctx, q)
		}
		return s.Fail(ctx, q, 3, false, "refused by the broker: queue length limit exceeded")
	})
}

func (s *Scene) fillEffects(ctx context.Context) error {
	err := s.each(ctx, "order.placed", "", 2, `{"customer":"ada","total":4990}`, func(_ int, q *outbox.Queued) error {
		s.Consume(ctx, q, s.pay)
		return s.Deliver(ctx, []outbox.Queued{*q})
	})
	if err != nil {
		return err
	}
	registered, err := s.Store.Register(ctx, "stock/pay", time.Hour)
	if err != nil {
		return err
	}
	runs, _, err := s.Store.TakeEffects(ctx, inbox.EffectTake{Consumer: registered.Consumer, Limit: 10, Lease: time.Hour, MaxAttempts: 10})
	for i := range runs {
		if err != nil {
			return err
		}
		_, err = s.Store.SettleEffect(ctx, &runs[i], inbox.EffectOutcome{
			State: inbox.EffectUncertain, Uncertain: true, Attempts: 1, Noted: "effect_uncertain", LastError: "connection reset while waiting for the payment provider",
		})
	}
	return err
}

func (s *Scene) fillDeferred(ctx context.Context) error {
	for i := range 3 {
		if _, err := s.Write(ctx, "reminder.due", "", 1, time.Now().Add(time.Duration(26*i+3)*time.Hour), `{"kind":"reminder"}`); err != nil {
			return err
		}
	}
	return nil
}

func (s *Scene) fillPending(ctx context.Context) error {
	if _, err := s.Write(ctx, "order.placed", "", 5, time.Time{}, `{"total":1200}`); err != nil {
		return err
	}
	_, err := s.Write(ctx, "invoice.created", "", 2, time.Time{}, `{"total":1200}`)
	return err
}

func (s *Scene) fillReports(ctx context.Context) error {
	now := time.Now()
	report := outbox.RelayReport{
		At: now, Host: "shop-2", Version: "v1.0.0", StartedAt: now.Add(-9 * time.Hour), Window: 1000, InFlight: 12, Waiting: 7,
		LastConfirm: now, Sent: 1_204_311, Failed: 45, SentPerSecond: 41.5,
		Topics: []outbox.TopicReport{
			{Topic: "order.placed", Route: "boxpair/order.placed", State: outbox.RouteWorking, Sent: 803_115, SentPerSecond: 29.5, RouteInFlight: 9},
			{Topic: "order.shipped", Route: "boxpair/order.shipped", State: outbox.RouteWorking, Sent: 401_196, SentPerSecond: 12, RouteInFlight: 3},
		},
	}
	return s.Store.ReportRelay(ctx, Relay, outbox.Report{RelayReport: report, StalledChanged: true, Stalled: []outbox.StalledRoute{
		{Topic: "mail.requested", Route: "boxpair/mail.requested", State: outbox.RouteRefusing, For: 47 * time.Minute, LastError: "returned by the broker: 312 NO_ROUTE"},
		{Topic: "invoice.created", Route: "boxpair/invoice.created", State: outbox.RoutePaused, For: 5 * time.Minute, LastError: "topic invoice.created is paused by dana: the accounting system is being migrated"},
	}})
}
