package modeltest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/transport"
)

// leaseMachine is the outbox of several relays, its model, and a sequence of what they do.
// It knows when a relay does something only: time passes between two actions, by whole minutes.
type leaseMachine struct {
	ctx    context.Context
	store  outbox.RelayStore
	append func(r outbox.Record) error
	pass   func(d time.Duration) error
	model  leaseModel
}

func newLeaseMachine[TX any](ctx context.Context, store outbox.Store[TX], pass func(time.Duration) error) *leaseMachine {
	return &leaseMachine{
		ctx: ctx, store: store, pass: pass,
		append: func(r outbox.Record) error {
			return store.Transact(ctx, func(ctx context.Context, tx TX) error {
				_, err := store.Append(ctx, tx, uuid.New(), []outbox.Record{r})
				return err
			})
		},
		model: leaseModel{relays: make(map[string]time.Duration), queue: make(map[int64]outbox.Queued)},
	}
}

func TestAShardHasOneOwnerOnSQLite(t *testing.T) {
	t.Parallel()
	content := template(t)
	rapid.Check(t, func(rt *rapid.T) {
		inBubble(t, rt, func(t *testing.T) {
			db, store := openCopy(t, content)
			defer func() { _ = db.Close() }()
			newLeaseMachine(t.Context(), store, func(d time.Duration) error {
				time.Sleep(d)
				return nil
			}).run(rt)
		})
	})
}

