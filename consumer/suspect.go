package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/dedupe"
	"github.com/boxpair/boxpair/internal/pace"
	"github.com/boxpair/boxpair/store/inbox"
)

// startGap is how long a process may take from recording a start to locking the message. Within
// startGap no second start is recorded. Otherwise processes that start together would count each
// other's starts.
const startGap = 5 * time.Second

// atAnyTime is a gap longer than the age of any recorded start.
const atAnyTime = 100 * 365 * 24 * time.Hour

// A message with too many starts is counted again that many times, each after a random time of about
// recountAfter: the starts of processes that are alive are gone then.
const (
	recounts     = 5
	recountAfter = 500 * time.Millisecond
)

// slot is the place of a running suspect, a message that may have killed a process.
type slot[TX any] struct {
	h      *Handler[TX]
	weight int64
	solo   bool // no other suspect of this inbox runs alone
	// counts tells that the message is to blame if the process dies.
	counts bool
}

// suspects runs the suspects of a handler.
type suspects[TX any] struct {
	*Handler[TX]

	// returned remembers messages that this process returned to the transport: redelivered by the
	// transport, they are no suspects.
	returned  *dedupe.Window
	leftovers leftovers
}

// acquireSlot waits for a slot, shared with other messages or exclusive. Exclusive suspects of all
// handlers of the inbox take turns: a suspect that kills the process must not incriminate other
// suspects.
func (su *suspects[TX]) acquireSlot(ctx context.Context, weight int64) (s slot[TX], err error) {
	s = slot[TX]{h: su.Handler, counts: true}
	if weight == exclusive {
		if s.solo, err = su.inbox.takeTurn(ctx, su.cfg.Timeout); err != nil {
			return s, err
		}
	}
	if s.weight, err = su.gate.acquire(ctx, weight, su.cfg.Timeout); err != nil {
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

// takeTurn waits for the turn, for most at the longest, and tells whether the turn was taken. An
// error says that ctx ended.
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

// run waits for a slot, records the start and calls run with the number of recorded starts.
// In a slot that does not count, no start is recorded and the number is 0. The first start is
// shared, each later start exclusive. If the handler returns, or is not begun, the start is removed
// before the slot is released: the message must not be blamed for later deaths of the process.
//
// Starts are counted before the message is locked, so the number may include starts of live
// processes: of one whose handler has returned when the lock is got, or of those that wait for the
// lock with further copies. They are taken back soon, so a message with too many starts is counted
// again, several times and at random times.
func (su *suspects[TX]) run(ctx context.Context, id uuid.UUID, within time.Duration, run func(starts int) attempt) attempt {
	a, first := su.runIn(ctx, shared, id, atAnyTime, run)
	if !first && !a.notBegun && a.err == nil {
		a, _ = su.runIn(ctx, exclusive, id, within, run)
		for n := 0; n < recounts && errors.Is(a.err, ErrNeverCameBack); n++ {
			if err := pace.Sleep(ctx, su.inbox.jitter(recountAfter)); err != nil {
				return attempt{err: err, notBegun: true}
			}
			a, _ = su.runIn(ctx, exclusive, id, 0, run)
		}
	}
	return a
}

// runIn runs a suspect in a slot of the given weight. began is false if run was not called:
// ctx ended, the start could not be recorded, or an earlier start is younger than within.
func (su *suspects[TX]) runIn(ctx context.Context, weight int64, id uuid.UUID, within time.Duration, run func(starts int) attempt) (a attempt, began bool) {
	s, err := su.acquireSlot(ctx, weight)
	if err != nil {
		return attempt{err: err, notBegun: true}, false
	}
	defer s.release()
	if !s.counts {
		return run(0), true
	}
	starts, err := su.start(ctx, within, id)
	switch {
	case err != nil:
		return attempt{err: err}, false
	case starts[0] == 0:
		return attempt{verdict: inbox.Duplicate}, false
	}
	a = run(starts[0])
	if a.err != nil || a.verdict != inbox.Applied {
		su.unstart(ctx, id)
	}
	return a, true
}

// start records a start of each message and returns the numbers of recorded starts. For a message
// with a start younger than within, no start is recorded and the number is 0.
func (su *suspects[TX]) start(ctx context.Context, within time.Duration, ids ...uuid.UUID) ([]int, error) {
	ctx, cancel := su.operation(ctx)
	defer cancel()
	starts, err := su.inbox.store.Started(ctx, su.registry.consumer(), ids, within)
	if err == nil && len(starts) != len(ids) {
		err = fmt.Errorf("store gave %d starts of %d messages", len(starts), len(ids))
	}
	if err != nil {
		return nil, fmt.Errorf("record the start: %w", err)
	}
	for _, n := range starts {
		if n > 0 {
			su.counts.starts.Add(1)
		}
	}
	return starts, nil
}

// unstart removes a recorded start of each message. If the removal fails, the message is dead one
// start earlier.
func (su *suspects[TX]) unstart(ctx context.Context, ids ...uuid.UUID) {
	if len(ids) == 0 {
		return
	}
	ctx, cancel := su.operation(ctx)
	defer cancel()
	_ = su.inbox.store.Unstarted(ctx, su.registry.consumer(), ids)
}

// tooManyStarts returns an error if the handler of a message was begun too often without returning.
// The caller has locked the message, so no other process is running the handler now. The first
// recorded start was shared and does not count.
func (su *suspects[TX]) tooManyStarts(starts int) error {
	if starts <= su.cfg.Retry.MaxSoloStarts+1 {
		return nil
	}
	return fmt.Errorf("begun %d times: %w", starts-1, ErrNeverCameBack)
}

// leftovers are the parked messages that may have killed an earlier process: the messages that were
// due when Run began, up to a number, the longest due first. A message that dies with its process
// keeps its place: only messages that were due before are ahead of it, and those are skipped, or
// were begun or named together with it by the processes of the consumer. A killer behind more
// messages than the number kills again, but the messages ahead of it are handled first, until it is
// among the leftovers. All due messages would be too many: with HandlerConfig.StoreFirst, each start
// of a backlog would be recorded.
type leftovers struct {
	mu    sync.Mutex
	seqs  map[int64]struct{}
	known bool // seqs is complete
}

// limit returns how many due messages to read, to get limit of them, or at first the leftovers, up
// to most.
func (l *leftovers) limit(limit, most int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known {
		return limit
	}
	return max(limit, most)
}

// update takes the messages that are due now, the longest due first. all tells that no further
// message is due. The first call decides which messages are leftovers, up to most.
func (l *leftovers) update(seqs []int64, all bool, most int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known && (!all || len(l.seqs) == 0) {
		return
	}
	still := make(map[int64]struct{})
	for n, seq := range seqs {
		if _, ok := l.seqs[seq]; ok || !l.known && n < most {
			still[seq] = struct{}{}
		}
	}
	l.seqs, l.known = still, true
}

func (l *leftovers) has(seq int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.seqs[seq]
	return ok
}

// remove removes a message whose handler has returned.
func (l *leftovers) remove(seq int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.seqs, seq)
}
