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

// Share makes messages of h share transactions from now on, if least of them are in flight, until a group
// is rolled back or slow.
func (h *Handler[TX]) Share(least int64) {
	if h.groups == nil || h.groups.sharing == nil {
		return
	}
	s := h.groups.sharing
	s.mu.Lock()
	defer s.mu.Unlock()
	s.least = least
	s.decide(decidedGroups, time.Now(), time.Hour)
}
