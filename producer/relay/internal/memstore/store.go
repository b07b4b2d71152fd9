// Package memstore keeps the relay's side of an outbox in memory, for tests. The store honours the
// contract of [outbox.RelayStore], fences included, except for the [Flaws] that a test chooses.
package memstore

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/internal/memcontrol"
	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// Store is the relay's side of an outbox in memory, with the clock of the test.
type Store struct {
	Database string // identity of the database
	Clock    func() time.Duration
	Local    wakeup.Signal

	Mu       sync.Mutex
	Seq      int64
	Events   int64 // number of events ever written; the version of the latest event
	Round    int64
	Replays  int64 // number of replays, a part of their rounds; a fail-over does not set it back
	Log      map[int64]*outbox.Record
	Queue    [idgen.Shards]map[int64]int64 // seq → round
	Places   [idgen.Shards][]int64         // the index of the queue: its rows, and some removed rows
	Parked   map[int64]*Parked
	Deferred map[int64]time.Duration // when events are due
	Shards   [idgen.Shards]Shard
	Relays   map[string]time.Duration
	Routes   map[string][]outbox.StalledRoute
	Reports  map[string]outbox.RelayReport // the latest, by relay
	Open     map[string]*Tx
	Txs      int
	Receipts map[int64]int // deliveries recorded
	Failures []Failure
	Fetched  int  // rows
	Passed   int  // places of removed rows, stepped over by fetches
	Held     bool // a transaction holds a snapshot: places stay
	Ranges   int  // ranges read
	Calls    map[string]int
	Fail     func(method string) error // called first; an error replaces the statement
	Last     int64                     // highest committed Seq
	Untrue   []string                  // descriptions of untrue kept places
	Flaws    Flaws
	Control  memcontrol.Store
	Sessions map[int64]bool // witnesses of sessions that last
}

// Flaws are ways in which a store may break its contract.
type Flaws struct {
	AnyRound, NoWriters, NoBlocked, KeepsDeferred, SameRound, OwnTTL bool
}

// Parked is a parked event.
type Parked struct {
	Shard    int
	Key      string
	State    outbox.State
	Attempts int
	Due      time.Duration
}

// Shard is the row of a shard.
type Shard struct {
	Owner    string
	Epoch    int64
	Until    time.Duration
	TTL      time.Duration // of the owner
	RewindTo int64
	Ticket   int64       // of the pending rewind, or 0
	Told     int64       // the last ticket
	Low      int64       // the kept bottom …
	LowEpoch int64       // … since this epoch
	Tail     outbox.Tail // the kept tail
	History  string
	Witness  int64 // of the owner …
	Attested int64 // … at this epoch
}

// Failure is a recorded failed attempt.
type Failure struct {
	outbox.Failure
	Event int64 // number of the event
	Relay string
}

// Tx is a producer's transaction: its events have IDs and are not visible yet.
type Tx struct {
	Store *Store
	Name  string
	Seqs  []int64
	Due   map[int64]time.Duration // of deferred events
}

// New returns an empty store. Its clock may be nil if no statement is run.
func New(clock func() time.Duration) *Store {
	f := &Store{
		Clock:    clock,
		Log:      make(map[int64]*outbox.Record),
		Parked:   make(map[int64]*Parked),
		Deferred: make(map[int64]time.Duration),
		Relays:   make(map[string]time.Duration),
		Routes:   make(map[string][]outbox.StalledRoute),
		Reports:  make(map[string]outbox.RelayReport),
		Open:     make(map[string]*Tx),
		Receipts: make(map[int64]int),
		Sessions: make(map[int64]bool),
		Calls:    make(map[string]int),
	}
	f.Control.Now = func() time.Time { return time.Unix(0, 0).Add(clock()) }
	for i := range f.Queue {
		f.Queue[i] = make(map[int64]int64)
	}
	return f
}

