package consumer_test

import (
	"context"
	"time"

	"github.com/boxpair/boxpair/store/control"
)

// Pauses is a step of the fake.
func (s *fakeStore) Pauses(ctx context.Context) ([]control.Pause, error) {
	if err := s.step("pauses"); err != nil {
		return nil, err
	}
	return s.Store.Pauses(ctx)
}

// TakeTokens is a step of the fake.
func (s *fakeStore) TakeTokens(ctx context.Context, name string, perSecond float64, want int) (int, time.Duration, error) {
	if err := s.step("take"); err != nil {
		return 0, 0, err
	}
	return s.Store.TakeTokens(ctx, name, perSecond, want)
}

// pause pauses consumers, until a time unless zero.
func (r *rig) pause(name string, until time.Time) {
	r.t.Helper()
	err := r.store.SetPause(r.t.Context(), control.Pause{Kind: control.Consumer, Name: name, Until: until, Reason: "maintenance", By: "ann"})
	if err != nil {
		r.t.Fatal(err)
	}
}

// resume ends a pause.
func (r *rig) resume(name string) {
	r.t.Helper()
	if ended, err := r.store.EndPause(r.t.Context(), control.Consumer, name); err != nil || !ended {
		r.t.Fatalf("EndPause: %v, %v", ended, err)
	}
}
