package consumer_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/internal/memcontrol"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

// simDB is the database of a simulation: rows that are committed, and transactions
// that hold locks. It is touched by one goroutine at a time, the scheduler's.
type simDB struct {
	control   memcontrol.Store
	sim       *simulation
	consumers []*simConsumer
	claims    map[claimKey]*simClaim
	attempts  map[claimKey]attemptRow
	parked    []*simParked // by ascending seq
	seq       int64
	applied   int64      // orders claims by the time of their effects
	mu        sync.Mutex // handlers that overrun their time roll back when they like
	open      []*simTx
	effects   []simEffect // only ever appended to; nothing makes them unique
	everAside map[simContent]bool
	askedFor  map[claimKey]int                 // messages that were too old and redriven
	begun     map[claimKey]map[*simProcess]int // starts that were recorded and not taken back
	bystander map[claimKey]int                 // how many processes died of another message meanwhile
}

// stood notes which messages were begun by a process that dies of another one.
func (db *simDB) stood(p *simProcess, culprit uuid.UUID) {
	for key, by := range db.begun {
		if key.id != culprit {
			db.bystander[key] += by[p]
		}
	}
}

// simConsumer is what the database knows of a consumer.
type simConsumer struct {
	name      string
	born      time.Time
	forgotten time.Time
	steps     []simStep // of forgotten
}

type simStep struct{ at, until time.Time }

type simClaim struct {
	digest  transport.Digest
	stamp   time.Time
	applied int64 // 0: claimed by a parked row
}

type simParked struct {
	inbox.Parked
	number           int
	ordered, claimed bool
}

func (p *simParked) live() bool {
	return p.State == inbox.Retrying || p.State == inbox.Following
}

// simContent is one content of one dispatch ID, for one consumer.
type simContent struct {
	claimKey
	digest transport.Digest
}

type simEffect struct {
	simContent
	key string
}

// simTx is a transaction. Its locks keep others waiting until it has ended.
type simTx struct {
	db      *simDB
	proc    *simProcess
	claims  []claimKey // locked
	keys    []claimKey // of locks of keys, by their hashes
	row     int64
	writes  []func()
	broken  bool // a statement failed: COMMIT answers ROLLBACK
	spoiled bool // its handler fails
	ended   bool
	doubt   bool // its COMMIT got no answer, and the backend is still at it
}

func (db *simDB) begin(p *simProcess) *simTx {
	db.mu.Lock()
	defer db.mu.Unlock()
	tx := &simTx{db: db, proc: p}
	db.open = append(db.open, tx)
	return tx
}

// end commits or rolls back, and tells whether the transaction was still there.
func (tx *simTx) end(commit bool) bool {
	if !tx.db.close(tx) {
		return false
	}
	if commit {
		if tx.spoiled {
			tx.db.sim.fail("effects of a failed handler were committed by %s", tx.proc.name)
		}
		for _, write := range tx.writes {
			write()
		}
		tx.db.check()
	}
	return true
}

func (db *simDB) close(tx *simTx) bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	if tx.ended {
		return false
	}
	tx.ended = true
	db.open = slices.DeleteFunc(db.open, func(o *simTx) bool { return o == tx })
	return true
}

func (tx *simTx) gone() bool {
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	return tx.ended
}

// transactions returns those that go on.
func (db *simDB) transactions() []*simTx {
	db.mu.Lock()
	defer db.mu.Unlock()
	return slices.Clone(db.open)
}

func (db *simDB) claimsFree(claims []claimKey) bool {
	return !slices.ContainsFunc(db.transactions(), func(tx *simTx) bool { return common(tx.claims, claims) })
}

func (db *simDB) keysFree(keys []claimKey) bool {
	return !slices.ContainsFunc(db.transactions(), func(tx *simTx) bool { return common(tx.keys, keys) })
}

func common(a, b []claimKey) bool {
	return slices.ContainsFunc(a, func(key claimKey) bool { return slices.Contains(b, key) })
}

// lockOf is a lock, or none for the zero key.
func lockOf(key claimKey) []claimKey {
	if key == (claimKey{}) {
		return nil
	}
	return []claimKey{key}
}

