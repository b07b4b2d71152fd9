package relay

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

func (p *fakeParked) live() bool { return p.state == outbox.Retrying || p.state == outbox.Following }

// lineOf returns the Seqs of the live parked events of a key, in order. An event
// without a key has no line but itself.
func (f *fakeStore) lineOf(shard int, key string) []int64 {
	var line []int64
	if key == "" {
		return nil
	}
	for seq, p := range f.parked {
		if p.shard == shard && p.key == key && p.live() {
			line = append(line, seq)
		}
	}
	slices.Sort(line)
	return line
}

// deadOf returns the dead events of a key.
func (f *fakeStore) deadOf(shard int, key string) (dead []int64) {
	for seq, p := range f.parked {
		if p.shard == shard && p.key == key && p.state == outbox.Dead {
			dead = append(dead, seq)
		}
	}
	slices.Sort(dead)
	return dead
}

func (f *fakeStore) isHead(seq int64, p *fakeParked) bool {
	return p.key == "" || f.lineOf(p.shard, p.key)[0] == seq
}

// deadBefore tells whether an earlier event of its key is dead.
func (f *fakeStore) deadBefore(seq int64, p *fakeParked) bool {
	dead := f.deadOf(p.shard, p.key)
	return p.key != "" && len(dead) > 0 && dead[0] < seq
}

func (f *fakeStore) hasDead(shard int, key string) bool {
	for _, p := range f.parked {
		if p.shard == shard && p.key == key && p.state == outbox.Dead {
			return true
		}
	}
	return false
}

// lift makes the first live event of a key due, if it has any.
func (f *fakeStore) lift(shard int, key string) {
	if line := f.lineOf(shard, key); len(line) > 0 {
		p := f.parked[line[0]]
		p.state, p.due = outbox.Retrying, f.clock()
	}
}

func (f *fakeStore) Blocked(_ context.Context, shards []int, hold bool, after outbox.BlockedKey, limit int) ([]outbox.BlockedKey, error) {
	leave, err := f.enter("Blocked")
	if err != nil {
		return nil, err
	}
	defer leave()
	set := make(map[outbox.BlockedKey]bool)
	if f.flaws.noBlocked {
		return nil, nil
	}
	for _, p := range f.parked {
		if p.key != "" && slices.Contains(shards, p.shard) && (p.live() || hold && p.state == outbox.Dead) {
			set[outbox.BlockedKey{Shard: p.shard, Key: p.key}] = true
		}
	}
	order := func(a, b outbox.BlockedKey) int {
		return cmp.Or(cmp.Compare(a.Shard, b.Shard), cmp.Compare(a.Key, b.Key))
	}
	var keys []outbox.BlockedKey
	for _, k := range slices.SortedFunc(maps.Keys(set), order) {
		if order(k, after) > 0 && len(keys) < limit {
			keys = append(keys, k)
		}
	}
	return keys, nil
}

func (f *fakeStore) Heal(_ context.Context, relay string, leases []outbox.Lease, hold bool) error {
	leave, err := f.enter("Heal")
	if err != nil {
		return err
	}
	defer leave()
	for _, l := range leases {
		if !f.owns(relay, l) {
			continue
		}
		for _, p := range f.parked {
			if p.shard != l.Shard || p.key == "" || !p.live() {
				continue
			}
			seq := f.lineOf(p.shard, p.key)[0]
			if first := f.parked[seq]; first.state == outbox.Following && (!hold || !f.deadBefore(seq, first)) {
				first.state, first.due = outbox.Retrying, f.clock()
			}
		}
	}
	return nil
}

// fenced is a call that changes what belongs to a lease, if relay still has it.
func (f *fakeStore) fenced(method, relay string, lease outbox.Lease, change func()) (lost bool, err error) {
	leave, err := f.enter(method)
	if err != nil {
		return false, err
	}
	defer leave()
	if !f.owns(relay, lease) {
		return true, nil
	}
	change()
	return false, nil
}

func (f *fakeStore) Park(_ context.Context, relay string, lease outbox.Lease, failures []outbox.Failure) (bool, error) {
	return f.fenced("Park", relay, lease, func() {
		for _, x := range failures {
			if f.take(lease.Shard, x.Seq, x.Round) {
				f.parked[x.Seq] = &fakeParked{shard: lease.Shard, key: f.queued(lease.Shard, x.Seq).Key}
				f.record(relay, x)
			}
		}
	})
}

func (f *fakeStore) record(relay string, x outbox.Failure) {
	p := f.parked[x.Seq]
	p.state, p.attempts, p.due = outbox.Retrying, x.Attempts, f.clock()+x.RetryIn
	if x.Dead {
		p.state = outbox.Dead
	}
	f.failures = append(f.failures, fakeFailure{x, f.numberOf(x.Seq), relay})
}

