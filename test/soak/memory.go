package soak

import (
	"math"
	"strings"
	"time"
)

// memory records the memory of processes while they are spared from kills.
type memory struct {
	peaks map[string]uint64 // heaps, by role
	life  []point           // of the currently spared process
	all   slope
}

type point struct {
	at    float64 // minutes
	bytes float64
}

func (m *memory) peak(name string, heap uint64) {
	role, _, _ := strings.Cut(name, "-")
	if m.peaks == nil {
		m.peaks = make(map[string]uint64)
	}
	m.peaks[role] = max(m.peaks[role], heap)
}

// see records the memory of the spared process at a time after its start.
func (m *memory) see(at time.Duration, bytes float64) {
	m.life = append(m.life, point{at.Minutes(), bytes})
}

// end ends the record of one process.
func (m *memory) end() {
	m.all.add(m.life)
	m.life = nil
}

// slope fits straight lines to the points of several processes: one slope for all lines, and a
// height for each line.
type slope struct {
	lines   []line
	sum     line
	minutes float64
}

// line has the sums of products of one process's points, from their mean.
type line struct{ xy, xx float64 }

func (s *slope) add(points []point) {
	if len(points) < 2 {
		return
	}
	var x, y float64
	for _, p := range points {
		x, y = x+p.at, y+p.bytes
	}
	x, y = x/float64(len(points)), y/float64(len(points))
	var l line
	for _, p := range points {
		l.xy += (p.at - x) * (p.bytes - y)
		l.xx += (p.at - x) * (p.at - x)
	}
	s.lines = append(s.lines, l)
	s.sum = line{s.sum.xy + l.xy, s.sum.xx + l.xx}
	s.minutes += points[len(points)-1].at - points[0].at
}

// perMinute returns the growth in bytes per minute.
func (s *slope) perMinute() float64 {
	if s.sum.xx == 0 {
		return 0
	}
	return s.sum.xy / s.sum.xx
}

// standardError returns the standard error of perMinute. Memory follows the load, so the points of one
// process depend on each other: the error is that of independent processes, and 0 for a single one.
func (s *slope) standardError() float64 {
	n := float64(len(s.lines))
	if n < 2 || s.sum.xx == 0 {
		return 0
	}
	slope, squares := s.perMinute(), 0.0
	for _, l := range s.lines {
		apart := l.xy - slope*l.xx
		squares += apart * apart
	}
	return math.Sqrt(squares*n/(n-1)) / s.sum.xx
}
