package relay

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
	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// fakeStore keeps the relay's side of an outbox in memory and honours the
// contract of RelayStore, fences included. Its clock is the test's.
type fakeStore struct {
	identity string // of the database
	clock    func() time.Duration
	local    wakeup.Signal

	mu       sync.Mutex
	seq      int64
	events   int64 // that were ever written: each has its number as version
	round    int64
	replays  int64 // the chance in their rounds, which a fail-over does not bring back
	log      map[int64]*outbox.Record
	queue    [idgen.Shards]map[int64]int64 // seq → round
	places   [idgen.Shards][]int64         // what an index of the queue holds: its rows, and some that have gone
	parked   map[int64]*fakeParked
	deferred map[int64]time.Duration // when they are due
	shards   [idgen.Shards]fakeShard
	relays   map[string]time.Duration
	routes   map[string][]outbox.StalledRoute
	open     map[string]*fakeTx
	txs      int
	receipts map[int64]int // deliveries recorded
	failures []fakeFailure
	fetched  int  // rows
	passed   int  // places of rows that have gone, which were stepped over
	held     bool // somebody holds a snapshot: places stay
	ranges   int  // that were looked at
	calls    map[string]int
	fail     func(method string) error // instead of the statement
	last     int64                     // highest Seq that was committed
	untrue   []string                  // what was kept and is not so
	flaws    fakeFlaws
}

// fakeFlaws are ways in which a store may break its contract.
type fakeFlaws struct {
	anyRound, noWriters, noBlocked, keepsDeferred, sameRound, ownTTL bool
}

type fakeParked struct {
	shard    int
	key      string
	state    outbox.State
	attempts int
	due      time.Duration
}

type fakeShard struct {
	owner    string
	epoch    int64
	until    time.Duration
	ttl      time.Duration // of the owner
	rewindTo int64
	ticket   int64       // of the rewind that is asked for, 0 if none is
	told     int64       // the last ticket
	low      int64       // that is kept …
	lowEpoch int64       // … since this epoch
	tail     outbox.Tail // and what is kept besides
	history  string
}

type fakeFailure struct {
	outbox.Failure
	event int64 // its number
	relay string
}

// fakeTx is a producer's transaction: its events have IDs and are not seen.
type fakeTx struct {
	store *fakeStore
	name  string
	seqs  []int64
	due   map[int64]time.Duration // of those that are deferred
}

func newFakeStore(clock func() time.Duration) *fakeStore {
	f := &fakeStore{
		clock:    clock,
		log:      make(map[int64]*outbox.Record),
		parked:   make(map[int64]*fakeParked),
		deferred: make(map[int64]time.Duration),
		relays:   make(map[string]time.Duration),
		routes:   make(map[string][]outbox.StalledRoute),
		open:     make(map[string]*fakeTx),
		receipts: make(map[int64]int),
		calls:    make(map[string]int),
	}
	for i := range f.queue {
		f.queue[i] = make(map[int64]int64)
	}
	return f
}

func (f *fakeStore) begin() *fakeTx {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.txs++
	tx := &fakeTx{store: f, name: fmt.Sprint("tx", f.txs)}
	f.open[tx.name] = tx
	return tx
}

// write gives an event its ID.
func (tx *fakeTx) write(topic, key string) int64 {
	f := tx.store
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seq++
	f.events++
	id := idgen.Of("test", "source", f.events, 0)
	f.log[f.seq] = &outbox.Record{
		Event: transport.Event{ID: id, Topic: topic, Key: key, Version: f.events, CorrelationID: "c", Payload: []byte("payload")},
		Shard: idgen.Shard(key, id),
	}
	tx.seqs = append(tx.seqs, f.seq)
	return f.seq
}

// commit tells what it has committed.
func (tx *fakeTx) commit() (n wakeup.Wakeup) {
	f := tx.store
	f.mu.Lock()
	for _, seq := range tx.seqs {
		n = n.With(f.log[seq])
		if due, ok := tx.due[seq]; ok && due > f.clock() {
			n.Deferred = true
			f.deferred[seq] = due
		} else {
			f.enqueue(f.log[seq].Shard, seq, f.firstRound(seq))
		}
		f.last = max(f.last, seq)
	}
	delete(f.open, tx.name)
	f.mu.Unlock()
	f.local.Send(n)
	return n
}

// firstRound is what no other event that is given the same Seq has.
func (f *fakeStore) firstRound(seq int64) int64 {
	if f.flaws.sameRound {
		return 0
	}
	return -f.log[seq].Version
}