// Begin begins a transaction of a producer.
func (f *Store) Begin() *Tx {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.Txs++
	tx := &Tx{Store: f, Name: fmt.Sprint("tx", f.Txs)}
	f.Open[tx.Name] = tx
	return tx
}

// Write gives an event its ID.
func (tx *Tx) Write(topic, key string) int64 {
	f := tx.Store
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.Seq++
	f.Events++
	id := idgen.Of("test", "source", f.Events, 0)
	f.Log[f.Seq] = &outbox.Record{
		Event: transport.Event{ID: id, Topic: topic, Key: key, Version: f.Events, CorrelationID: "c", Payload: []byte("payload")},
		Shard: idgen.Shard(key, id),
	}
	tx.Seqs = append(tx.Seqs, f.Seq)
	return f.Seq
}

// Commit commits and returns the wake-up for its events.
func (tx *Tx) Commit() (n wakeup.Wakeup) {
	f := tx.Store
	f.Mu.Lock()
	for _, seq := range tx.Seqs {
		n = n.With(f.Log[seq])
		if due, ok := tx.Due[seq]; ok && due > f.Clock() {
			n.Deferred = true
			f.Deferred[seq] = due
		} else {
			f.Enqueue(f.Log[seq].Shard, seq, f.FirstRound(seq))
		}
		f.Last = max(f.Last, seq)
	}
	delete(f.Open, tx.Name)
	f.Mu.Unlock()
	f.Local.Send(n)
	return n
}

// FirstRound returns a round unique among all events that had this Seq.
func (f *Store) FirstRound(seq int64) int64 {
	if f.Flaws.SameRound {
		return 0
	}
	return -f.Log[seq].Version
}

// Rollback ends the transaction without its events. Their IDs are not given out again.
func (tx *Tx) Rollback() {
	f := tx.Store
	f.Mu.Lock()
	defer f.Mu.Unlock()
	for _, seq := range tx.Seqs {
		delete(f.Log, seq)
	}
	delete(f.Open, tx.Name)
}

// Add commits one event.
func (f *Store) Add(topic, key string) int64 {
	tx := f.Begin()
	seq := tx.Write(topic, key)
	tx.Commit()
	return seq
}

// Enter counts a statement, and locks.
func (f *Store) Enter(method string) (func(), error) {
	f.Mu.Lock()
	f.Calls[method]++
	if f.Fail != nil {
		if err := f.Fail(method); err != nil {
			f.Mu.Unlock()
			return nil, err
		}
	}
	return f.Mu.Unlock, nil
}

// Heartbeat implements [outbox.RelayStore].
func (f *Store) Heartbeat(_ context.Context, relay string, ttl time.Duration) (int, error) {
	leave, err := f.Enter("Heartbeat")
	if err != nil {
		return 0, err
	}
	defer leave()
	f.Relays[relay] = f.Clock() + ttl
	live := 0
	for _, until := range f.Relays {
		if until > f.Clock() {
			live++
		}
	}
	return live, nil
}

// Acquire implements [outbox.RelayStore].
func (f *Store) Acquire(_ context.Context, relay string, ttl time.Duration, n int) ([]outbox.Grant, error) {
	leave, err := f.Enter("Acquire")
	if err != nil {
		return nil, err
	}
	defer leave()
	var grants []outbox.Grant
	for i := range f.Shards {
		s := &f.Shards[i]
		judge := s.TTL
		if f.Flaws.OwnTTL {
			judge = ttl
		}
		if len(grants) == n || s.Owner != "" && s.Until > f.Clock() && s.Until <= f.Clock()+2*judge {
			continue
		}
		g := outbox.Grant{Abrupt: s.Owner != "", Ticket: s.Told}
		s.Owner, s.Until, s.TTL = relay, f.Clock()+ttl, ttl
		s.Epoch++
		if s.LowEpoch == s.Epoch-1 && max(s.Low, s.Tail.Seq) <= f.Last {
			s.LowEpoch, g.Low, g.Tail, g.History = s.Epoch, s.Bottom(), s.Kept(), s.History
		}
		g.Lease = outbox.Lease{Shard: i, Epoch: s.Epoch}
		grants = append(grants, g)
	}
	return grants, nil
}

