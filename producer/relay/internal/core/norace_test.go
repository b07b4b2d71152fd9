//go:build !race

package core

// schedules is how many random schedules a test run plays, loads how many of them are much work.
const (
	schedules = 2000
	loads     = 16
)