func (db *simDB) rowFree(seq int64) bool {
	return !slices.ContainsFunc(db.transactions(), func(tx *simTx) bool { return tx.row == seq })
}

// keyLock is the lock of a key, or none.
func keyLock(number int, key string) claimKey {
	if key == "" {
		return claimKey{}
	}
	return claimKey{number, uuid.NewSHA1(uuid.Nil, []byte(key))}
}

// meet tells what a claim meets once its locks are taken.
func (db *simDB) meet(c *inbox.Claim) inbox.Verdict {
	row, ok := db.claims[claimKey{c.Consumer, c.ID}]
	switch {
	case ok && row.digest.Matches(c.Digest):
		return inbox.Duplicate
	case ok:
		return inbox.Altered
	case !c.Stamp.IsZero() && c.Stamp.Before(db.consumers[c.Consumer-1].forgotten):
		return inbox.TooOld
	}
	return inbox.Applied
}

// insert claims, as of an applied message or of a parked one.
func (db *simDB) insert(number int, id uuid.UUID, digest transport.Digest, stamp time.Time, applied bool) {
	if stamp.IsZero() {
		stamp = time.Now()
	}
	row := &simClaim{digest: digest, stamp: stamp}
	if applied {
		db.applied++
		row.applied = db.applied
	}
	db.claims[claimKey{number, id}] = row
	delete(db.attempts, claimKey{number, id})
}

// follow claims a message and parks it behind others of its key.
func (db *simDB) follow(c *inbox.Claim) {
	db.insert(c.Consumer, c.ID, c.Digest, c.Stamp, false)
	db.park(inbox.Parking{Consumer: c.Consumer, Message: c.Message, State: inbox.Following, Ordered: true}, true)
}

// park keeps a message once.
func (db *simDB) park(p inbox.Parking, claimed bool) bool {
	content := simContent{claimKey{p.Consumer, p.Message.ID}, p.Message.Digest}
	if claimed { // it takes the place of one that was set aside
		db.parked = slices.DeleteFunc(db.parked, func(q *simParked) bool { return !q.claimed && q.content() == content })
	}
	if slices.ContainsFunc(db.parked, func(q *simParked) bool { return q.content() == content }) {
		return false
	}
	db.seq++
	row := &simParked{
		number: p.Consumer, ordered: p.Ordered && p.Message.Key != "", claimed: claimed,
		Parked: inbox.Parked{
			Message: *p.Message, Seq: db.seq, Consumer: db.consumers[p.Consumer-1].name, State: p.State,
			Attempts: p.Attempts, ParkedAt: time.Now(), LastError: p.LastError,
		},
	}
	if p.State == inbox.Retrying {
		row.NextAttemptAt = time.Now().Add(p.RetryIn)
	}
	db.parked = append(db.parked, row)
	if !row.live() {
		db.everAside[content] = true
	}
	return true
}

// lock is the lock of its key, if it has one.
func (p *simParked) lock() claimKey {
	if !p.ordered {
		return claimKey{}
	}
	return keyLock(p.number, p.Key)
}

func (p *simParked) content() simContent {
	return simContent{claimKey{p.number, p.ID}, p.Digest}
}

// first tells whether no earlier live message of its key stands before p.
func (db *simDB) first(p *simParked) bool {
	return !p.ordered || !slices.ContainsFunc(db.parked, func(q *simParked) bool {
		return q.ordered && q.number == p.number && q.Key == p.Key && q.Seq < p.Seq && q.live()
	})
}

func (db *simDB) blocked(number int, key string) bool {
	return key != "" && slices.ContainsFunc(db.parked, func(q *simParked) bool {
		return q.ordered && q.number == number && q.Key == key && q.live()
	})
}

// ahead is the last live one of a key, unless it is the first one or locked: it stays in front of a
// newcomer for as long as the newcomer holds its lock.
func (db *simDB) ahead(number int, key string) (last *simParked) {
	for _, q := range db.parked {
		if q.ordered && q.number == number && q.Key == key && q.live() && !db.first(q) && db.rowFree(q.Seq) {
			last = q
		}
	}
	return last
}

