package consumer_test

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// add keeps a parked message. The caller holds mu.
func (s *fakeStore) add(p inbox.Parking) {
	s.seq++
	m := inbox.Parked{
		Message: *p.Message, Seq: s.seq, Consumer: s.names[p.Consumer-1], State: p.State,
		Attempts: p.Attempts, ParkedAt: time.Now(), LastError: p.LastError,
	}
	if p.State == inbox.Retrying {
		m.NextAttemptAt = time.Now().Add(p.RetryIn)
	}
	s.parked = append(s.parked, &parkedRow{Parked: m, number: p.Consumer, ordered: p.Ordered})
}

func (s *fakeStore) ParkMessage(ctx context.Context, p inbox.Parking) (inbox.Verdict, error) {
	if err := s.step("park"); err != nil {
		return inbox.None, err
	}
	if p.State == inbox.TooOldState || p.State == inbox.AlteredState {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.add(p)
		return inbox.Applied, nil
	}
	c := inbox.Claim{Consumer: p.Consumer, ID: p.Message.ID, Digest: p.Message.Digest}
	if p.Fresh {
		c.Stamp = p.Message.Stamp
	}
	verdict, end, err := s.claim(ctx, c)
	switch {
	case err != nil:
		return inbox.None, err
	case end == nil && p.Fresh:
		return verdict, nil
	case end == nil:
		return inbox.Duplicate, nil
	}
	s.mu.Lock()
	s.parkings = append(s.parkings, p)
	s.add(p)
	s.mu.Unlock()
	end(true)
	return inbox.Applied, s.step("park-answer")
}

func (s *fakeStore) due(number int) (seqs []int64, next time.Duration) {
	now := time.Now()
	for _, p := range s.parked {
		if p.number != number || p.State != inbox.Retrying || p.ordered && s.blocked(number, p.Key, p.Seq) {
			continue
		}
		if wait := p.NextAttemptAt.Sub(now); wait <= 0 {
			seqs = append(seqs, p.Seq)
		} else if next == 0 || wait < next {
			next = wait
		}
	}
	return seqs, next
}

func (s *fakeStore) DueMessages(_ context.Context, number, limit int) ([]int64, time.Duration, error) {
	if err := s.step("due"); err != nil {
		return nil, 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	seqs, next := s.due(number)
	return seqs[:min(limit, len(seqs))], next, nil
}

func (s *fakeStore) find(seq int64) *parkedRow {
	for _, p := range s.parked {
		if p.Seq == seq {
			return p
		}
	}
	return nil
}

func (s *fakeStore) ApplyParked(ctx context.Context, c inbox.Claim, seq int64, fn func(context.Context, *fakeTx, *inbox.Parked) error) (bool, error) {
	if err := s.step("apply-parked"); err != nil {
		return false, err
	}
	s.mu.Lock()
	seqs, _ := s.due(c.Consumer)
	p := s.find(seq)
	if p == nil || p.locked || s.lockParked || !slices.Contains(seqs, seq) {
		s.mu.Unlock()
		return false, nil
	}
	p.locked = true
	m := p.Parked
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		p.locked = false
	}()
	tx := &fakeTx{}
	if err := fn(ctx, tx, &m); err != nil {
		return false, err
	}
	err := s.commit(ctx, tx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.parked = slices.DeleteFunc(s.parked, func(q *parkedRow) bool { return q == p })
		s.release(p)
	})
	return err == nil, err
}

// unlockParked ends the lock of parked messages.
func (s *fakeStore) unlockParked() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lockParked = false
}

// release makes the next live message behind p due. The caller holds mu.
func (s *fakeStore) release(p *parkedRow) {
	for _, q := range s.parked {
		if q.ordered && q.number == p.number && q.Key == p.Key && q.State == inbox.Following {
			q.State, q.NextAttemptAt = inbox.Retrying, time.Now()
			return
		}
	}
}

