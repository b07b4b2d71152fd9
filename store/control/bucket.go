package control

import "time"

// BucketSize returns how many tokens a bucket holds: those of one second, at least one.
func BucketSize(perSecond float64) float64 { return max(1, perSecond) }

// NextToken returns how long a bucket takes to have a whole token, if none was granted, of which left is there.
func NextToken(granted int, left, perSecond float64) time.Duration {
	if granted > 0 || perSecond <= 0 {
		return 0
	}
	const longest = 24 * time.Hour
	seconds := (1 - left) / perSecond
	if seconds >= longest.Seconds() {
		return longest
	}
	return max(time.Millisecond, time.Duration(seconds*float64(time.Second)))
}

// Bucket is the state of a bucket, for stores that compute outside the database.
type Bucket struct {
	Tokens   float64
	FilledAt int64 // microseconds
}

// Take fills b up to now, in microseconds, and takes up to want tokens.
func (b *Bucket) Take(now int64, perSecond float64, want int) (granted int, next time.Duration) {
	elapsed := max(0, now-b.FilledAt)
	b.Tokens = min(BucketSize(perSecond), b.Tokens+perSecond*float64(elapsed)/1e6)
	if b.FilledAt = max(b.FilledAt, now); b.FilledAt > now+time.Minute.Microseconds() { // the clock was set back
		b.FilledAt = now
	}
	granted = min(want, int(b.Tokens))
	b.Tokens -= float64(granted)
	return granted, NextToken(granted, b.Tokens, perSecond)
}
