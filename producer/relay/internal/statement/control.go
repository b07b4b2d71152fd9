package statement

import (
	"context"
	"time"

	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/outbox"
)

// Pauses reads what operators have paused.
type Pauses struct {
	List []control.Pause
}

// Op is [OpPauses].
func (*Pauses) Op() Op { return OpPauses }

// Execute implements [Statement].
func (s *Pauses) Execute(ctx context.Context, store outbox.RelayStore, _ *Asker) (err error) {
	s.List, err = store.Pauses(ctx)
	return err
}

// TakeTokens asks for tokens of a rate limit.
type TakeTokens struct {
	Name      string
	PerSecond float64
	Want      int

	Granted int
	Next    time.Duration // until the next token, if none was granted
}

// Op is [OpTakeTokens].
func (*TakeTokens) Op() Op { return OpTakeTokens }

// Execute implements [Statement].
func (s *TakeTokens) Execute(ctx context.Context, store outbox.RelayStore, _ *Asker) (err error) {
	s.Granted, s.Next, err = store.TakeTokens(ctx, s.Name, s.PerSecond, s.Want)
	return err
}
