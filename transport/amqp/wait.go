package amqp

import (
	"context"
	"fmt"
	"time"
)

// waiter is the patience of one call: its context and ConfirmTimeout, counted
// from the first time it waits.
type waiter struct {
	p     *Publisher
	ctx   context.Context
	timer *time.Timer
	call  *patience // or nil
}

// patience is what the messages of a call of Publish share, which are written one after another.
type patience struct{ over bool }

func (w *waiter) timeout() <-chan time.Time {
	if w.timer == nil {
		d := w.p.config.ConfirmTimeout
		if w.call != nil && w.call.over {
			d = 0
		}
		w.timer = time.NewTimer(d)
	}
	return w.timer.C
}

// timedOut notes that nothing has come of the wait.
func (w *waiter) timedOut() {
	if w.call != nil {
		w.call.over = true
	}
}

func (w *waiter) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// acquire takes a place in the window.
func (w *waiter) acquire() error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	select {
	case w.p.window <- struct{}{}:
		return nil
	default:
	}
	var cause error
	select {
	case w.p.window <- struct{}{}:
		return nil
	case <-w.ctx.Done():
		cause = w.ctx.Err()
	case <-w.timeout():
		w.timedOut()
		cause = ErrConfirmTimeout
	case <-w.p.closing:
		return ErrClosed
	}
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	if w.p.blocked != "" {
		return fmt.Errorf("%w (%w)", w.p.blockedError(), cause)
	}
	return fmt.Errorf("window of unconfirmed messages is full: %w", cause)
}

// wait waits until something has changed. It returns an error, with the reason
// for waiting, when the patience is over. Called with mu locked.
func (w *waiter) wait(reason error) error {
	w.p.waiting++
	changed := w.p.changed
	w.p.mu.Unlock()
	defer w.p.mu.Lock()
	select {
	case <-changed:
		return nil
	case <-w.ctx.Done():
		return fmt.Errorf("%w (%w)", reason, w.ctx.Err())
	case <-w.timeout():
		w.timedOut()
		return fmt.Errorf("%w for %v", reason, w.p.config.ConfirmTimeout)
	}
}