// Owns is the fence: it tells whether relay has the lease.
func (f *Store) Owns(relay string, l outbox.Lease) bool {
	s := &f.Shards[l.Shard]
	return s.Owner == relay && s.Epoch == l.Epoch
}

// Renew implements [outbox.RelayStore].
func (f *Store) Renew(_ context.Context, relay string, ttl time.Duration, leases []outbox.Lease) ([]outbox.Renewal, error) {
	leave, err := f.Enter("Renew")
	if err != nil {
		return nil, err
	}
	defer leave()
	var renewals []outbox.Renewal
	for _, l := range leases {
		if s := &f.Shards[l.Shard]; f.Owns(relay, l) {
			s.Until, s.TTL = f.Clock()+ttl, ttl
			renewals = append(renewals, outbox.Renewal{Lease: l, Rewind: s.Ticket != 0, RewindTo: s.RewindTo, Ticket: s.Ticket})
		}
	}
	return renewals, nil
}

// Release implements [outbox.RelayStore].
func (f *Store) Release(_ context.Context, relay string, leases []outbox.Lease, forget bool) error {
	leave, err := f.Enter("Release")
	if err != nil {
		return err
	}
	defer leave()
	for _, l := range leases {
		if f.Owns(relay, l) {
			f.Shards[l.Shard].Owner = ""
		}
	}
	if forget {
		delete(f.Relays, relay)
	}
	return nil
}

// ReportRelay implements [outbox.RelayStore].
func (f *Store) ReportRelay(_ context.Context, relay string, r outbox.Report) error {
	leave, err := f.Enter("ReportRelay")
	if err != nil {
		return err
	}
	defer leave()
	f.Reports[relay] = r.RelayReport
	if r.StalledChanged {
		f.Routes[relay] = r.Stalled
	}
	return nil
}

// ClearRewind implements [outbox.RelayStore].
func (f *Store) ClearRewind(_ context.Context, relay string, lease outbox.Lease, ticket int64) error {
	leave, err := f.Enter("ClearRewind")
	if err != nil {
		return err
	}
	defer leave()
	if s := &f.Shards[lease.Shard]; f.Owns(relay, lease) && s.Ticket == ticket {
		s.Low, s.Tail = s.Bottom(), s.Kept()
		s.Ticket, s.RewindTo = 0, 0
	}
	return nil
}

// Queued returns the row of a queued event.
func (f *Store) Queued(shard int, seq int64) outbox.Queued {
	q := outbox.Queued{Seq: seq, Round: f.Queue[shard][seq]}
	if record := f.Log[seq]; record != nil {
		q.Record = *record
	} else {
		q.Shard, q.Missing = shard, true
	}
	return q
}

// Fetch implements [outbox.RelayStore].
func (f *Store) Fetch(_ context.Context, ranges []outbox.Range) ([]outbox.Queued, error) {
	leave, err := f.Enter("Fetch")
	if err != nil {
		return nil, err
	}
	defer leave()
	var rows []outbox.Queued
	for _, r := range ranges {
		n := 0
		for _, seq := range f.From(r.Shard, r.After+1) {
			if n == r.Limit || r.Through != 0 && seq > r.Through {
				break
			}
			_, ok := f.Queue[r.Shard][seq]
			if !ok {
				f.Passed++
			}
			if ok && !slices.Contains(r.Except, seq) {
				rows = append(rows, f.Queued(r.Shard, seq))
				n++
			}
		}
	}
	slices.SortFunc(rows, func(a, b outbox.Queued) int { return cmp.Compare(a.Seq, b.Seq) })
	f.Fetched += len(rows)
	f.Ranges += len(ranges)
	return rows, nil
}

