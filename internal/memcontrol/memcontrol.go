// Package memcontrol keeps pauses and rate limits in memory, for the stores of tests.
package memcontrol

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/boxpair/boxpair/store/control"
)

// Store implements [control.Store]. The zero value is ready.
type Store struct {
	Now func() time.Time // the clock; nil: time.Now

	mu      sync.Mutex
	pauses  []control.Pause
	buckets map[string]*control.Bucket
}

func (s *Store) now() time.Time {
	if s.Now == nil {
		return time.Now()
	}
	return s.Now()
}

// Pauses implements [control.Store].
func (s *Store) Pauses(context.Context) ([]control.Pause, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeOver()
	return slices.Clone(s.pauses), nil
}

func (s *Store) removeOver() {
	now := s.now()
	s.pauses = slices.DeleteFunc(s.pauses, func(p control.Pause) bool { return !p.Until.IsZero() && !now.Before(p.Until) })
}

// find is called with mu.
func (s *Store) find(kind control.Kind, name string) int {
	return slices.IndexFunc(s.pauses, func(p control.Pause) bool { return p.Kind == kind && p.Name == name })
}

// SetPause implements [control.Store].
func (s *Store) SetPause(_ context.Context, p control.Pause) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeOver()
	p.Since = s.now()
	if i := s.find(p.Kind, p.Name); i >= 0 {
		p.Since = s.pauses[i].Since
		s.pauses[i] = p
		return nil
	}
	s.pauses = append(s.pauses, p)
	slices.SortFunc(s.pauses, func(a, b control.Pause) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	return nil
}

// EndPause implements [control.Store].
func (s *Store) EndPause(_ context.Context, kind control.Kind, name string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeOver()
	i := s.find(kind, name)
	if i < 0 {
		return false, nil
	}
	s.pauses = slices.Delete(s.pauses, i, i+1)
	return true, nil
}

// TakeTokens implements [control.Store].
func (s *Store) TakeTokens(_ context.Context, name string, perSecond float64, want int) (granted int, next time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now().UnixMicro()
	b := s.buckets[name]
	if b == nil {
		if s.buckets == nil {
			s.buckets = make(map[string]*control.Bucket)
		}
		b = &control.Bucket{Tokens: control.BucketSize(perSecond), FilledAt: now}
		s.buckets[name] = b
	}
	granted, next = b.Take(now, perSecond, want)
	return granted, next, nil
}
