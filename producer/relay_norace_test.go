//go:build !race

package producer

// schedules is how many random schedules a test run plays.
const schedules = 2000
