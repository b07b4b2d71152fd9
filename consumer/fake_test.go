package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/internal/memcontrol"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// The errors of the fake database.
var (
	errOutage   = errors.New("fake database is down")
	errConflict = errors.New("fake transaction conflicts")
)

// fakeTx is a transaction of the fake database.
type fakeTx struct {
	effects []string
	events  []outbox.Record
	broken  bool // a statement failed: COMMIT answers ROLLBACK
}

// Do is an effect of a handler.
func (tx *fakeTx) Do(effect string) { tx.effects = append(tx.effects, effect) }

type claimKey struct {
	consumer int
	id       uuid.UUID
}

type claimRow struct {
	digest transport.Digest
	stamp  time.Time
}

type attemptRow struct {
	attempts, starts int
	changed          time.Time // the starts
}

type parkedRow struct {
	inbox.Parked
	number  int
	ordered bool
	locked  bool
}

// fakeStore is a database in memory, for what no real one does on demand. It
// keeps the contract of [inbox.Store].
type fakeStore struct {
	memcontrol.Store

	ahead time.Duration // how far the database's clock is ahead of the process's
	// fault, if set, is asked before each step: register, newest, begin, claimed (after
	// the claim, before the handler), commit (its error rolls back), answer (its error comes
	// after the commit), park, failed, started, due, apply-parked, retry.
	fault func(step string) error

	mu       sync.Mutex
	names    []string
	claims   map[claimKey]claimRow
	order    []claimKey
	open     map[claimKey]chan struct{}
	attempts map[claimKey]attemptRow
	parked   []*parkedRow
	seq      int64
	// lockParked has another process hold all parked messages.
	lockParked bool
	forgotten  time.Time
	registered time.Time
	passed     time.Time // the last pass that forgot, or the registration
	effects    map[string]int
	events     []outbox.Record
	calls      map[string]int
	claimed    []inbox.Claim
	parkings   []inbox.Parking
	forgets    []int
	reports    []fakeReport // the attempts to report handlers

	horizon      time.Duration
	horizonUntil time.Time
}

func newFake() *fakeStore {
	return &fakeStore{
		claims: make(map[claimKey]claimRow), open: make(map[claimKey]chan struct{}),
		attempts: make(map[claimKey]attemptRow), effects: make(map[string]int), calls: make(map[string]int),
	}
}

func (s *fakeStore) step(name string) error {
	s.mu.Lock()
	s.calls[name]++
	fault := s.fault
	s.mu.Unlock()
	if fault == nil {
		return nil
	}
	return fault(name)
}

// setFault replaces the fault while others run.
func (s *fakeStore) setFault(f func(step string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// fail lets a step fail with err from now on.
func (s *fakeStore) fail(step string, err error) { s.failCalls(step, 1, math.MaxInt, err) }

// failCalls lets the calls of a step fail with err from the first to the last, where 1 is its
// first call of all.
func (s *fakeStore) failCalls(step string, first, last int, err error) {
	s.setFault(func(name string) error {
		if n := s.called(step); name == step && n >= first && n <= last {
			return err
		}
		return nil
	})
}

// called tells how often a step was taken.
func (s *fakeStore) called(step string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[step]
}

// done tells how often an effect was committed.
func (s *fakeStore) done(effect string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.effects[effect]
}

// written returns the committed events.
func (s *fakeStore) written() []outbox.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}

// states returns the states of the parked messages, by ascending seq.
func (s *fakeStore) states() []inbox.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	states := make([]inbox.State, 0, len(s.parked))
	for _, p := range s.parked {
		states = append(states, p.State)
	}
	return states
}

func (s *fakeStore) Classify(err error) inbox.ErrorClass {
	switch {
	case errors.Is(err, inbox.ErrCommitUnknown):
		return inbox.CommitUnknown
	case errors.Is(err, errConflict):
		return inbox.Conflict
	case errors.Is(err, errOutage):
		return inbox.Infrastructure
	}
	return inbox.HandlerError
}

// claim waits for other claims of the same message, then claims it if nobody has.
func (s *fakeStore) claim(ctx context.Context, c inbox.Claim) (inbox.Verdict, func(commit bool), error) {
	key := claimKey{c.Consumer, c.ID}
	for {
		s.mu.Lock()
		wait, taken := s.open[key]
		if !taken {
			break
		}
		s.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return inbox.None, nil, fmt.Errorf("%w: %w", errConflict, ctx.Err())
		}
	}
	defer s.mu.Unlock()
	s.claimed = append(s.claimed, c)
	if row, ok := s.claims[key]; ok {
		if row.digest.Matches(c.Digest) {
			return inbox.Duplicate, nil, nil
		}
		return inbox.Altered, nil, nil
	}
	if !c.Stamp.IsZero() && c.Stamp.Before(s.forgotten) {
		return inbox.TooOld, nil, nil
	}
	done := make(chan struct{})
	s.open[key] = done
	return inbox.Applied, func(commit bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if commit {
			s.claims[key] = claimRow{c.Digest, c.Stamp}
			s.order = append(s.order, key)
		}
		delete(s.open, key)
		close(done)
	}, nil
}

