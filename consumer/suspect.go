package consumer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
)

// startGap is how long another process may take from the record of a start to the lock of its
// message. Within it nobody else records one, or the processes that start together would count each
// other's.
const startGap = 5 * time.Second

// atAnyTime is longer than any start is remembered.
const atAnyTime = 100 * 365 * 24 * time.Hour

// slot is where a message runs that may have killed a process.
type slot[TX any] struct {
	h      *Handler[TX]
	weight int64
	solo   bool // no other such message is alone in this inbox
	// counts says that a death of the process would be the message's.
	counts bool
}

// acquireSlot goes in beside others, where the first recorded start may be the first at all, or alone.
// Messages that are alone in their handlers take turns within the inbox, or one that kills the
// process would convict the others.
func (h *Handler[TX]) acquireSlot(ctx context.Context, weight int64) (s slot[TX], err error) {
	s = slot[TX]{h: h, counts: true}
	if weight == exclusive {
		if s.solo, err = h.inbox.takeTurn(ctx, h.cfg.Timeout); err != nil {
			return s, err
		}
	}
	if s.weight, err = h.gate.acquire(ctx, weight, h.cfg.Timeout); err != nil {
		s.release()
		return s, err
	}
	s.counts = s.weight == weight && (weight == shared || s.solo)
	return s, nil
}

func (s *slot[TX]) release() {
	s.h.gate.release(s.weight)
	if s.solo {
		<-s.h.inbox.solo
	}
}

// takeTurn waits at most so long, and tells whether the turn was taken.
func (i *Inbox[TX]) takeTurn(ctx context.Context, most time.Duration) (bool, error) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case i.solo <- struct{}{}:
		return true, nil
	case <-timer.C:
		return false, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// runSuspect runs a message that may have killed a process: it records the start, once the message
// may run, and calls run with how many are recorded. From the second on it is alone. A start whose
// handler came back, or was not begun, is taken back before anybody else is let in: a message must
// not answer for what others do later.
func (h *Handler[TX]) runSuspect(ctx context.Context, id uuid.UUID, within time.Duration, run func(starts int) attempt) attempt {
	a, first := h.runSuspectIn(ctx, shared, id, atAnyTime, run)
	if !first && !a.notBegun && a.err == nil {
		a, _ = h.runSuspectIn(ctx, exclusive, id, within, run)
	}
	return a
}

// runSuspectIn tells besides whether the message may run now: whether no start was recorded within
// so long.
func (h *Handler[TX]) runSuspectIn(ctx context.Context, weight int64, id uuid.UUID, within time.Duration, run func(starts int) attempt) (a attempt, begun bool) {
	s, err := h.acquireSlot(ctx, weight)
	if err != nil {
		return attempt{err: err, notBegun: true}, false
	}
	defer s.release()
	if !s.counts {
		return run(0), true
	}
	starts, err := h.start(ctx, within, id)
	switch {
	case err != nil:
		return attempt{err: err}, false
	case starts[0] == 0:
		return attempt{verdict: inbox.Duplicate}, false
	}
	a = run(starts[0])
	if a.err != nil || a.verdict != inbox.Applied {
		h.unstart(ctx, id)
	}
	return a, true
}

// start records that messages are begun again, and returns how often that was recorded of each, or
// 0 if somebody else did within.
func (h *Handler[TX]) start(ctx context.Context, within time.Duration, ids ...uuid.UUID) ([]int, error) {
	ctx, cancel := h.operation(ctx)
	defer cancel()
	starts, err := h.inbox.store.Started(ctx, h.consumer(), ids, within)
	if err == nil && len(starts) != len(ids) {
		err = fmt.Errorf("store gave %d starts of %d messages", len(starts), len(ids))
	}
	if err != nil {
		return nil, fmt.Errorf("record the start: %w", err)
	}
	for _, n := range starts {
		if n > 0 {
			h.counts.starts.Add(1)
		}
	}
	return starts, nil
}

// unstart takes a recorded start of each message back. If that fails, they have one start fewer to
// go.
func (h *Handler[TX]) unstart(ctx context.Context, ids ...uuid.UUID) {
	if len(ids) == 0 {
		return
	}
	ctx, cancel := h.operation(ctx)
	defer cancel()
	_ = h.inbox.store.Unstarted(ctx, h.consumer(), ids)
}

// tooManyStarts returns the error of a message whose handling was begun too often without coming
// back. It is asked while the message is locked: no other process is at it then. The first recorded
// start is not alone.
func (h *Handler[TX]) tooManyStarts(starts int) error {
	if starts <= h.cfg.MaxSoloStarts+1 {
		return nil
	}
	return fmt.Errorf("begun %d times: %w", starts-1, ErrNeverCameBack)
}

// leftovers are the parked messages that were due when this process began: an earlier process may
// have died of one of them.
type leftovers struct {
	mu    sync.Mutex
	seqs  map[int64]struct{}
	known bool // all of them
}

// update takes note of what is due; all says that it is all that is.
func (l *leftovers) update(seqs []int64, all bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known && (!all || len(l.seqs) == 0) {
		return
	}
	still := make(map[int64]struct{}, len(seqs))
	for _, seq := range seqs {
		if _, ok := l.seqs[seq]; ok || !l.known {
			still[seq] = struct{}{}
		}
	}
	if !all {
		for seq := range l.seqs {
			still[seq] = struct{}{}
		}
	}
	l.seqs, l.known = still, l.known || all
}

func (l *leftovers) has(seq int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.seqs[seq]
	return ok
}

// remove notes that the handling of a message came back.
func (l *leftovers) remove(seq int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.seqs, seq)
}
