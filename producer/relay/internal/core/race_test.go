//go:build race

package core

// schedules is how many random schedules a test run plays, loads how many of them are much work.
const (
	schedules = 200
	loads     = 4
)
