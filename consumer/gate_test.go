package consumer

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func (g gate) visit(t *testing.T, weight int64, inside func()) {
	held, err := g.acquire(t.Context(), weight, time.Hour)
	if err != nil || held != weight {
		t.Errorf("went in with %d of %d, %v", held, weight, err)
	}
	inside()
	g.release(held)
}

func TestGateLetsOneInAlone(t *testing.T) {
	t.Parallel()
	var (
		g              = newGate()
		inside, single atomic.Int64
		wg             sync.WaitGroup
	)
	for n := range 16 {
		wg.Go(func() {
			for i := range 500 {
				if (i+n)%8 == 0 {
					g.visit(t, exclusive, func() {
						if single.Add(1) != 1 || inside.Load() != 0 {
							t.Error("not alone")
						}
						single.Add(-1)
					})
					continue
				}
				g.visit(t, shared, func() {
					inside.Add(1)
					if single.Load() != 0 {
						t.Error("beside one that is alone")
					}
					inside.Add(-1)
				})
			}
		})
	}
	wg.Wait()
}

func TestNeitherSideOfTheGateStarves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var wg sync.WaitGroup
		g := newGate()
		visits := func(weight int64, times int, most time.Duration) {
			wg.Go(func() {
				for range times {
					before := time.Now()
					g.visit(t, weight, func() {
						if waited := time.Since(before); waited > most {
							t.Errorf("waited for %v", waited)
						}
						time.Sleep(time.Second)
					})
				}
			})
		}
		for range 3 {
			visits(shared, 40, 3*time.Second)
		}
		for range 2 {
			visits(exclusive, 10, 20*time.Second)
		}
		wg.Wait()
	})
}

func TestGateIsWaitedForWithinABound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, weight := range []int64{shared, exclusive} {
			g := newGate()
			hung, _ := g.acquire(t.Context(), exclusive, 0)
			before := time.Now()
			held, err := g.acquire(t.Context(), weight, time.Minute)
			if held != 0 || err != nil || time.Since(before) != time.Minute {
				t.Errorf("went in with %d, %v, after %v", held, err, time.Since(before))
			}
			g.release(held)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if held, err = g.acquire(ctx, weight, time.Minute); held != 0 || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("went in with %d, %v, though the context had ended", held, err)
			}
			cancel()
			g.release(hung)
			g.visit(t, exclusive, func() {})
		}
	})
}
