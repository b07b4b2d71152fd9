package consumer

import (
	"errors"
	"time"
)

// SetRandom makes the waits of i draw from random, which returns a time between 0 and most.
func (i *Inbox[TX]) SetRandom(random func(most time.Duration) time.Duration) { i.random = random }

// Stalled and Works take note of an outage and of its end.
func (h *Handler[TX]) Stalled() {
	h.stallLimit = logLimiter{}
	h.stalled(time.Now(), errors.New("outage"))
}

func (h *Handler[TX]) Works() { h.works() }