func (s *fakeStore) RetryMessage(_ context.Context, seq int64, attempts int, retryIn time.Duration, dead bool, lastError string) error {
	if err := s.step("retry"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.find(seq)
	if p == nil {
		return nil
	}
	p.Attempts, p.LastError = attempts, lastError
	p.NextAttemptAt = time.Now().Add(retryIn)
	delete(s.attempts, claimKey{p.number, p.ID})
	if dead {
		p.State, p.NextAttemptAt = inbox.Dead, time.Time{}
		s.release(p)
	}
	return nil
}

func (s *fakeStore) ListParkedMessages(_ context.Context, f inbox.Filter) ([]inbox.Parked, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []inbox.Parked
	for _, p := range s.parked {
		if p.Seq > f.After && (f.Consumer == "" || f.Consumer == p.Consumer) && len(found) < f.Limit &&
			(len(f.States) == 0 || slices.Contains(f.States, p.State)) {
			found = append(found, p.Parked)
		}
	}
	return found, nil
}

func (s *fakeStore) RedriveMessages(_ context.Context, f inbox.Filter, _ string) ([]uuid.UUID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []uuid.UUID
	for _, p := range s.parked {
		if len(f.States) > 0 && !slices.Contains(f.States, p.State) {
			continue
		}
		if p.State == inbox.Dead || p.State == inbox.TooOldState || f.Force && p.State == inbox.AlteredState ||
			len(f.States)+len(f.IDs) > 0 && p.State == inbox.Retrying {
			p.State, p.Attempts, p.NextAttemptAt = inbox.Retrying, 0, time.Now()
			delete(s.attempts, claimKey{p.number, p.ID})
			ids = append(ids, p.ID)
		}
	}
	return ids, nil
}

func (s *fakeStore) DiscardMessages(_ context.Context, _ inbox.Filter, reason string) ([]uuid.UUID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []uuid.UUID
	for _, p := range s.parked {
		if p.State != inbox.Discarded {
			p.State, p.Reason = inbox.Discarded, reason
			ids = append(ids, p.ID)
		}
	}
	return ids, nil
}

func (s *fakeStore) Register(_ context.Context, name string, _ time.Duration) (inbox.Registration, error) {
	if err := s.step("register"); err != nil {
		return inbox.Registration{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.names, name); i >= 0 {
		r := inbox.Registration{Consumer: i + 1, ForgottenUntil: s.forgotten}
		if s.horizonUntil.After(time.Now()) {
			r.Horizon, r.HorizonUntil = s.horizon, s.horizonUntil
		}
		return r, nil
	}
	s.names = append(s.names, name)
	if s.registered.IsZero() {
		s.registered, s.passed = time.Now(), time.Now()
	}
	return inbox.Registration{Consumer: len(s.names)}, nil
}

func (s *fakeStore) NoteHorizon(_ context.Context, _ int, horizon time.Duration, until time.Time) error {
	if err := s.step("horizon"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if horizon >= s.horizon || s.horizonUntil.Before(time.Now()) {
		s.horizon, s.horizonUntil = horizon, until
	}
	return nil
}

func (s *fakeStore) Newest(_ context.Context, number, limit int) ([]inbox.Seen, error) {
	if err := s.step("newest"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var seen []inbox.Seen
	for _, key := range s.order {
		if key.consumer == number {
			seen = append(seen, inbox.Seen{ID: key.id, Digest: s.claims[key].digest})
		}
	}
	return seen[max(0, len(seen)-limit):], nil
}

func (s *fakeStore) AdvanceForgotten(_ context.Context, _ int, window, maxStep time.Duration) (time.Time, error) {
	if err := s.step("advance"); err != nil {
		return time.Time{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().Add(s.ahead)
	if now.Sub(s.passed) > maxStep {
		return s.forgotten, &inbox.ClockJumpError{Since: s.passed}
	}
	s.passed = now
	if until := now.Add(-window); until.After(s.registered) && until.After(s.forgotten) {
		s.forgotten = until
	}
	return s.forgotten, nil
}

func (s *fakeStore) Forget(_ context.Context, number int, _ time.Duration, _ time.Time, limit int) (inbox.Forgotten, error) {
	if err := s.step("forget"); err != nil {
		return inbox.Forgotten{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for key, row := range s.claims {
		if n < limit && key.consumer == number && !row.stamp.IsZero() && row.stamp.Before(s.forgotten) {
			delete(s.claims, key)
			n++
		}
	}
	s.forgets = append(s.forgets, n)
	return inbox.Forgotten{IDs: n, Through: s.forgotten}, nil
}

func (s *fakeStore) ForgetDiscarded(_ context.Context, number int, _ time.Duration, limit int) (int, error) {
	if err := s.step("forget-discarded"); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	s.parked = slices.DeleteFunc(s.parked, func(p *parkedRow) bool {
		gone := p.number == number && p.State == inbox.Discarded && n < limit
		if gone {
			n++
		}
		return gone
	})
	return n, nil
}

func (s *fakeStore) MessageAttempts(context.Context, string, uuid.UUID, int) ([]inbox.Attempt, error) {
	return nil, nil
}

func (s *fakeStore) ForgetHistory(context.Context, int, time.Duration, int) (int, error) {
	return 0, nil
}

func (s *fakeStore) InboxStats(context.Context, int) (inbox.Stats, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := inbox.Stats{ForgottenUntil: s.forgotten}
	for _, p := range s.parked {
		switch p.State {
		case inbox.Retrying:
			st.Retrying++
		case inbox.Following:
			st.Following++
		case inbox.Dead:
			st.Dead++
		}
	}
	return st, nil
}

// fakeOutbox is the producer's side of the fake database: what a handler's
// writer needs of it.
type fakeOutbox struct {
	outbox.Store[*fakeTx]
	fake *fakeStore
	// conflict makes every write a conflict with an event of other content.
	conflict bool
}

func (o *fakeOutbox) Append(_ context.Context, tx *fakeTx, _ uuid.UUID, records []outbox.Record) ([]bool, error) {
	if o.conflict {
		tx.broken = true
		return nil, outbox.ErrConflict
	}
	tx.events = append(tx.events, records...)
	return make([]bool, len(records)), nil
}

func (o *fakeOutbox) Savepoint(ctx context.Context, tx *fakeTx, fn func(context.Context, *fakeTx) error) error {
	return o.fake.Savepoint(ctx, tx, fn)
}