// FetchKey implements [outbox.RelayStore].
func (f *Store) FetchKey(_ context.Context, shard int, key string, from int64, limit int) ([]outbox.Queued, error) {
	leave, err := f.Enter("FetchKey")
	if err != nil {
		return nil, err
	}
	defer leave()
	var rows []outbox.Queued
	for _, seq := range f.From(shard, from) {
		_, ok := f.Queue[shard][seq]
		if record := f.Log[seq]; ok && record != nil && record.Key == key && len(rows) < limit {
			rows = append(rows, f.Queued(shard, seq))
		}
	}
	return rows, nil
}

// Enqueue adds a queue row.
func (f *Store) Enqueue(shard int, seq, round int64) {
	f.Queue[shard][seq] = round
	if at, ok := slices.BinarySearch(f.Places[shard], seq); !ok {
		f.Places[shard] = slices.Insert(f.Places[shard], at, seq)
	}
}

// From returns the places of a shard from seq on. It drops the places of removed rows when there
// are many.
func (f *Store) From(shard int, seq int64) []int64 {
	if !f.Held && len(f.Places[shard]) > 2*len(f.Queue[shard])+8 {
		f.Places[shard] = slices.DeleteFunc(f.Places[shard], func(seq int64) bool { _, ok := f.Queue[shard][seq]; return !ok })
	}
	at, _ := slices.BinarySearch(f.Places[shard], seq)
	return f.Places[shard][at:]
}

// Writers implements [outbox.RelayStore].
func (f *Store) Writers(context.Context) ([]string, error) {
	leave, err := f.Enter("Writers")
	if err != nil {
		return nil, err
	}
	defer leave()
	if f.Flaws.NoWriters {
		return nil, nil
	}
	return slices.Sorted(maps.Keys(f.Open)), nil
}

// Mark implements [outbox.RelayStore].
func (f *Store) Mark(_ context.Context, relay string, marks []outbox.Mark) ([]int, error) {
	leave, err := f.Enter("Mark")
	if err != nil {
		return nil, err
	}
	defer leave()
	lost := make(map[int]bool)
	for _, m := range marks {
		if !f.Owns(relay, m.Lease) {
			lost[m.Shard] = true
		} else if f.Take(m.Shard, m.Seq, m.Round) {
			f.Receipts[m.Seq]++
		}
	}
	return slices.Sorted(maps.Keys(lost)), nil
}

// Take removes a queue row.
func (f *Store) Take(shard int, seq, round int64) bool {
	if r, ok := f.Queue[shard][seq]; !ok || r != round && !f.Flaws.AnyRound {
		return false
	}
	delete(f.Queue[shard], seq)
	return true
}

// Listen implements [outbox.RelayStore].
func (f *Store) Listen(ctx context.Context, _ func(string)) error {
	return outbox.ErrNoSignal
}

// Notify implements [outbox.RelayStore].
func (f *Store) Notify(context.Context, string) error { return outbox.ErrNoSignal }

var _ outbox.RelayStore = (*Store)(nil)

// ID returns the dispatch ID of an event.
func (f *Store) ID(seq int64) uuid.UUID {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return f.Log[seq].ID
}

// Left returns how many events are in the queue, and how many are parked and live.
func (f *Store) Left() (queued, live int) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	for _, q := range f.Queue {
		queued += len(q)
	}
	for _, p := range f.Parked {
		if p.Live() {
			live++
		}
	}
	return queued, live
}

// State returns the state of a parked event, or "" for any other event.
func (f *Store) State(seq int64) outbox.State {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	if p := f.Parked[seq]; p != nil {
		return p.State
	}
	return ""
}

// Attempts returns the counted attempts, the newest last.
func (f *Store) Attempts(seq int64) (counted []outbox.Failure) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	for _, x := range f.Failures {
		if x.Seq == seq && x.Attempts > 0 {
			counted = append(counted, x.Failure)
		}
	}
	return counted
}
