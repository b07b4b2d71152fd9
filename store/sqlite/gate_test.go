package sqlite

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestTurnsAreTakenInTheOrderOfAsking(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		first, err := g.enter(t.Context(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		const n = 10
		order := make(chan int, n)
		for i := range n {
			go func() {
				turn, err := g.enter(t.Context(), time.Hour)
				if err != nil {
					t.Error(err)
					return
				}
				order <- i
				turn.leave()
				turn.leave() // again does nothing
			}()
			synctest.Wait()
		}
		first.leave()
		for i := range n {
			if got := <-order; got != i {
				t.Errorf("turn %d was that of %d", i, got)
			}
		}
	})
}

func TestWhoGivesUpWaitingLosesNoTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		first, err := g.enter(t.Context(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		results := make(chan error, 2)
		go func() {
			_, err := g.enter(ctx, time.Hour)
			results <- err
		}()
		go func() {
			_, err := g.enter(t.Context(), time.Minute)
			results <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-results; !errors.Is(err, context.Canceled) {
			t.Errorf("enter() = %v, want the context's error", err)
		}
		if err := <-results; !errors.Is(err, errBusy) {
			t.Errorf("enter() = %v, want errBusy", err)
		}
		first.leave()
		last, err := g.enter(t.Context(), 0)
		if err != nil {
			t.Fatalf("the turn was lost: %v", err)
		}
		last.leave()
	})
}

func TestTurnBelongsToOneTransaction(t *testing.T) {
	t.Parallel()
	g := &gate{}
	turn, err := g.enter(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	ctx := withTurn(t.Context(), turn)
	if !turn.take() || turn.take() {
		t.Error("a turn is to be taken once")
	}
	if _, err := g.enter(ctx, time.Hour); !errors.Is(err, ErrNested) {
		t.Errorf("enter() = %v, want ErrNested", err)
	}
	if other, err := (&gate{}).enter(ctx, 0); err != nil {
		t.Errorf("enter() of another database = %v", err)
	} else {
		other.leave()
	}
	turn.leave()
}