func TestAShardHasOneOwnerOnPostgreSQL(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := postgres.Migrate(t.Context(), pool, postgres.Config{}); err != nil {
		t.Fatal(err)
	}
	store, err := postgres.New(pool, postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	exec := func(statement string, args ...any) error {
		_, err := pool.Exec(t.Context(), statement, args...)
		return err
	}
	rapid.Check(t, func(rt *rapid.T) {
		err := exec(`WITH a AS (DELETE FROM boxpair.outbox_queue), b AS (DELETE FROM boxpair.outbox_parked), c AS (DELETE FROM boxpair.outbox_relays)
			UPDATE boxpair.outbox_shards SET owner = NULL, epoch = 0, lease_until = '-infinity'`)
		if err != nil {
			rt.Fatal(err)
		}
		newLeaseMachine(t.Context(), store, func(d time.Duration) error { // the database's clock goes on as it likes
			return exec(`WITH a AS (UPDATE boxpair.outbox_relays SET seen_at = seen_at - $1::interval, seen_until = seen_until - $1::interval)
				UPDATE boxpair.outbox_shards SET leased_at = leased_at - $1::interval, lease_until = lease_until - $1::interval WHERE owner IS NOT NULL`, d)
		}).run(rt)
	})
}

func (m *leaseMachine) run(rt *rapid.T) {
	rt.Repeat(map[string]func(*rapid.T){
		"acquire":   m.acquire,
		"heartbeat": m.heartbeat,
		"mark":      m.mark,
		"park":      m.park,
		"pass":      m.passTime,
		"release":   m.release,
		"renew":     m.renew,
		"write":     m.write,
	})
}

var (
	relays = rapid.SampledFrom([]string{"a", "b", "c"})
	// Between the shortest and the longest, one relay asks for much more than another.
	ttls = rapid.SampledFrom([]time.Duration{20 * time.Minute, time.Hour, 3 * time.Hour})
)

func ok(rt *rapid.T, err error) {
	rt.Helper()
	if err != nil {
		rt.Fatal(err)
	}
}

// drawn returns leases of different shards that somebody was granted at some time. Mostly the
// relay that uses them is the one that got them.
func (m *leaseMachine) drawn(rt *rapid.T) (string, []outbox.Lease) {
	relay := relays.Draw(rt, "relay")
	if len(m.model.leases) == 0 {
		rt.Skip("nothing was granted yet")
	}
	anyone := rapid.IntRange(0, 3).Draw(rt, "of anyone if 0") == 0
	byShardOf := make(map[int]outbox.Lease)
	for range rapid.IntRange(1, 6).Draw(rt, "leases") {
		// The latest are the likeliest to be valid.
		back := min(rapid.IntRange(0, 40).Draw(rt, "back"), len(m.model.leases)-1)
		h := m.model.leases[len(m.model.leases)-1-back]
		if anyone || h.relay == relay {
			byShardOf[h.Shard] = h.Lease
		}
	}
	var leases []outbox.Lease
	for _, l := range byShardOf {
		leases = append(leases, l)
	}
	slices.SortFunc(leases, byShard)
	return relay, leases
}

func (m *leaseMachine) acquire(rt *rapid.T) {
	relay, ttl := relays.Draw(rt, "relay"), ttls.Draw(rt, "ttl")
	n := rapid.SampledFrom([]int{1, 2, 5, 20, idgen.Shards}).Draw(rt, "n")
	want := m.model.free(n)
	grants, err := m.store.Acquire(m.ctx, relay, ttl, n)
	ok(rt, err)
	var got []int
	for _, g := range grants {
		s := &m.model.shards[g.Shard]
		if g.Epoch <= s.epoch || g.Abrupt != (s.owner != "") {
			rt.Fatalf("%s was granted %+v of %+v", relay, g, *s)
		}
		got = append(got, g.Shard)
		*s = shardModel{owner: relay, epoch: g.Epoch, until: m.model.now + ttl}
		m.model.leases = append(m.model.leases, held{relay, g.Lease})
	}
	if !slices.Equal(got, want) {
		rt.Fatalf("%s acquired %v, want %v", relay, got, want)
	}
}

func (m *leaseMachine) renew(rt *rapid.T) {
	relay, leases := m.drawn(rt)
	ttl := ttls.Draw(rt, "ttl")
	renewals, err := m.store.Renew(m.ctx, relay, ttl, leases)
	ok(rt, err)
	var got, want []outbox.Lease
	for _, r := range renewals {
		got = append(got, r.Lease)
	}
	for _, l := range leases {
		if m.model.owns(relay, l) {
			want = append(want, l)
			m.model.shards[l.Shard].until = m.model.now + ttl
		}
	}
	if slices.SortFunc(got, byShard); !slices.Equal(got, want) {
		rt.Fatalf("%s renewed %v of %v, want %v", relay, got, leases, want)
	}
}

func (m *leaseMachine) release(rt *rapid.T) {
	relay, leases := m.drawn(rt)
	forget := rapid.Bool().Draw(rt, "forget")
	ok(rt, m.store.Release(m.ctx, relay, leases, forget))
	for _, l := range leases {
		if m.model.owns(relay, l) {
			m.model.shards[l.Shard].owner = ""
		}
	}
	if forget {
		delete(m.model.relays, relay)
	}
}

func (m *leaseMachine) heartbeat(rt *rapid.T) {
	relay, ttl := relays.Draw(rt, "relay"), ttls.Draw(rt, "ttl")
	live, err := m.store.Heartbeat(m.ctx, relay, ttl)
	ok(rt, err)
	if want := m.model.live(relay, ttl); live != want {
		rt.Fatalf("%s sees %d relays, want %d: %v at %v", relay, live, want, m.model.relays, m.model.now)
	}
}

// write queues an event, often in a shard that somebody has leased.
func (m *leaseMachine) write(rt *rapid.T) {
	shard := rapid.SampledFrom([]int{0, 1, 2, 19, 63}).Draw(rt, "shard")
	e := transport.Event{ID: uuid.New(), Topic: "topic", Producer: "model", Payload: []byte("{}")}
	for n := 0; ; n++ {
		if e.Key = fmt.Sprint("key", n); idgen.Shard(e.Key, e.ID) == shard {
			break
		}
	}
	e.Digest = transport.ContentDigest(&e)
	ok(rt, m.append(outbox.Record{Event: e, Shard: shard, OccurredAt: time.Now()}))
	for _, q := range m.fetch(rt) {
		if q.ID == e.ID {
			m.model.queue[q.Seq] = q
		}
	}
}

// target draws an event and a lease of its shard, of any time, and who uses it.
func (m *leaseMachine) target(rt *rapid.T) (string, outbox.Queued, outbox.Lease) {
	seqs := m.model.queued()
	if len(seqs) == 0 {
		rt.Skip("nothing is queued")
	}
	q := m.model.queue[rapid.SampledFrom(seqs).Draw(rt, "event")]
	var of []held
	for _, h := range m.model.leases {
		if h.Shard == q.Shard {
			of = append(of, h)
		}
	}
	if len(of) == 0 {
		rt.Skip("its shard was never leased")
	}
	back := min(rapid.IntRange(0, 3).Draw(rt, "back"), len(of)-1)
	h := of[len(of)-1-back]
	if rapid.IntRange(0, 7).Draw(rt, "by anyone if 0") == 0 {
		return relays.Draw(rt, "relay"), q, h.Lease
	}
	return h.relay, q, h.Lease
}

func (m *leaseMachine) mark(rt *rapid.T) {
	relay, q, lease := m.target(rt)
	lost, err := m.store.Mark(m.ctx, relay, []outbox.Mark{{Lease: lease, Seq: q.Seq, Round: q.Round}})
	ok(rt, err)
	owns := m.model.owns(relay, lease)
	if slices.Equal(lost, []int{lease.Shard}) == owns || len(lost) > 1 {
		rt.Fatalf("mark of %s under %v: lost %v, owns %v", relay, lease, lost, owns)
	}
	if owns {
		delete(m.model.queue, q.Seq)
	}
	m.check(rt)
}

func (m *leaseMachine) park(rt *rapid.T) {
	relay, q, lease := m.target(rt)
	lost, err := m.store.Park(m.ctx, relay, lease, []outbox.Failure{{
		Seq: q.Seq, Round: q.Round, Attempts: 1, RetryIn: time.Hour, Outcome: transport.Refused, Error: "refused",
	}})
	ok(rt, err)
	owns := m.model.owns(relay, lease)
	if lost == owns {
		rt.Fatalf("parking by %s under %v: lost %v, owns %v", relay, lease, lost, owns)
	}
	if owns {
		delete(m.model.queue, q.Seq)
	}
	m.check(rt)
}

func (m *leaseMachine) passTime(rt *rapid.T) {
	d := time.Duration(rapid.SampledFrom([]int{1, 10, 19, 20, 59, 60, 61, 180}).Draw(rt, "minutes")) * time.Minute
	ok(rt, m.pass(d))
	m.model.now += d
}

func (m *leaseMachine) fetch(rt *rapid.T) []outbox.Queued {
	ranges := make([]outbox.Range, idgen.Shards)
	for i := range ranges {
		ranges[i] = outbox.Range{Shard: i, Limit: 1000}
	}
	events, err := m.store.Fetch(m.ctx, ranges)
	ok(rt, err)
	return events
}

// check compares the queue, which nobody changes but the owner of a shard.
func (m *leaseMachine) check(rt *rapid.T) {
	var got []int64
	for _, q := range m.fetch(rt) {
		got = append(got, q.Seq)
	}
	if slices.Sort(got); !slices.Equal(got, m.model.queued()) {
		rt.Fatalf("queue is %v, want %v", got, m.model.queued())
	}
}
