package memstore

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

// Live tells whether the event will still be sent.
func (p *Parked) Live() bool { return p.State == outbox.Retrying || p.State == outbox.Following }

// LineOf returns the Seqs of the live parked events of a key, in order. An event without a key has
// no line.
func (f *Store) LineOf(shard int, key string) []int64 {
	var line []int64
	if key == "" {
		return nil
	}
	for seq, p := range f.Parked {
		if p.Shard == shard && p.Key == key && p.Live() {
			line = append(line, seq)
		}
	}
	slices.Sort(line)
	return line
}

// DeadOf returns the dead events of a key.
func (f *Store) DeadOf(shard int, key string) (dead []int64) {
	for seq, p := range f.Parked {
		if p.Shard == shard && p.Key == key && p.State == outbox.Dead {
			dead = append(dead, seq)
		}
	}
	slices.Sort(dead)
	return dead
}

// IsHead tells whether p is the next event of its key to be sent.
func (f *Store) IsHead(seq int64, p *Parked) bool {
	return p.Key == "" || f.LineOf(p.Shard, p.Key)[0] == seq
}

// DeadBefore tells whether an earlier event of its key is dead.
func (f *Store) DeadBefore(seq int64, p *Parked) bool {
	dead := f.DeadOf(p.Shard, p.Key)
	return p.Key != "" && len(dead) > 0 && dead[0] < seq
}

// HasDead tells whether a key has a dead event.
func (f *Store) HasDead(shard int, key string) bool {
	for _, p := range f.Parked {
		if p.Shard == shard && p.Key == key && p.State == outbox.Dead {
			return true
		}
	}
	return false
}

// Lift makes the first live event of a key due.
func (f *Store) Lift(shard int, key string) {
	if line := f.LineOf(shard, key); len(line) > 0 {
		p := f.Parked[line[0]]
		p.State, p.Due = outbox.Retrying, f.Clock()
	}
}

