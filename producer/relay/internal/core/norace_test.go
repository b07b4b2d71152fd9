//go:build !race

package core

// schedules is how many random schedules a test run plays, loads how many of them are much work, and
// turnsPlayed how many are of routes that take only some events.
const (
	schedules   = 2000
	loads       = 16
	turnsPlayed = 20
)

// turnsFound are seeds that have found something which the first ones have not.
var turnsFound = []uint64{115, 225}
