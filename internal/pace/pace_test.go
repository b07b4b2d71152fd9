package pace_test

import (
	"testing"
	"time"

	"github.com/boxpair/boxpair/internal/pace"
)

// run works through batches of rows that take perRow each.
func run(p *pace.Pace, batches int, perRow time.Duration) (took, pause time.Duration) {
	for range batches {
		took = time.Duration(p.Size()) * perRow
		pause = p.Took(took, true)
	}
	return took, pause
}

func TestBatchesTakeAsLongAsTheyShould(t *testing.T) {
	t.Parallel()
	p := pace.New(10_000, 50*time.Millisecond, 0.5)
	for _, perRow := range []time.Duration{10 * time.Microsecond, 200 * time.Microsecond, 10 * time.Microsecond} {
		took, pause := run(p, 20, perRow)
		if took < 45*time.Millisecond || took > 55*time.Millisecond {
			t.Errorf("a batch takes %v with %v a row", took, perRow)
		}
		if pause != took {
			t.Errorf("pause of %v after %v, want half of the time", pause, took)
		}
	}
}

func TestPauseLeavesTheRestOfTheTime(t *testing.T) {
	t.Parallel()
	p := pace.New(100, time.Second, 0.2)
	if pause := p.Took(10*time.Millisecond, true); pause != 40*time.Millisecond {
		t.Errorf("pause is %v", pause)
	}
	if pause := pace.New(100, time.Second, 1).Took(time.Minute, true); pause != 0 {
		t.Errorf("pause is %v with all of the time", pause)
	}
}

func TestSizeKeepsWithinItsBounds(t *testing.T) {
	t.Parallel()
	p := pace.New(1000, 50*time.Millisecond, 0.5)
	run(p, 20, 0)
	if p.Size() != 1000 {
		t.Errorf("size is %d for rows that take no time", p.Size())
	}
	run(p, 20, time.Hour)
	if p.Size() < 1 || p.Size() > 100 {
		t.Errorf("size is %d for rows that take for ever", p.Size())
	}
	if small := pace.New(5, time.Second, 0.5); small.Size() != 5 {
		t.Errorf("size is %d of at most 5", small.Size())
	}
}

func TestBatchThatWasNotFullDoesNotGrowTheNext(t *testing.T) {
	t.Parallel()
	p := pace.New(10_000, 50*time.Millisecond, 0.5)
	before := p.Size()
	p.Took(time.Millisecond, false)
	if p.Size() != before {
		t.Errorf("size is %d, was %d", p.Size(), before)
	}
}
