package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/internal/memcontrol"
	"github.com/boxpair/boxpair/store/inbox"
)

var errCrashed = fmt.Errorf("the process is dead: %w", errOutage)

// simStore is the way of one process to the database. Each statement waits for its
// turn, and may fail before or after it did its work.
type simStore struct {
	*memcontrol.Store

	proc *simProcess
	db   *simDB
}

func (s *simStore) Classify(err error) inbox.ErrorClass { return (*fakeStore)(nil).Classify(err) }

// statement is one that commits by itself.
func (s *simStore) statement(ctx context.Context, name string, do func()) error {
	return s.proc.call(ctx, &simCall{name: name, fallible: true, do: do})
}

// lock begins a transaction once nobody holds what it needs.
func (s *simStore) lock(ctx context.Context, name string, wait time.Duration, claims, keys []claimKey, then func(*simTx)) (*simTx, error) {
	c := &simCall{name: name, fallible: true, ready: func() bool {
		return s.db.claimsFree(claims) && s.db.keysFree(keys)
	}}
	if wait > 0 {
		c.until = time.Now().Add(wait)
	}
	var tx *simTx
	c.do = func() {
		tx = s.db.begin(s.proc)
		tx.claims, tx.keys = claims, keys
		then(tx)
	}
	err := s.proc.call(ctx, c)
	if err != nil && tx != nil {
		s.rollback(tx) // the answer was lost, and with it the connection
	}
	return tx, err
}

// rollback is the end of a transaction that is not committed. Of a dead process, the
// database finds that out later.
func (s *simStore) rollback(tx *simTx) {
	s.db.sim.mu.Lock()
	defer s.db.sim.mu.Unlock()
	if !s.proc.dead {
		tx.end(false)
	}
}

func (s *simStore) commit(ctx context.Context, name string, tx *simTx) error {
	if tx.broken {
		s.rollback(tx)
		return fmt.Errorf("commit: %w", inbox.ErrRolledBack)
	}
	return s.proc.call(ctx, &simCall{name: "commit " + name, tx: tx, fallible: true})
}

func (s *simStore) Apply(ctx context.Context, c inbox.Claim, fn func(context.Context, *simTx) error) (v inbox.Verdict, err error) {
	defer func() { s.db.sim.troubled(c.ID, err) }()
	s.db.sim.begins(c.Consumer)
	key := claimKey{c.Consumer, c.ID}
	name := fmt.Sprintf("claim %s by %d", short(c.ID), c.Consumer)
	var early *simTx // what an optimistic handler has done
	var failed error
	if c.Optimistic {
		early = &simTx{db: s.db, proc: s.proc}
		if failed = fn(ctx, early); failed != nil && ctx.Err() != nil {
			return inbox.None, failed
		}
	}
	verdict := inbox.None
	tx, err := s.lock(ctx, name, c.LockTimeout, []claimKey{key}, lockOf(keyLock(c.Consumer, c.Key)), func(*simTx) { verdict = s.db.meet(&c) })
	if err != nil {
		return inbox.None, err
	}
	if verdict == inbox.Applied && s.db.blocked(c.Consumer, c.Key) {
		verdict = inbox.Followed
	}
	switch verdict {
	case inbox.Followed:
		tx.writes = append(tx.writes, func() { s.db.follow(&c) })
	case inbox.Applied:
		tx.writes = append(tx.writes, func() { s.db.insert(c.Consumer, c.ID, c.Digest, c.Stamp, true) })
		err := s.run(tx, func() error {
			if early == nil {
				return fn(ctx, tx)
			}
			tx.writes = append(tx.writes, early.writes...)
			tx.broken, tx.spoiled = early.broken, early.spoiled
			return failed
		})
		if err != nil {
			return inbox.None, err
		}
	default:
		s.rollback(tx)
		return verdict, nil
	}
	if err := s.commit(ctx, name, tx); err != nil {
		return inbox.None, err
	}
	return verdict, nil
}

// run runs a handler, and rolls back however it fails.
func (s *simStore) run(tx *simTx, fn func() error) (err error) {
	returned := false
	defer func() {
		if err != nil || !returned {
			s.rollback(tx)
		}
	}()
	err = fn()
	returned = true
	return err
}