func (tx *fakeTx) rollback() {
	f := tx.store
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, seq := range tx.seqs {
		delete(f.log, seq)
	}
	delete(f.open, tx.name)
}

// add commits one event.
func (f *fakeStore) add(topic, key string) int64 {
	tx := f.begin()
	seq := tx.write(topic, key)
	tx.commit()
	return seq
}

// enter counts a statement, and locks.
func (f *fakeStore) enter(method string) (func(), error) {
	f.mu.Lock()
	f.calls[method]++
	if f.fail != nil {
		if err := f.fail(method); err != nil {
			f.mu.Unlock()
			return nil, err
		}
	}
	return f.mu.Unlock, nil
}

func (f *fakeStore) Heartbeat(_ context.Context, relay string, ttl time.Duration) (int, error) {
	leave, err := f.enter("Heartbeat")
	if err != nil {
		return 0, err
	}
	defer leave()
	f.relays[relay] = f.clock() + ttl
	live := 0
	for _, until := range f.relays {
		if until > f.clock() {
			live++
		}
	}
	return live, nil
}

func (f *fakeStore) Acquire(_ context.Context, relay string, ttl time.Duration, n int) ([]outbox.Grant, error) {
	leave, err := f.enter("Acquire")
	if err != nil {
		return nil, err
	}
	defer leave()
	var grants []outbox.Grant
	for i := range f.shards {
		s := &f.shards[i]
		judge := s.ttl
		if f.flaws.ownTTL {
			judge = ttl
		}
		if len(grants) == n || s.owner != "" && s.until > f.clock() && s.until <= f.clock()+2*judge {
			continue
		}
		g := outbox.Grant{Abrupt: s.owner != "", Ticket: s.told}
		s.owner, s.until, s.ttl = relay, f.clock()+ttl, ttl
		s.epoch++
		if s.lowEpoch == s.epoch-1 && max(s.low, s.tail.Seq) <= f.last {
			s.lowEpoch, g.Low, g.Tail, g.History = s.epoch, s.bottom(), s.kept(), s.history
		}
		g.Lease = outbox.Lease{Shard: i, Epoch: s.epoch}
		grants = append(grants, g)
	}
	return grants, nil
}

// owns is the fence.
func (f *fakeStore) owns(relay string, l outbox.Lease) bool {
	s := &f.shards[l.Shard]
	return s.owner == relay && s.epoch == l.Epoch
}

func (f *fakeStore) Renew(_ context.Context, relay string, ttl time.Duration, leases []outbox.Lease) ([]outbox.Renewal, error) {
	leave, err := f.enter("Renew")
	if err != nil {
		return nil, err
	}
	defer leave()
	var renewals []outbox.Renewal
	for _, l := range leases {
		if s := &f.shards[l.Shard]; f.owns(relay, l) {
			s.until, s.ttl = f.clock()+ttl, ttl
			renewals = append(renewals, outbox.Renewal{Lease: l, Rewind: s.ticket != 0, RewindTo: s.rewindTo, Ticket: s.ticket})
		}
	}
	return renewals, nil
}

func (f *fakeStore) Release(_ context.Context, relay string, leases []outbox.Lease, forget bool) error {
	leave, err := f.enter("Release")
	if err != nil {
		return err
	}
	defer leave()
	for _, l := range leases {
		if f.owns(relay, l) {
			f.shards[l.Shard].owner = ""
		}
	}
	if forget {
		delete(f.relays, relay)
	}
	return nil
}

func (f *fakeStore) ReportRoutes(_ context.Context, relay string, routes []outbox.StalledRoute) error {
	leave, err := f.enter("ReportRoutes")
	if err != nil {
		return err
	}
	defer leave()
	f.routes[relay] = routes
	return nil
}

func (f *fakeStore) ClearRewind(_ context.Context, relay string, lease outbox.Lease, ticket int64) error {
	leave, err := f.enter("ClearRewind")
	if err != nil {
		return err
	}
	defer leave()
	if s := &f.shards[lease.Shard]; f.owns(relay, lease) && s.ticket == ticket {
		s.low, s.tail = s.bottom(), s.kept()
		s.ticket, s.rewindTo = 0, 0
	}
	return nil
}

func (f *fakeStore) queued(shard int, seq int64) outbox.Queued {
	q := outbox.Queued{Seq: seq, Round: f.queue[shard][seq]}
	if record := f.log[seq]; record != nil {
		q.Record = *record
	} else {
		q.Shard, q.Missing = shard, true
	}
	return q
}

