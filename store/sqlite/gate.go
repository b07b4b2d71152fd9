package sqlite

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxpair/boxpair/store/inbox"
)

// ErrNested is returned when a transaction is begun within another transaction of the same
// database: with one writer the inner transaction would wait for the outer transaction, and the
// outer for the inner.
var ErrNested = fmt.Errorf("begin %w", inbox.ErrNested)

// errBusy is returned for a transaction that waited too long for its turn in this process, like
// SQLITE_BUSY between processes.
var errBusy = errors.New("database is busy: other transactions of this process kept the write lock")

// gate lets write transactions of one database take turns, in the order of asking. SQLite's own
// lock is polled with growing sleeps: among many goroutines some would starve, and all would waste
// time.
type gate struct {
	mu      sync.Mutex
	held    bool
	waiting list.List // of chan struct{}, each closed when its turn comes
}

// turn is the right to hold the write lock. A context passes the turn to the driver's BeginTx,
// since database/sql has no other way. The turn stays in the context of the function that runs in
// the transaction, so that a nested transaction is recognised.
type turn struct {
	gate  *gate
	state atomic.Int32
	until time.Time     // when the wait for the write lock ends
	idle  time.Duration // after which an idle transaction is rolled back; 0 is never
	// wait, if set, bounds the wait for the write lock of a transaction that, once begun, does not
	// end with the caller's context.
	wait context.Context
}

const (
	turnFree  = iota // granted, no transaction yet
	turnTaken        // used by an open transaction
	turnOver
)

type turnKey struct{}

func withTurn(ctx context.Context, t *turn) context.Context {
	return context.WithValue(ctx, turnKey{}, t)
}

// enter waits for a turn, at most for wait. The rest of wait bounds the later wait for another
// process's lock.
func (g *gate) enter(ctx context.Context, wait time.Duration) (*turn, error) {
	if t, ok := ctx.Value(turnKey{}).(*turn); ok && t.gate == g && t.state.Load() == turnTaken {
		return nil, ErrNested
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t := &turn{gate: g, until: time.Now().Add(wait)}
	g.mu.Lock()
	if !g.held {
		g.held = true
		g.mu.Unlock()
		return t, nil
	}
	mine := make(chan struct{})
	place := g.waiting.PushBack(mine)
	g.mu.Unlock()

	timer := time.NewTimer(wait)
	defer timer.Stop()
	var err error
	select {
	case <-mine:
		return t, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
		err = errBusy
	}
	g.mu.Lock()
	select {
	case <-mine: // granted meanwhile: pass it on
		g.mu.Unlock()
		t.leave()
	default:
		g.waiting.Remove(place)
		g.mu.Unlock()
	}
	return nil, err
}

// take claims t for a transaction. Only the first call returns true.
func (t *turn) take() bool { return t.state.CompareAndSwap(turnFree, turnTaken) }

// leave ends the turn and grants the next turn. A second call does nothing.
func (t *turn) leave() {
	if t.state.Swap(turnOver) == turnOver {
		return
	}
	t.gate.mu.Lock()
	defer t.gate.mu.Unlock()
	next := t.gate.waiting.Front()
	if next == nil {
		t.gate.held = false
		return
	}
	t.gate.waiting.Remove(next)
	close(next.Value.(chan struct{}))
}
