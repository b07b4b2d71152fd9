//go:build race

package core

// schedules is how many random schedules a test run plays, loads how many of them are much work, and
// turnsPlayed how many are of routes that take only some events.
const (
	schedules   = 200
	loads       = 4
	turnsPlayed = 2
)

// turnsFound is played without the race detector.
var turnsFound []uint64