// ApplyGroup takes all locks at once: in which order a database takes them is a question of its own
// tests.
func (s *simStore) ApplyGroup(ctx context.Context, cs []inbox.Claim, fn func(context.Context, *simTx, []int) error) ([]inbox.Verdict, error) {
	s.db.sim.begins(cs[0].Consumer)
	var claims, keys []claimKey
	var ids []uuid.UUID
	for i := range cs {
		ids = append(ids, cs[i].ID)
		claims = append(claims, claimKey{cs[i].Consumer, cs[i].ID})
		if cs[i].Key != "" {
			keys = append(keys, keyLock(cs[i].Consumer, cs[i].Key))
		}
	}
	name := fmt.Sprintf("claim group %s by %d", shorts(ids), cs[0].Consumer)
	verdicts := make([]inbox.Verdict, len(cs))
	tx, err := s.lock(ctx, name, cs[0].LockTimeout, claims, keys, func(*simTx) {
		for i := range cs {
			verdicts[i] = s.db.meet(&cs[i])
		}
	})
	if err != nil {
		return nil, err
	}
	var run []int
	write := false
	for i := range cs {
		c := &cs[i]
		switch {
		case verdicts[i] != inbox.Applied:
			continue
		case s.db.blocked(c.Consumer, c.Key):
			verdicts[i] = inbox.Followed
			tx.writes = append(tx.writes, func() { s.db.follow(c) })
		default:
			run = append(run, i)
			tx.writes = append(tx.writes, func() { s.db.insert(c.Consumer, c.ID, c.Digest, c.Stamp, true) })
		}
		write = true
	}
	if !write {
		s.rollback(tx)
		return verdicts, nil
	}
	if len(run) > 0 {
		if err := s.run(tx, func() error { return fn(ctx, tx, run) }); err != nil {
			return nil, err
		}
	}
	if err := s.commit(ctx, name, tx); err != nil {
		return nil, err
	}
	return verdicts, nil
}

func (s *simStore) Savepoint(context.Context, *simTx, func(context.Context, *simTx) error) error {
	return errors.New("not simulated")
}

// count is one statement.
func (s *simStore) count(ctx context.Context, name string, number int, ids []uuid.UUID, change func(claimKey, *attemptRow) int) ([]int, error) {
	counts := make([]int, len(ids))
	err := s.statement(ctx, fmt.Sprintf("%s %s by %d", name, shorts(ids), number), func() {
		for i, id := range ids {
			key := claimKey{number, id}
			row := s.db.attempts[key]
			counts[i] = change(key, &row)
			s.db.attempts[key] = row
		}
	})
	return counts, err
}

func (s *simStore) Started(ctx context.Context, number int, ids []uuid.UUID, within time.Duration) ([]int, error) {
	return s.count(ctx, "start", number, ids, func(key claimKey, r *attemptRow) int {
		starts := r.start(within)
		if s.db.begun[key] == nil {
			s.db.begun[key] = make(map[*simProcess]int)
		}
		if starts > 0 {
			s.db.begun[key][s.proc]++
		}
		return starts
	})
}

func (s *simStore) Unstarted(ctx context.Context, number int, ids []uuid.UUID) error {
	_, err := s.count(ctx, "unstart", number, ids, func(key claimKey, r *attemptRow) int {
		if by := s.db.begun[key]; by[s.proc] > 0 {
			by[s.proc]--
		}
		r.starts, r.changed = max(r.starts-1, 0), time.Now()
		return r.starts
	})
	return err
}

func (s *simStore) Failed(ctx context.Context, number int, id uuid.UUID, why string) (int, error) {
	counts, err := s.count(ctx, "failed", number, []uuid.UUID{id}, func(key claimKey, r *attemptRow) int {
		s.db.sim.counted(why, id)
		delete(s.db.begun, key)
		r.attempts++
		r.starts = 0
		return r.attempts
	})
	return counts[0], err
}

func (s *simStore) ParkMessage(ctx context.Context, p inbox.Parking) (inbox.Verdict, error) {
	m := p.Message
	c := inbox.Claim{Consumer: p.Consumer, ID: m.ID, Digest: m.Digest, Stamp: m.Stamp}
	name := fmt.Sprintf("park %s by %d as %s", short(m.ID), p.Consumer, p.State)
	aside := p.State == inbox.TooOldState || p.State == inbox.AlteredState
	claim, key := claimKey{p.Consumer, m.ID}, claimKey{}
	if p.Ordered && p.State == inbox.Retrying && !p.Fresh {
		key = keyLock(p.Consumer, m.Key)
	}
	if aside {
		claim = claimKey{}
	}
	verdict := inbox.Applied
	tx, err := s.lock(ctx, name, 0, lockOf(claim), lockOf(key), func(tx *simTx) {
		if !aside {
			verdict = s.db.meet(&c)
		}
		if ahead := s.db.ahead(p.Consumer, m.Key); p.Fresh && p.Ordered && ahead != nil {
			p.State, tx.row = inbox.Following, ahead.Seq
		}
	})
	if err != nil {
		return inbox.None, err
	}
	switch {
	case verdict == inbox.Duplicate, p.Fresh && verdict != inbox.Applied:
		s.rollback(tx)
		return verdict, nil
	}
	switch verdict {
	case inbox.TooOld:
		aside, p.State = true, inbox.TooOldState
	case inbox.Altered:
		aside, p.State = true, inbox.AlteredState
	}
	verdict = inbox.Applied
	tx.writes = append(tx.writes, func() {
		if !aside {
			s.db.insert(c.Consumer, c.ID, c.Digest, c.Stamp, false)
		}
		if !s.db.park(p, !aside) {
			verdict = inbox.Duplicate
		}
	})
	if err := s.commit(ctx, name, tx); err != nil {
		return inbox.None, err
	}
	return verdict, nil
}