// promote makes the first live one of a key due if it follows.
func (db *simDB) promote(p *simParked) {
	for _, q := range db.parked {
		if p.ordered && q.ordered && q.number == p.number && q.Key == p.Key && q.State == inbox.Following && db.first(q) {
			q.State, q.NextAttemptAt = inbox.Retrying, time.Now()
		}
	}
}

func (db *simDB) find(seq int64) *simParked {
	for _, p := range db.parked {
		if p.Seq == seq {
			return p
		}
	}
	return nil
}

// due tells whether p may run now, but for locks.
func (db *simDB) due(p *simParked) bool {
	return p.State == inbox.Retrying && !p.NextAttemptAt.After(time.Now()) && db.first(p)
}

// remove removes a parked message whose effects are committed.
func (db *simDB) remove(p *simParked) {
	db.parked = slices.DeleteFunc(db.parked, func(q *simParked) bool { return q == p })
	if row := db.claims[claimKey{p.number, p.ID}]; p.claimed && row != nil {
		db.applied++
		row.applied = db.applied
	}
	delete(db.attempts, claimKey{p.number, p.ID})
	db.promote(p)
}

func (db *simDB) selects(f inbox.Filter, p *simParked) bool {
	return p.Seq > f.After && (f.Consumer == "" || f.Consumer == p.Consumer) &&
		(len(f.IDs) == 0 || slices.Contains(f.IDs, p.ID)) &&
		(len(f.States) == 0 || slices.Contains(f.States, p.State))
}

func (db *simDB) redrive(f inbox.Filter) (ids []uuid.UUID) {
	for _, p := range db.parked {
		if db.selects(f, p) && (p.State == inbox.Dead || p.State == inbox.TooOldState) {
			if p.State == inbox.TooOldState {
				db.askedFor[claimKey{p.number, p.ID}]++
			}
			p.State, p.Attempts, p.NextAttemptAt = inbox.Retrying, 0, time.Now()
			delete(db.attempts, claimKey{p.number, p.ID})
			ids = append(ids, p.ID)
		}
	}
	return ids
}

// discard gives up what nobody has locked.
func (db *simDB) discard(f inbox.Filter, reason string) (ids []uuid.UUID) {
	for _, p := range db.parked {
		if db.selects(f, p) && p.State != inbox.Discarded && db.rowFree(p.Seq) && db.keysFree(lockOf(p.lock())) {
			p.State, p.Reason, p.NextAttemptAt = inbox.Discarded, reason, time.Time{}
			db.everAside[p.content()] = true
			ids = append(ids, p.ID)
			db.promote(p)
		}
	}
	return ids
}

// check looks at what is committed: one effect at most, and a claim exactly
// where there is an effect or a parked row of it.
func (db *simDB) check() {
	done := make(map[claimKey]int)
	for _, e := range db.effects {
		// An operator may ask for two contents of one ID, both from forgotten times, and get both.
		if done[e.claimKey]++; done[e.claimKey] == 2 && db.askedFor[e.claimKey] < 2 {
			db.sim.fail("consumer %d: %s has two effects", e.consumer, short(e.id))
		}
	}
	rows := make(map[claimKey]int)
	for _, p := range db.parked {
		if p.claimed {
			rows[claimKey{p.number, p.ID}]++
		}
	}
	for key, row := range db.claims {
		if effect := done[key] > 0; rows[key] > 1 || effect == (rows[key] == 1) || effect != (row.applied > 0) {
			db.sim.fail("consumer %d: claim of %s with %d effects and %d parked rows", key.consumer, short(key.id), done[key], rows[key])
		}
	}
	for key := range rows {
		if db.claims[key] == nil {
			db.sim.fail("consumer %d: parked %s lost its claim", key.consumer, short(key.id))
		}
	}
	for key := range done {
		if db.claims[key] == nil && db.consumers[key.consumer-1].forgotten.IsZero() {
			db.sim.fail("consumer %d: effect of %s without a claim", key.consumer, short(key.id))
		}
	}
}

// shorts does not depend on the order of ids.
func shorts(ids []uuid.UUID) string {
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = short(id)
	}
	slices.Sort(names)
	return strings.Join(names, "+")
}

func short(id uuid.UUID) string { return fmt.Sprintf("m%d", int(id[14])<<8|int(id[15])) }
