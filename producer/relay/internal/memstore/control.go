package memstore

import (
	"context"
	"time"

	"github.com/boxpair/boxpair/store/control"
)

// Pauses implements [control.Store].
func (f *Store) Pauses(ctx context.Context) ([]control.Pause, error) {
	leave, err := f.Enter("Pauses")
	if err != nil {
		return nil, err
	}
	defer leave()
	return f.Control.Pauses(ctx)
}

// SetPause implements [control.Store].
func (f *Store) SetPause(ctx context.Context, p control.Pause) error {
	return f.Control.SetPause(ctx, p)
}

// EndPause implements [control.Store].
func (f *Store) EndPause(ctx context.Context, kind control.Kind, name string) (bool, error) {
	return f.Control.EndPause(ctx, kind, name)
}

// TakeTokens implements [control.Store].
func (f *Store) TakeTokens(ctx context.Context, name string, perSecond float64, want int) (granted int, next time.Duration, err error) {
	leave, err := f.Enter("TakeTokens")
	if err != nil {
		return 0, 0, err
	}
	defer leave()
	return f.Control.TakeTokens(ctx, name, perSecond, want)
}