// Blocked implements [outbox.RelayStore].
func (f *Store) Blocked(_ context.Context, shards []int, hold bool, after outbox.BlockedKey, limit int) ([]outbox.BlockedKey, error) {
	leave, err := f.Enter("Blocked")
	if err != nil {
		return nil, err
	}
	defer leave()
	set := make(map[outbox.BlockedKey]bool)
	if f.Flaws.NoBlocked {
		return nil, nil
	}
	for _, p := range f.Parked {
		if p.Key != "" && slices.Contains(shards, p.Shard) && (p.Live() || hold && p.State == outbox.Dead) {
			set[outbox.BlockedKey{Shard: p.Shard, Key: p.Key}] = true
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

// Heal implements [outbox.RelayStore].
func (f *Store) Heal(_ context.Context, relay string, leases []outbox.Lease, hold bool) error {
	leave, err := f.Enter("Heal")
	if err != nil {
		return err
	}
	defer leave()
	for _, l := range leases {
		if !f.Owns(relay, l) {
			continue
		}
		for _, p := range f.Parked {
			if p.Shard != l.Shard || p.Key == "" || !p.Live() {
				continue
			}
			seq := f.LineOf(p.Shard, p.Key)[0]
			if first := f.Parked[seq]; first.State == outbox.Following && (!hold || !f.DeadBefore(seq, first)) {
				first.State, first.Due = outbox.Retrying, f.Clock()
			}
		}
	}
	return nil
}

// Fenced runs a change under a lease, if relay still has the lease.
func (f *Store) Fenced(method, relay string, lease outbox.Lease, change func()) (lost bool, err error) {
	leave, err := f.Enter(method)
	if err != nil {
		return false, err
	}
	defer leave()
	if !f.Owns(relay, lease) {
		return true, nil
	}
	change()
	return false, nil
}

// Park implements [outbox.RelayStore].
func (f *Store) Park(_ context.Context, relay string, lease outbox.Lease, failures []outbox.Failure) (bool, error) {
	return f.Fenced("Park", relay, lease, func() {
		for _, x := range failures {
			if f.Take(lease.Shard, x.Seq, x.Round) {
				f.Parked[x.Seq] = &Parked{Shard: lease.Shard, Key: f.Queued(lease.Shard, x.Seq).Key}
				f.Record(relay, x)
			}
		}
	})
}

// Record notes the failure of an attempt.
func (f *Store) Record(relay string, x outbox.Failure) {
	p := f.Parked[x.Seq]
	p.State, p.Attempts, p.Due = outbox.Retrying, x.Attempts, f.Clock()+x.RetryIn
	if x.Dead {
		p.State = outbox.Dead
	}
	f.Failures = append(f.Failures, Failure{x, f.NumberOf(x.Seq), relay})
}

// Follow implements [outbox.RelayStore].
func (f *Store) Follow(_ context.Context, relay string, lease outbox.Lease, marks []outbox.Mark) (bool, error) {
	return f.Fenced("Follow", relay, lease, func() {
		for _, m := range marks {
			if f.Take(m.Shard, m.Seq, m.Round) {
				f.Parked[m.Seq] = &Parked{Shard: m.Shard, Key: f.Log[m.Seq].Key, State: outbox.Following}
			}
		}
	})
}

// ParkedRow returns the row of a parked event.
func (f *Store) ParkedRow(seq int64) outbox.Queued {
	p := f.Parked[seq]
	q := f.Queued(p.Shard, seq)
	q.Attempts, q.State, q.Round = p.Attempts, p.State, 0
	return q
}

// Due implements [outbox.RelayStore].
func (f *Store) Due(_ context.Context, shards []int, hold bool, after outbox.DuePoint, longest time.Duration, limit int) ([]outbox.Queued, time.Duration, error) {
	leave, err := f.Enter("Due")
	if err != nil {
		return nil, 0, err
	}
	defer leave()
	var rows []outbox.Queued
	next := time.Duration(0)
	for seq, p := range f.Parked {
		if !slices.Contains(shards, p.Shard) || p.State != outbox.Retrying || !f.IsHead(seq, p) || hold && f.DeadBefore(seq, p) {
			continue
		}
		row := f.ParkedRow(seq)
		row.DueAt = time.Unix(0, 0).Add(p.Due)
		if wait := p.Due - f.Clock(); wait > 0 && wait <= longest {
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

// FetchParked implements [outbox.RelayStore].
func (f *Store) FetchParked(_ context.Context, keys []outbox.BlockedKey, hold bool, limit int) ([][]outbox.Queued, error) {
	leave, err := f.Enter("FetchParked")
	if err != nil {
		return nil, err
	}
	defer leave()
	found := make([][]outbox.Queued, len(keys))
	for i, k := range keys {
		all := f.LineOf(k.Shard, k.Key)
		if dead := f.DeadOf(k.Shard, k.Key); hold && len(dead) > 0 {
			all = append(all, dead[0])
			slices.Sort(all)
		}
		for _, seq := range all[:min(limit, len(all))] {
			found[i] = append(found[i], f.ParkedRow(seq))
		}
	}
	return found, nil
}

// Retry implements [outbox.RelayStore].
func (f *Store) Retry(_ context.Context, relay string, lease outbox.Lease, failures []outbox.Failure, hold bool) (bool, error) {
	return f.Fenced("Retry", relay, lease, func() {
		for _, x := range failures {
			if p := f.Parked[x.Seq]; p != nil && p.Live() && p.Attempts == x.Attempts-1 {
				f.Record(relay, x)
				if x.Dead && !hold {
					f.Lift(p.Shard, p.Key)
				}
			}
		}
	})
}

// Sent implements [outbox.RelayStore].
func (f *Store) Sent(_ context.Context, relay string, marks []outbox.Mark, hold bool) ([]int, error) {
	leave, err := f.Enter("Sent")
	if err != nil {
		return nil, err
	}
	defer leave()
	lost := make(map[int]bool)
	for _, m := range marks {
		p := f.Parked[m.Seq]
		switch {
		case !f.Owns(relay, m.Lease):
			lost[m.Shard] = true
		case p != nil && p.Live():
			delete(f.Parked, m.Seq)
			f.Receipts[m.Seq]++
			if line := f.LineOf(p.Shard, p.Key); len(line) > 0 && (!hold || !f.DeadBefore(line[0], f.Parked[line[0]])) {
				f.Lift(p.Shard, p.Key)
			}
		}
	}
	return slices.Sorted(maps.Keys(lost)), nil
}

// Redrive makes a dead, retrying or discarded event due again, as an operator does.
func (f *Store) Redrive(seq int64) bool {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	p := f.Parked[seq]
	if p == nil || p.State != outbox.Dead && p.State != outbox.Retrying && p.State != outbox.Discarded {
		return false
	}
	p.State, p.Attempts, p.Due = outbox.Retrying, 0, f.Clock()
	f.Failures = append(f.Failures, Failure{Failure: outbox.Failure{Seq: seq}, Event: f.NumberOf(seq)}) // no attempt yet
	f.Rewind(p.Shard, seq)
	return true
}

// Discard discards a parked event, as an operator does.
func (f *Store) Discard(seq int64) bool {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	p := f.Parked[seq]
	if p == nil || p.State == outbox.Discarded {
		return false
	}
	p.State = outbox.Discarded
	f.Lift(p.Shard, p.Key)
	f.Rewind(p.Shard, seq)
	return true
}

// Replay puts a delivered event back into the queue.
func (f *Store) Replay(seq int64) bool {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	record := f.Log[seq]
	if record == nil || f.Receipts[seq] == 0 || f.Parked[seq] != nil {
		return false
	}
	if _, queued := f.Queue[record.Shard][seq]; queued {
		return false
	}
	f.Round++
	f.Replays++
	f.Enqueue(record.Shard, seq, f.Round<<20|f.Replays)
	f.Rewind(record.Shard, seq)
	return true
}

// Rewind asks the owner of a shard to read again from seq on.
func (f *Store) Rewind(shard int, seq int64) {
	s := &f.Shards[shard]
	if s.Ticket == 0 || seq < s.RewindTo {
		s.RewindTo = seq
	}
	f.Round++
	s.Ticket, s.Told = f.Round, f.Round
}

// ParkDue adds an event with one failed attempt that is due.
func (f *Store) ParkDue(topic, key string) int64 {
	seq := f.Add(topic, key)
	f.Mu.Lock()
	defer f.Mu.Unlock()
	shard := f.Log[seq].Shard
	delete(f.Queue[shard], seq)
	f.Parked[seq] = &Parked{Shard: shard, Key: key, State: outbox.Retrying, Attempts: 1, Due: f.Clock()}
	return seq
}
