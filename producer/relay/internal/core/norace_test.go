//go:build !race

package core

// schedules is how many random schedules a test run plays.
const schedules = 2000
