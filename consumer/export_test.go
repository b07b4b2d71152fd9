package consumer

import "time"

// SetRandom makes the waits of i draw from random, which returns a time between 0 and most.
func (i *Inbox[TX]) SetRandom(random func(most time.Duration) time.Duration) { i.random = random }