func (s *fakeStore) Apply(ctx context.Context, c inbox.Claim, fn func(context.Context, *fakeTx) error) (v inbox.Verdict, err error) {
	if err := s.step("begin"); err != nil {
		return inbox.None, err
	}
	tx := &fakeTx{}
	var failed error
	if c.Optimistic {
		failed = fn(ctx, tx)
	}
	v, end, err := s.claim(ctx, c)
	if err != nil || end == nil {
		return v, err
	}
	committed := false
	defer func() { end(committed) }()
	if c.Key != "" && s.follows(c) {
		committed = true
		return inbox.Followed, nil
	}
	if err := s.step("claimed"); err != nil {
		return inbox.None, err
	}
	if !c.Optimistic {
		failed = fn(ctx, tx)
	}
	if failed != nil {
		return inbox.None, failed
	}
	if err := s.commit(ctx, tx, func() { committed = true; s.forget(c) }); err != nil {
		return inbox.None, err
	}
	return inbox.Applied, nil
}

// forget forgets what is counted of a message that was applied.
func (s *fakeStore) forget(c inbox.Claim) {
	if !c.Started {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.attempts, claimKey{c.Consumer, c.ID})
}

func (s *fakeStore) follows(c inbox.Claim) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.blocked(c.Consumer, c.Key, 0) {
		return false
	}
	s.add(inbox.Parking{Consumer: c.Consumer, Message: c.Message, State: inbox.Following, Ordered: true})
	return true
}

// blocked tells whether a live message of the key with a lower seq is parked (0: any).
func (s *fakeStore) blocked(number int, key string, below int64) bool {
	return slices.ContainsFunc(s.parked, func(p *parkedRow) bool {
		return p.ordered && p.number == number && p.Key == key && (below == 0 || p.Seq < below) &&
			(p.State == inbox.Retrying || p.State == inbox.Following)
	})
}

func (s *fakeStore) commit(ctx context.Context, tx *fakeTx, apply func()) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if tx.broken {
		return fmt.Errorf("commit: %w", inbox.ErrRolledBack)
	}
	if err := s.step("commit"); err != nil {
		return err
	}
	s.mu.Lock()
	for _, e := range tx.effects {
		s.effects[e]++
	}
	s.events = append(s.events, tx.events...)
	s.mu.Unlock()
	apply()
	return s.step("answer")
}

func (s *fakeStore) Savepoint(ctx context.Context, tx *fakeTx, fn func(context.Context, *fakeTx) error) error {
	inner := &fakeTx{}
	if err := fn(ctx, inner); err != nil {
		return err
	}
	tx.effects = append(tx.effects, inner.effects...)
	tx.events = append(tx.events, inner.events...)
	return nil
}

// countAll is one statement.
func (s *fakeStore) countAll(step string, number int, ids []uuid.UUID, change func(*attemptRow) int) ([]int, error) {
	if err := s.step(step); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := make([]int, len(ids))
	for i, id := range ids {
		row := s.attempts[claimKey{number, id}]
		counts[i] = change(&row)
		s.attempts[claimKey{number, id}] = row
	}
	return counts, nil
}

func (s *fakeStore) Started(_ context.Context, number int, ids []uuid.UUID, within time.Duration) ([]int, error) {
	return s.countAll("started", number, ids, func(r *attemptRow) int { return r.start(within) })
}

// starts tells how many starts of a message are recorded.
func (s *fakeStore) starts(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attempts[claimKey{1, number(n)}].starts
}

// start records a start, unless one was recorded within so long.
func (r *attemptRow) start(within time.Duration) int {
	age := time.Since(r.changed)
	if r.changed.IsZero() { // a test has put it there
		age = time.Hour
	}
	if r.starts > 0 && age < within {
		return 0
	}
	r.starts++
	r.changed = time.Now()
	return r.starts
}

func (s *fakeStore) Unstarted(_ context.Context, number int, ids []uuid.UUID) error {
	_, err := s.countAll("unstarted", number, ids, func(r *attemptRow) int { r.starts, r.changed = max(r.starts-1, 0), time.Now(); return r.starts })
	return err
}

func (s *fakeStore) Failed(_ context.Context, number int, id uuid.UUID, _ string) (int, error) {
	counts, err := s.countAll("failed", number, []uuid.UUID{id}, func(r *attemptRow) int { r.attempts++; r.starts = 0; return r.attempts })
	if err != nil {
		return 0, err
	}
	return counts[0], nil
}
