// Package notice calls observers beside the work that they observe.
package notice

import (
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	most     = 1024 // pending calls
	logEvery = time.Minute
)

// Queue calls functions one after another, in the order of Put. A function that is slow, panics or
// ends its goroutine holds up only other functions of the queue. A goroutine runs while calls are
// pending. The zero value, with a logger, is ready.
type Queue struct {
	Log *slog.Logger

	mu      sync.Mutex
	pending []func()
	running bool
	missed  int       // since the last record
	dropped int64     // in all
	logAt   time.Time // of the next record about missed calls
}

// Put has call called soon, unless too many calls are pending. Put does not block.
func (q *Queue) Put(call func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.pending) >= most {
		q.missed++
		q.dropped++
		if now := time.Now(); !now.Before(q.logAt) {
			q.logMissed()
			q.logAt = now.Add(logEvery)
		}
		return
	}
	q.pending = append(q.pending, call)
	if !q.running {
		q.running = true
		go q.run()
	}
}

// Dropped returns how many calls were dropped, because too many were pending.
func (q *Queue) Dropped() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.dropped
}

// logMissed is called with mu.
func (q *Queue) logMissed() {
	q.Log.Warn("observer is slow: notices were dropped", "dropped", q.missed)
	q.missed = 0
}

// run makes the pending calls.
func (q *Queue) run() {
	ended := false
	defer func() {
		if !ended { // a call has ended the goroutine
			q.Log.Error("observer ended its goroutine")
			go q.run()
		}
	}()
	for call := q.next(); call != nil; call = q.next() {
		q.call(call)
	}
	ended = true
}

// next returns the next call, or nil without one.
func (q *Queue) next() func() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.pending) == 0 {
		q.running, q.pending = false, nil
		if q.missed > 0 { // perhaps no later drop would tell of them
			q.logMissed()
		}
		return nil
	}
	call := q.pending[0]
	q.pending[0] = nil
	q.pending = q.pending[1:]
	return call
}

func (q *Queue) call(call func()) {
	defer func() {
		if v := recover(); v != nil {
			q.Log.Error("observer panicked", "panic", fmt.Sprintf("%T", v))
		}
	}()
	call()
}