func (f *fakeStore) Fetch(_ context.Context, ranges []outbox.Range) ([]outbox.Queued, error) {
	leave, err := f.enter("Fetch")
	if err != nil {
		return nil, err
	}
	defer leave()
	var rows []outbox.Queued
	for _, r := range ranges {
		n := 0
		for _, seq := range f.from(r.Shard, r.After+1) {
			if n == r.Limit || r.Through != 0 && seq > r.Through {
				break
			}
			_, ok := f.queue[r.Shard][seq]
			if !ok {
				f.passed++
			}
			if ok && !slices.Contains(r.Except, seq) {
				rows = append(rows, f.queued(r.Shard, seq))
				n++
			}
		}
	}
	slices.SortFunc(rows, func(a, b outbox.Queued) int { return cmp.Compare(a.Seq, b.Seq) })
	f.fetched += len(rows)
	f.ranges += len(ranges)
	return rows, nil
}

func (f *fakeStore) FetchKey(_ context.Context, shard int, key string, from int64, limit int) ([]outbox.Queued, error) {
	leave, err := f.enter("FetchKey")
	if err != nil {
		return nil, err
	}
	defer leave()
	var rows []outbox.Queued
	for _, seq := range f.from(shard, from) {
		_, ok := f.queue[shard][seq]
		if record := f.log[seq]; ok && record != nil && record.Key == key && len(rows) < limit {
			rows = append(rows, f.queued(shard, seq))
		}
	}
	return rows, nil
}

// enqueue adds a queue row.
func (f *fakeStore) enqueue(shard int, seq, round int64) {
	f.queue[shard][seq] = round
	if at, ok := slices.BinarySearch(f.places[shard], seq); !ok {
		f.places[shard] = slices.Insert(f.places[shard], at, seq)
	}
}

// from returns the places of a shard from seq on. Those of rows that have gone are given up once
// they are many.
func (f *fakeStore) from(shard int, seq int64) []int64 {
	if !f.held && len(f.places[shard]) > 2*len(f.queue[shard])+8 {
		f.places[shard] = slices.DeleteFunc(f.places[shard], func(seq int64) bool { _, ok := f.queue[shard][seq]; return !ok })
	}
	at, _ := slices.BinarySearch(f.places[shard], seq)
	return f.places[shard][at:]
}

func (f *fakeStore) Writers(context.Context) ([]string, error) {
	leave, err := f.enter("Writers")
	if err != nil {
		return nil, err
	}
	defer leave()
	if f.flaws.noWriters {
		return nil, nil
	}
	return slices.Sorted(maps.Keys(f.open)), nil
}

func (f *fakeStore) Mark(_ context.Context, relay string, marks []outbox.Mark) ([]int, error) {
	leave, err := f.enter("Mark")
	if err != nil {
		return nil, err
	}
	defer leave()
	lost := make(map[int]bool)
	for _, m := range marks {
		if !f.owns(relay, m.Lease) {
			lost[m.Shard] = true
		} else if f.take(m.Shard, m.Seq, m.Round) {
			f.receipts[m.Seq]++
		}
	}
	return slices.Sorted(maps.Keys(lost)), nil
}

// take removes a queue row.
func (f *fakeStore) take(shard int, seq, round int64) bool {
	if r, ok := f.queue[shard][seq]; !ok || r != round && !f.flaws.anyRound {
		return false
	}
	delete(f.queue[shard], seq)
	return true
}

func (f *fakeStore) Listen(ctx context.Context, _ func(string)) error {
	return outbox.ErrNoSignal
}

func (f *fakeStore) Notify(context.Context, string) error { return outbox.ErrNoSignal }

var _ outbox.RelayStore = (*fakeStore)(nil)

// id returns the dispatch ID of an event.
func (f *fakeStore) id(seq int64) uuid.UUID {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.log[seq].ID
}

// left returns how many events are in the queue, and how many are parked and live.
func (f *fakeStore) left() (queued, live int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, q := range f.queue {
		queued += len(q)
	}
	for _, p := range f.parked {
		if p.live() {
			live++
		}
	}
	return queued, live
}

func (f *fakeStore) state(seq int64) outbox.State {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.parked[seq]; p != nil {
		return p.state
	}
	return ""
}

// attempts returns the attempts that were counted, the newest last.
func (f *fakeStore) attempts(seq int64) (counted []outbox.Failure) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, x := range f.failures {
		if x.Seq == seq && x.Attempts > 0 {
			counted = append(counted, x.Failure)
		}
	}
	return counted
}
