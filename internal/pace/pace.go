package pace

import "time"

// Pace sizes batches. It belongs to one goroutine.
type Pace struct {
	size   int
	most   int
	target time.Duration
	share  float64
}

const (
	first = 200 // the first batch, when nothing is known
	least = 20
)

// New returns a pace for batches of at most most rows. A batch should take target, and all batches
// together the given share of the time, between 0 and 1.
func New(most int, target time.Duration, share float64) *Pace {
	return &Pace{size: min(first, most), most: most, target: target, share: share}
}

// Size returns the maximal number of rows of the next batch.
func (p *Pace) Size() int { return p.size }

// Took records the duration of a batch and returns the pause before the next one. full tells that
// the batch had Size rows: only a full batch says something about larger ones. A size at most
// doubles, since the first rows of a table may be the quick ones.
func (p *Pace) Took(d time.Duration, full bool) time.Duration {
	d = max(d, time.Microsecond)
	fits := float64(p.size) * float64(p.target) / float64(d)
	switch {
	case fits < float64(p.size):
		p.size = max(int(fits), p.size/4)
	case full:
		p.size = int(min(fits, 2*float64(p.size)))
	}
	p.size = min(max(p.size, least), p.most)
	return time.Duration(float64(d) * (1/p.share - 1))
}
