package consumer

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestGateLetsOneInAlone(t *testing.T) {
	t.Parallel()
	var (
		g             gate
		inside, alone atomic.Int64
		wg            sync.WaitGroup
	)
	for n := range 16 {
		wg.Go(func() {
			for i := range 500 {
				if (i+n)%8 == 0 {
					g.enterAlone()
					if alone.Add(1) != 1 || inside.Load() != 0 {
						t.Error("not alone")
					}
					alone.Add(-1)
					g.leaveAlone()
					continue
				}
				g.enter()
				inside.Add(1)
				if alone.Load() != 0 {
					t.Error("beside one that is alone")
				}
				inside.Add(-1)
				g.leave()
			}
		})
	}
	wg.Wait()
	if g.inside != 0 || g.alone || g.lonely != 0 || g.others != 0 || g.invited != 0 {
		t.Errorf("left behind: inside %d, alone %v, waiting %d and %d, invited %d", g.inside, g.alone, g.lonely, g.others, g.invited)
	}
}

func TestNeitherSideOfTheGateStarves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var (
			g  gate
			wg sync.WaitGroup
		)
		visit := func(enter, leave func(), times int, most time.Duration) {
			wg.Go(func() {
				for range times {
					before := time.Now()
					enter()
					if waited := time.Since(before); waited > most {
						t.Errorf("waited for %v", waited)
					}
					time.Sleep(time.Second)
					leave()
				}
			})
		}
		for range 3 {
			visit(g.enter, g.leave, 40, 3*time.Second)
		}
		for range 2 {
			visit(g.enterAlone, g.leaveAlone, 10, 20*time.Second)
		}
		wg.Wait()
	})
}
