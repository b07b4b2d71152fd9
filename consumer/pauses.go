package consumer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxpair/boxpair/internal/pace"
	"github.com/boxpair/boxpair/store/control"
)

const (
	// pausesFresh is the age up to which read pauses are used. With pauseCheck, each waiting message
	// sees the end of a pause within a second.
	pausesFresh = 500 * time.Millisecond
	// pausesOld is the age from which read pauses are not even used while another goroutine reads.
	pausesOld = time.Second
	// pausesTimeout bounds a read.
	pausesTimeout = 2 * time.Second
	// pauseCheck is how often a waiting message looks whether its consumer is still paused.
	pauseCheck = 450 * time.Millisecond
)

// pauses are the pauses in the database of an inbox, as read last. Only work makes a handler read
// them, so an idle inbox reads nothing.
type pauses struct {
	turn     chan struct{} // held by the goroutine that reads
	latest   atomic.Pointer[readPauses]
	errorLog logLimiter
}

// readPauses is the result of a read.
type readPauses struct {
	at    time.Time
	found []control.Pause
}

// readPauses returns the pauses of all consumers, read within the last second if the database
// answers. After an error the pauses of the read before remain: the transaction of a message tells
// of an outage itself. An error says that ctx ended.
func (i *Inbox[TX]) readPauses(ctx context.Context) (*readPauses, error) {
	ps := &i.pauses
	latest := ps.latest.Load()
	age := pausesOld
	if latest != nil {
		age = time.Since(latest.at)
	}
	if age < pausesFresh {
		return latest, nil
	}
	select {
	case ps.turn <- struct{}{}:
	default:
		if age < pausesOld && len(latest.found) == 0 { // else a waiting message would see the end of its pause late
			return latest, nil
		}
		select {
		case ps.turn <- struct{}{}:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	defer func() { <-ps.turn }()
	if now := ps.latest.Load(); now != latest { // another goroutine has read
		return now, nil
	}
	next := &readPauses{}
	if latest != nil {
		*next = *latest
	}
	next.at = time.Now()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pausesTimeout) // for all who wait
	defer cancel()
	found, err := i.store.Pauses(ctx)
	if err == nil {
		next.found = found
	} else if next.at = time.Now(); ps.errorLog.allow(next.at) {
		i.log.WarnContext(ctx, "pauses cannot be read: the last known ones remain in force", "service", i.cfg.Service, "error", err)
	}
	ps.latest.Store(next)
	return next, nil
}

// permits decides when the messages of a handler may be handled: not while the consumer is paused,
// and not faster than HandlerConfig.MaxPerSecond.
type permits[TX any] struct {
	*Handler[TX]

	limit limit

	paused atomic.Pointer[control.Pause] // as reported, nil without a pause; changed with mu
	mu     sync.Mutex
	read   time.Time // when the pauses were read that paused tells of
}

// pause returns the pause of the consumer, or nil.
func (pm *permits[TX]) pause(ctx context.Context) (*control.Pause, error) {
	read, err := pm.inbox.readPauses(ctx)
	if err != nil {
		return nil, err
	}
	var pause *control.Pause
	for n := range read.found {
		if read.found[n].Consumes(pm.name) {
			pause = &read.found[n]
			break
		}
	}
	if !samePause(pm.paused.Load(), pause) {
		pm.changed(ctx, read.at, pause)
	}
	return pause, nil
}

// samePause tells whether two pauses, or none, tell an operator the same.
func samePause(a, b *control.Pause) bool {
	if a == nil || b == nil || a == b {
		return a == b
	}
	return a.Name == b.Name && a.Reason == b.Reason && a.By == b.By && a.Until.Equal(b.Until)
}

// changed reports that the consumer is paused, by a changed pause, or goes on.
func (pm *permits[TX]) changed(ctx context.Context, read time.Time, pause *control.Pause) {
	pm.mu.Lock()
	defer pm.mu.Unlock()
	if samePause(pm.paused.Load(), pause) || read.Before(pm.read) { // another goroutine has reported
		return
	}
	pm.paused.Store(pause)
	pm.read = read
	pm.notifyPaused(pause)
	if pause == nil {
		pm.log.InfoContext(ctx, "consumer goes on after a pause")
		return
	}
	pm.log.InfoContext(ctx, "consumer is paused", "pause", pause.Name, "reason", pause.Reason, "by", pause.By, "since", pause.Since, "until", pause.Until)
}

// isPaused tells whether the consumer is paused. It returns false if ctx ended.
func (pm *permits[TX]) isPaused(ctx context.Context) bool {
	pause, err := pm.pause(ctx)
	return err == nil && pause != nil
}

// permit waits until the message may be handled, or until the message was held for Config.MaxHold. A
// message whose last commit may have happened does not wait: the message is being handled.
func (pm *permits[TX]) permit(ctx context.Context, p *progress) error {
	if p.commitUnknown || p.txEnded {
		return nil
	}
	for {
		if err := pm.resumed(ctx, p); err != nil || pm.cfg.MaxPerSecond == 0 {
			return err
		}
		if err := pm.takeToken(ctx, p); err != nil {
			return err
		}
		// The consumer may be paused by now. Then the token is lost: if all messages that wait for the
		// end of a pause had tokens, all would be handled at once.
		if !pm.isPaused(ctx) {
			return nil
		}
	}
}

// resumed waits until the consumer is not paused, or until the message was held for Config.MaxHold.
func (pm *permits[TX]) resumed(ctx context.Context, p *progress) error {
	for {
		pause, err := pm.pause(ctx)
		if err != nil || pause == nil {
			return err
		}
		pm.held(p)
		left := pm.hold(p)
		if left <= 0 {
			return fmt.Errorf("%w: %s", ErrPaused, pause)
		}
		if err := pace.Sleep(ctx, min(left, pauseCheck)); err != nil {
			return err
		}
	}
}

// hold returns for how long the message may wait for a permit from now on.
func (pm *permits[TX]) hold(p *progress) time.Duration {
	now := time.Now()
	if p.queued.IsZero() {
		p.queued = now
	}
	return pm.inbox.cfg.MaxHold - now.Sub(p.queued)
}

// held counts a message that is held, once.
func (pm *permits[TX]) held(p *progress) {
	if !p.held {
		p.held = true
		pm.counts.held.Add(1)
	}
}