func (s *simStore) DueMessages(ctx context.Context, number, limit int) (seqs []int64, next time.Duration, err error) {
	err = s.statement(ctx, fmt.Sprintf("due of %d", number), func() {
		now := time.Now()
		for _, p := range s.db.parked {
			switch wait := p.NextAttemptAt.Sub(now); {
			case p.number != number || p.State != inbox.Retrying || !s.db.first(p):
			case wait <= 0:
				seqs = append(seqs, p.Seq)
			case next == 0 || wait < next:
				next = wait
			}
		}
	})
	return seqs[:min(limit, len(seqs))], next, err
}

func (s *simStore) ApplyParked(ctx context.Context, c inbox.Claim, seq int64, fn func(context.Context, *simTx, *inbox.Parked) error) (done bool, err error) {
	s.db.sim.begins(c.Consumer)
	name := fmt.Sprintf("take parked %d by %d", seq, c.Consumer)
	var at *simParked
	if err := s.statement(ctx, name+", its place", func() { at = s.db.find(seq) }); err != nil || at == nil {
		return false, err
	}
	defer func() { s.db.sim.troubled(at.ID, err) }()
	claim, key := claimKey{}, at.lock()
	if !at.claimed {
		claim = claimKey{at.number, at.ID}
	}
	var row *simParked
	run := false
	tx, err := s.lock(ctx, name, c.LockTimeout, lockOf(claim), lockOf(key), func(tx *simTx) {
		if row = s.db.find(seq); row == nil || !s.db.rowFree(seq) || !s.db.due(row) {
			row = nil
			return
		}
		tx.row = seq
		run = row.claimed || s.claimParked(tx, row)
	})
	if err != nil || row == nil {
		if tx != nil {
			s.rollback(tx)
		}
		return false, err
	}
	if run {
		m := row.Parked
		if err := s.run(tx, func() error { return fn(ctx, tx, &m) }); err != nil {
			return false, err
		}
		tx.writes = append(tx.writes, func() { s.db.remove(row) })
	}
	if err := s.commit(ctx, name, tx); err != nil {
		return false, err
	}
	return run, nil
}

// claimParked claims a message that was too old and redriven, and tells whether it is
// to run.
func (s *simStore) claimParked(tx *simTx, p *simParked) bool {
	row := s.db.claims[claimKey{p.number, p.ID}]
	switch {
	case row == nil:
		tx.writes = append(tx.writes, func() { s.db.insert(p.number, p.ID, p.Digest, time.Now(), true) })
		return true
	case row.digest.Matches(p.Digest):
		tx.writes = append(tx.writes, func() { s.db.remove(p) })
	default:
		tx.writes = append(tx.writes, func() {
			p.State, p.NextAttemptAt = inbox.AlteredState, time.Time{}
			s.db.promote(p)
		})
	}
	return false
}

func (s *simStore) RetryMessage(ctx context.Context, seq int64, attempts int, retryIn time.Duration, dead bool, lastError string) error {
	ready := func() bool {
		p := s.db.find(seq)
		return p == nil || s.db.keysFree(lockOf(p.lock())) && s.db.rowFree(seq)
	}
	return s.proc.call(ctx, &simCall{name: fmt.Sprintf("retry parked %d", seq), fallible: true, ready: ready, do: func() {
		p := s.db.find(seq)
		if p == nil || p.State != inbox.Retrying {
			return
		}
		if attempts > p.Attempts {
			s.db.sim.counted(lastError, p.ID)
		}
		p.Attempts, p.LastError = attempts, lastError
		p.NextAttemptAt = time.Now().Add(retryIn)
		delete(s.db.attempts, claimKey{p.number, p.ID})
		if dead {
			p.State, p.NextAttemptAt = inbox.Dead, time.Time{}
			s.db.everAside[p.content()] = true
			s.db.promote(p)
		}
	}})
}

