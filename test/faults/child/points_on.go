//go:build faults

package child

import "github.com/boxpair/boxpair/internal/fault"

func points() map[fault.Point]int {
	counts := make(map[fault.Point]int)
	for _, p := range fault.Points() {
		if n := fault.Count(p); n > 0 {
			counts[p] = n
		}
	}
	return counts
}
