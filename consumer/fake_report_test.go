package consumer_test

import (
	"context"
	"slices"
	"time"

	"github.com/boxpair/boxpair/store/inbox"
)

// fakeReport is a call of ReportHandlers.
type fakeReport struct {
	at       time.Time
	process  inbox.Process
	ttl      time.Duration
	handlers []inbox.HandlerReport
	left     time.Duration // until the deadline
}

// ReportHandlers is the step report of the fake.
func (s *fakeStore) ReportHandlers(ctx context.Context, p inbox.Process, ttl time.Duration, handlers []inbox.HandlerReport) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	end, _ := ctx.Deadline()
	s.mu.Lock()
	s.reports = append(s.reports, fakeReport{time.Now(), p, ttl, slices.Clone(handlers), time.Until(end)})
	s.mu.Unlock()
	return s.step("report")
}

// ListHandlers lists the handlers of the last report.
func (s *fakeStore) ListHandlers(context.Context) ([]inbox.RunningHandler, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []inbox.RunningHandler
	if n := len(s.reports); n > 0 {
		last := s.reports[n-1]
		for i := range last.handlers {
			list = append(list, inbox.RunningHandler{Process: last.process, HandlerReport: last.handlers[i], ReportedAt: last.at, ListedUntil: last.at.Add(last.ttl)})
		}
	}
	return list, nil
}

// reported returns the calls of ReportHandlers.
func (s *fakeStore) reported() []fakeReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.reports)
}

// plainStore is a store that keeps no reports.
type plainStore struct{ inbox.Store[*fakeTx] }