func (s *simStore) ListParkedMessages(ctx context.Context, f inbox.Filter) (found []inbox.Parked, err error) {
	err = s.statement(ctx, "list parked", func() {
		for _, p := range s.db.parked {
			if s.db.selects(f, p) && len(found) < f.Limit {
				found = append(found, p.Parked)
			}
		}
	})
	return found, err
}

func (s *simStore) RedriveMessages(ctx context.Context, f inbox.Filter, _ string) (ids []uuid.UUID, err error) {
	err = s.statement(ctx, "redrive", func() { ids = s.db.redrive(f) })
	return ids, err
}

func (s *simStore) DiscardMessages(ctx context.Context, f inbox.Filter, reason string) (ids []uuid.UUID, err error) {
	err = s.statement(ctx, "discard", func() { ids = s.db.discard(f, reason) })
	return ids, err
}

func (s *simStore) Register(ctx context.Context, name string, _ time.Duration) (r inbox.Registration, err error) {
	err = s.statement(ctx, "register "+name, func() {
		i := slices.IndexFunc(s.db.consumers, func(c *simConsumer) bool { return c.name == name })
		if i < 0 {
			i = len(s.db.consumers)
			s.db.consumers = append(s.db.consumers, &simConsumer{name: name, born: time.Now()})
		}
		r = inbox.Registration{Consumer: i + 1, ForgottenUntil: s.db.consumers[i].forgotten}
	})
	return r, err
}

func (s *simStore) Newest(ctx context.Context, number, limit int) (seen []inbox.Seen, err error) {
	err = s.statement(ctx, fmt.Sprintf("newest of %d", number), func() {
		var keys []claimKey
		for key, row := range s.db.claims {
			if key.consumer == number && row.applied > 0 {
				keys = append(keys, key)
			}
		}
		slices.SortFunc(keys, func(a, b claimKey) int { return int(s.db.claims[a].applied - s.db.claims[b].applied) })
		for _, key := range keys[max(0, len(keys)-limit):] {
			seen = append(seen, inbox.Seen{ID: key.id, Digest: s.db.claims[key].digest})
		}
	})
	return seen, err
}

func (s *simStore) AdvanceForgotten(ctx context.Context, number int, window, _ time.Duration) (until time.Time, err error) {
	err = s.statement(ctx, fmt.Sprintf("advance %d", number), func() {
		c, now := s.db.consumers[number-1], time.Now()
		if to := now.Add(-window); !to.Before(c.born) && to.After(c.forgotten) {
			c.forgotten = to
			c.steps = append(c.steps, simStep{now, to})
		}
		until = c.forgotten
	})
	return until, err
}

func (s *simStore) Forget(ctx context.Context, number int, grace time.Duration, after time.Time, limit int) (f inbox.Forgotten, err error) {
	err = s.statement(ctx, fmt.Sprintf("forget of %d", number), func() {
		var until time.Time
		for _, step := range s.db.consumers[number-1].steps {
			if time.Since(step.at) >= grace {
				until = step.until
			}
		}
		var keys []claimKey
		for key, row := range s.db.claims {
			if key.consumer == number && row.applied > 0 && row.stamp.Before(until) && !row.stamp.Before(after) {
				keys = append(keys, key)
			}
		}
		slices.SortFunc(keys, func(a, b claimKey) int { return s.db.claims[a].stamp.Compare(s.db.claims[b].stamp) })
		for _, key := range keys[:min(limit, len(keys))] {
			f.IDs++
			f.Through = s.db.claims[key].stamp
			delete(s.db.claims, key)
		}
	})
	return f, err
}

// ForgetDiscarded removes nothing, so that what was discarded can be accounted for.
func (s *simStore) ForgetDiscarded(ctx context.Context, number int, _ time.Duration, _ int) (int, error) {
	return 0, s.statement(ctx, fmt.Sprintf("forget discarded of %d", number), func() {})
}

// The history decides nothing.
func (s *simStore) MessageAttempts(context.Context, string, uuid.UUID, int) ([]inbox.Attempt, error) {
	return nil, nil
}

func (s *simStore) ForgetHistory(context.Context, int, time.Duration, int) (int, error) {
	return 0, nil
}

func (s *simStore) InboxStats(context.Context, int) (inbox.Stats, error) {
	return inbox.Stats{}, errors.New("not simulated")
}

func (s *simStore) NoteHorizon(context.Context, int, time.Duration, time.Time) error { return nil }
