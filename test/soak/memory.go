package soak

import (
	"strings"
	"time"
)

// memory keeps how the memory of processes goes, of those that were spared from being killed.
type memory struct {
	peaks map[string]uint64 // heaps, by role
	life  []point           // of the process that is spared now
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

// see notes the memory of the process that is spared, some time after it began.
func (m *memory) see(at time.Duration, bytes float64) {
	m.life = append(m.life, point{at.Minutes(), bytes})
}

// end ends the time of one process.
func (m *memory) end() {
	m.all.add(m.life)
	m.life = nil
}

// slope is that of straight lines through the points of several processes: one slope for
// all, and a height for each.
type slope struct {
	xy, xx  float64
	minutes float64
}

func (s *slope) add(points []point) {
	if len(points) < 2 {
		return
	}
	var x, y float64
	for _, p := range points {
		x, y = x+p.at, y+p.bytes
	}
	x, y = x/float64(len(points)), y/float64(len(points))
	for _, p := range points {
		s.xy += (p.at - x) * (p.bytes - y)
		s.xx += (p.at - x) * (p.at - x)
	}
	s.minutes += points[len(points)-1].at - points[0].at
}

// perMinute is the growth in bytes per minute.
func (s *slope) perMinute() float64 {
	if s.xx == 0 {
		return 0
	}
	return s.xy / s.xx
}