func (f *fakeStore) Follow(_ context.Context, relay string, lease outbox.Lease, marks []outbox.Mark) (bool, error) {
	return f.fenced("Follow", relay, lease, func() {
		for _, m := range marks {
			if f.take(m.Shard, m.Seq, m.Round) {
				f.parked[m.Seq] = &fakeParked{shard: m.Shard, key: f.log[m.Seq].Key, state: outbox.Following}
			}
		}
	})
}

func (f *fakeStore) parkedRow(seq int64) outbox.Queued {
	p := f.parked[seq]
	q := f.queued(p.shard, seq)
	q.Attempts, q.State, q.Round = p.attempts, p.state, 0
	return q
}

func (f *fakeStore) Due(_ context.Context, shards []int, hold bool, after outbox.DuePoint, longest time.Duration, limit int) ([]outbox.Queued, time.Duration, error) {
	leave, err := f.enter("Due")
	if err != nil {
		return nil, 0, err
	}
	defer leave()
	var rows []outbox.Queued
	next := time.Duration(0)
	for seq, p := range f.parked {
		if !slices.Contains(shards, p.shard) || p.state != outbox.Retrying || !f.isHead(seq, p) || hold && f.deadBefore(seq, p) {
			continue
		}
		row := f.parkedRow(seq)
		row.DueAt = time.Unix(0, 0).Add(p.due)
		if wait := p.due - f.clock(); wait > 0 && wait <= longest {
			if next == 0 || wait < next {
				next = wait
			}
		} else if cmp.Or(row.DueAt.Compare(after.At), cmp.Compare(seq, after.Seq)) > 0 {
			rows = append(rows, row)
		}
	}
	slices.SortFunc(rows, func(a, b outbox.Queued) int { return cmp.Or(a.DueAt.Compare(b.DueAt), cmp.Compare(a.Seq, b.Seq)) })
	return rows[:min(len(rows), limit)], next, nil
}

func (f *fakeStore) FetchParked(_ context.Context, shard int, key string, hold bool, limit int) ([]outbox.Queued, error) {
	leave, err := f.enter("FetchParked")
	if err != nil {
		return nil, err
	}
	defer leave()
	var rows []outbox.Queued
	all := f.lineOf(shard, key)
	if dead := f.deadOf(shard, key); hold && len(dead) > 0 {
		all = append(all, dead[0])
		slices.Sort(all)
	}
	for _, seq := range all[:min(limit, len(all))] {
		rows = append(rows, f.parkedRow(seq))
	}
	return rows, nil
}

func (f *fakeStore) Retry(_ context.Context, relay string, lease outbox.Lease, failures []outbox.Failure, hold bool) (bool, error) {
	return f.fenced("Retry", relay, lease, func() {
		for _, x := range failures {
			if p := f.parked[x.Seq]; p != nil && p.live() && p.attempts == x.Attempts-1 {
				f.record(relay, x)
				if x.Dead && !hold {
					f.lift(p.shard, p.key)
				}
			}
		}
	})
}

func (f *fakeStore) Sent(_ context.Context, relay string, lease outbox.Lease, seqs []int64, hold bool) (bool, error) {
	return f.fenced("Sent", relay, lease, func() {
		for _, seq := range seqs {
			if p := f.parked[seq]; p != nil && p.live() {
				delete(f.parked, seq)
				f.receipts[seq]++
				if line := f.lineOf(p.shard, p.key); len(line) > 0 && (!hold || !f.deadBefore(line[0], f.parked[line[0]])) {
					f.lift(p.shard, p.key)
				}
			}
		}
	})
}

// redrive makes a dead event due again, as an operator does.
func (f *fakeStore) redrive(seq int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.parked[seq]
	if p == nil || p.state != outbox.Dead {
		return false
	}
	p.state, p.attempts, p.due = outbox.Retrying, 0, f.clock()
	f.failures = append(f.failures, fakeFailure{Failure: outbox.Failure{Seq: seq}, event: f.numberOf(seq)}) // none yet
	f.rewind(p.shard, seq)
	return true
}

func (f *fakeStore) discard(seq int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.parked[seq]
	if p == nil || p.state == outbox.Discarded {
		return false
	}
	p.state = outbox.Discarded
	f.lift(p.shard, p.key)
	f.rewind(p.shard, seq)
	return true
}

// replay puts an event that was delivered back into the queue.
func (f *fakeStore) replay(seq int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	record := f.log[seq]
	if record == nil || f.receipts[seq] == 0 || f.parked[seq] != nil {
		return false
	}
	if _, queued := f.queue[record.Shard][seq]; queued {
		return false
	}
	f.round++
	f.replays++
	f.enqueue(record.Shard, seq, f.round<<20|f.replays)
	f.rewind(record.Shard, seq)
	return true
}

func (f *fakeStore) rewind(shard int, seq int64) {
	s := &f.shards[shard]
	if s.ticket == 0 || seq < s.rewindTo {
		s.rewindTo = seq
	}
	f.round++
	s.ticket, s.told = f.round, f.round
}
