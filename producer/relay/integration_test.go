package relay_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/memory"
)

const relayPatience = 30 * time.Second

func onPostgres(t *testing.T) *postgres.Store {
	t.Helper()
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
	return store
}

func onSQLite(t *testing.T) *sqlite.Store {
	t.Helper()
	db, err := sqlite.Open(filepath.Join(t.TempDir(), "outbox.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if _, err := sqlite.Migrate(t.Context(), db, sqlite.Config{}); err != nil {
		t.Fatal(err)
	}
	store, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func outboxOn[TX any](t *testing.T, store outbox.Store[TX]) *producer.Outbox[TX] {
	t.Helper()
	outbox, err := producer.New(store, producer.Config{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return outbox
}

// write commits one event.
func write[TX any](t *testing.T, outbox *producer.Outbox[TX], topic, key string, version int) {
	t.Helper()
	err := outbox.Transact(t.Context(), func(ctx context.Context, w *producer.Writer[TX]) error {
		_, err := w.Write(ctx, eventOf(topic, key, version))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func eventOf(topic, key string, version int) producer.Event {
	return producer.Event{Topic: topic, Key: key, Source: "source/" + key, Version: int64(version), Payload: []byte("{}")}
}

// recorder is a transport that records what it takes, in order.
type recorder struct {
	answer func(topic, key string, version int64, times int) transport.Outcome

	mu     sync.Mutex
	taken  []string // key/version
	times  map[string]int
	copies map[string]int
}

func (r *recorder) Send(_ context.Context, topic string, msg *message.Message, done func(transport.Result)) {
	e, err := transport.Parse(topic, msg)
	if err != nil {
		done(transport.Result{Outcome: transport.Invalid, Err: err})
		return
	}
	name := fmt.Sprintf("%s/%d", e.Key, e.Version)
	r.mu.Lock()
	if r.times == nil {
		r.times, r.copies = make(map[string]int), make(map[string]int)
	}
	r.times[name]++
	outcome := transport.Confirmed
	if r.answer != nil {
		outcome = r.answer(topic, e.Key, e.Version, r.times[name])
	}
	if outcome == transport.Confirmed {
		if r.copies[name]++; r.copies[name] == 1 {
			r.taken = append(r.taken, name)
		}
	}
	r.mu.Unlock()
	res := transport.Result{Outcome: outcome}
	if outcome != transport.Confirmed {
		res.Err = errors.New("not now")
	}
	go done(res)
}

func (r *recorder) Route(topic string) string                 { return topic }
func (r *recorder) Publish(string, ...*message.Message) error { return errors.New("not called") }
func (r *recorder) Close() error                              { return nil }
func (r *recorder) names() []string                           { r.mu.Lock(); defer r.mu.Unlock(); return slices.Clone(r.taken) }
func (r *recorder) took(name string) bool                     { return slices.Contains(r.names(), name) }

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.After(relayPatience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %v: %s", relayPatience, what)
		}
	}
}

func run(t *testing.T, relay *relay.Relay) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func relayFor[TX any](t *testing.T, outbox *producer.Outbox[TX], publisher message.Publisher, cfg relay.Config) *relay.Relay {
	t.Helper()
	relay, err := relay.New(outbox, publisher, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return relay
}

func TestAnEventOfALowerIDThatCommitsLaterIsDelivered(t *testing.T) {
	t.Parallel()
	outbox := outboxOn(t, onPostgres(t))
	got := &recorder{}
	run(t, relayFor(t, outbox, got, relay.Config{}))
	written, commit, committed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		committed <- outbox.Transact(t.Context(), func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			if _, err := w.WriteNow(ctx, eventOf("topic", "late", 1)); err != nil {
				return err
			}
			close(written)
			<-commit
			return nil
		})
	}()
	<-written
	for i := range 64 { // in every shard, most likely
		write(t, outbox, "topic", fmt.Sprint("key", i), 1)
	}
	eventually(t, "the later ones are delivered", func() bool { return len(got.names()) == 64 })
	close(commit)
	if err := <-committed; err != nil {
		t.Fatal(err)
	}
	eventually(t, "the late one is delivered", func() bool { return got.took("late/1") })
}

// mortal is a store whose relay is dead when it says so.
type mortal struct {
	outbox.RelayStore
	dead atomic.Bool
}

var errDead = errors.New("the process was killed")

func (m *mortal) Mark(ctx context.Context, relay string, marks []outbox.Mark) ([]int, error) {
	if m.dead.Load() {
		return nil, errDead
	}
	return m.RelayStore.Mark(ctx, relay, marks)
}

func (m *mortal) Release(ctx context.Context, relay string, leases []outbox.Lease, forget bool) error {
	if m.dead.Load() {
		return errDead
	}
	return m.RelayStore.Release(ctx, relay, leases, forget)
}

func testTakeover[TX any](t *testing.T, store outbox.Store[TX]) {
	outbox := outboxOn(t, store)
	first, second := &recorder{}, &recorder{}
	dying := &mortal{RelayStore: store}
	cfg := relay.Config{LeaseTTL: time.Second, ShutdownTimeout: time.Millisecond}
	victim, err := relay.NewStandalone(dying, first, cfg)
	if err != nil {
		t.Fatal(err)
	}
	kill := run(t, victim)
	for i := range 50 {
		write(t, outbox, "topic", fmt.Sprint("key", i%10), 1+i/10)
	}
	eventually(t, "some are delivered", func() bool { return len(first.names()) > 10 })
	dying.dead.Store(true) // confirmed or not, nothing is marked any more
	for i := range 50 {
		write(t, outbox, "topic", fmt.Sprint("key", i%10), 6+i/10)
	}
	kill()
	began := time.Now()
	run(t, relayFor(t, outbox, second, cfg))
	eventually(t, "everything is delivered", func() bool {
		all := make(map[string]bool)
		for _, name := range append(first.names(), second.names()...) {
			all[name] = true
		}
		return len(all) == 100
	})
	t.Logf("taken over within %v", time.Since(began))
	eventually(t, "everything is marked", func() bool {
		stats, err := outbox.Stats(t.Context())
		return err == nil && stats.Pending == 0
	})
	inOrder(t, append(first.names(), second.names()...))
}

// inOrder checks the order of first deliveries.
func inOrder(t *testing.T, names []string) {
	t.Helper()
	last, seen := make(map[string]int), make(map[string]bool)
	for _, name := range names {
		var key string
		var version int
		at := slices.Index([]byte(name), '/')
		key = name[:at]
		if _, err := fmt.Sscan(name[at+1:], &version); err != nil {
			t.Fatal(err)
		}
		if seen[name] {
			continue
		}
		seen[name] = true
		if before, ok := last[key]; ok && version < before {
			t.Errorf("%s came behind version %d", name, before)
		}
		last[key] = version
	}
}

func TestAKilledRelayIsReplacedWithinTheLease(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) { t.Parallel(); testTakeover(t, onPostgres(t)) })
	t.Run("sqlite", func(t *testing.T) { t.Parallel(); testTakeover(t, onSQLite(t)) })
}

func TestRelaysOfOneDatabaseShareItsShards(t *testing.T) {
	t.Parallel()
	outbox := outboxOn(t, onPostgres(t))
	got := &recorder{}
	cfg := relay.Config{LeaseTTL: time.Second}
	a, b := relayFor(t, outbox, got, cfg), relayFor(t, outbox, got, cfg)
	run(t, a)
	eventually(t, "one has all shards", func() bool { return a.Health().Shards == 64 })
	stop := run(t, b)
	eventually(t, "both have half of them", func() bool { return a.Health().Shards == 32 && b.Health().Shards == 32 })
	for i := range 200 {
		write(t, outbox, "topic", fmt.Sprint("key", i%40), 1+i/40)
	}
	eventually(t, "everything is delivered", func() bool { return len(got.names()) == 200 })
	inOrder(t, got.names())
	stop()
	eventually(t, "the one that is left has all", func() bool { return a.Health().Shards == 64 })
}

// TestShardsThatARelayGivesBackAreTakenAtOnce, long before the next heartbeat, when a relay joins and
// when it ends.
func TestShardsThatARelayGivesBackAreTakenAtOnce(t *testing.T) {
	t.Parallel()
	store := onPostgres(t)
	outbox := outboxOn(t, store)
	got := &recorder{}
	cfg := relay.Config{LeaseTTL: 30 * time.Second} // a heartbeat and a renewal each ten seconds, an attempt to acquire each three
	relays := make([]*relay.Relay, 2)
	for i := range relays {
		var err error
		if relays[i], err = relay.NewStandalone(store, got, cfg); err != nil {
			t.Fatal(err)
		}
	}
	run(t, relays[0])
	eventually(t, "one has all shards", func() bool { return relays[0].Health().Shards == 64 })
	shared := func(n int) func() bool { return func() bool { return relays[0].Health().Shards == n } }
	joinsAndEnds := func() (joining, ending time.Duration) {
		stop := run(t, relays[1])
		eventually(t, "it gives the half of them back", shared(32))
		began := time.Now()
		eventually(t, "the other takes them", func() bool { return relays[1].Health().Shards == 32 })
		joining = time.Since(began)
		began = time.Now()
		stop()
		eventually(t, "the one that is left has all", shared(64))
		return joining, time.Since(began)
	}
	joining, ending := joinsAndEnds()
	for n := 1; n < 3 && (joining > time.Second/2 || ending > time.Second); n++ { // the machine may have stood still
		joining, ending = joinsAndEnds()
	}
	if joining > time.Second/2 || ending > time.Second {
		t.Errorf("the other took them after %v, and the one that was left after %v", joining, ending)
	}
	for i := range 64 {
		write(t, outbox, "topic", fmt.Sprint("key", i), 1)
	}
	eventually(t, "everything is delivered", func() bool { return len(got.names()) == 64 })
}

func testFailures[TX any](t *testing.T, store outbox.Store[TX]) {
	outbox := outboxOn(t, store)
	got := &recorder{answer: func(topic, key string, version int64, times int) transport.Outcome {
		h := fnv.New32()
		fmt.Fprint(h, key, version)
		switch sum := h.Sum32() % 10; {
		case sum == 0 && times <= 2:
			return transport.Refused
		case sum == 1 && times == 1:
			return transport.Unavailable
		case sum == 2 && times == 1:
			return transport.Returned
		}
		return transport.Confirmed
	}}
	relay := relayFor(t, outbox, got, relay.Config{
		MaxPerKey: 5, Backoff: relay.Backoff{Initial: 20 * time.Millisecond, Max: 50 * time.Millisecond},
		RouteProbeInterval: 20 * time.Millisecond,
	})
	run(t, relay)
	defer func() {
		if t.Failed() {
			stats, err := outbox.Stats(context.WithoutCancel(t.Context()))
			t.Logf("%d delivered; %+v; %+v, %v", len(got.names()), relay.Health(), stats, err)
		}
	}()
	for i := range 400 {
		write(t, outbox, "topic", fmt.Sprint("key", i%20), 1+i/20)
	}
	eventually(t, "everything is delivered", func() bool { return len(got.names()) == 400 })
	inOrder(t, got.names())
	eventually(t, "nothing is left", func() bool {
		stats, err := outbox.Stats(t.Context())
		return err == nil && stats.Pending+stats.Retrying+stats.Following+stats.Dead == 0
	})
}

func TestKeysKeepTheirOrderThroughFailures(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) { t.Parallel(); testFailures(t, onPostgres(t)) })
	t.Run("sqlite", func(t *testing.T) { t.Parallel(); testFailures(t, onSQLite(t)) })
}

func testOperator[TX any](t *testing.T, store outbox.Store[TX]) {
	out := outboxOn(t, store)
	var broken atomic.Bool
	broken.Store(true)
	got := &recorder{answer: func(_, key string, version int64, _ int) transport.Outcome {
		if broken.Load() && key == "bad" && version <= 2 {
			return transport.Invalid
		}
		return transport.Confirmed
	}}
	run(t, relayFor(t, out, got, relay.Config{HoldDeadKeys: true, LeaseTTL: 4 * time.Second}))
	for version := range 5 {
		write(t, out, "topic", "bad", version+1)
	}
	eventually(t, "its followers wait behind the dead event", func() bool {
		stats, err := out.Stats(t.Context())
		return err == nil && stats.Dead == 1 && stats.Following == 4
	})
	if _, err := out.Discard(t.Context(), outbox.Filter{States: []outbox.State{outbox.Dead}}, "a test"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the next one is dead", func() bool {
		stats, err := out.Stats(t.Context())
		return err == nil && stats.Dead == 1 && stats.Following == 3
	})
	broken.Store(false)
	if ids, err := out.Redrive(t.Context(), outbox.Filter{}, "mended"); err != nil || len(ids) != 1 {
		t.Fatal(ids, err)
	}
	eventually(t, "the rest is delivered", func() bool { return len(got.names()) == 4 })
	if want := []string{"bad/2", "bad/3", "bad/4", "bad/5"}; !slices.Equal(got.names(), want) {
		t.Errorf("delivered %v", got.names())
	}
	write(t, out, "topic", "bad", 6)
	eventually(t, "the key goes on", func() bool { return got.took("bad/6") })
}

func TestAnOperatorFreesAHeldKey(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) { t.Parallel(); testOperator(t, onPostgres(t)) })
	t.Run("sqlite", func(t *testing.T) { t.Parallel(); testOperator(t, onSQLite(t)) })
}

func TestARelayInAnotherProcessIsWokenByCommits(t *testing.T) {
	t.Parallel()
	store := onPostgres(t)
	outbox := outboxOn(t, store)
	got := &recorder{}
	relay, err := relay.NewStandalone(store, got, relay.Config{PollMax: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	run(t, relay)
	ctx, cancel := context.WithCancel(t.Context())
	notifying := make(chan error, 1)
	go func() { notifying <- outbox.Run(ctx) }()
	write(t, outbox, "topic", "key", 1)
	eventually(t, "the first is delivered", func() bool { return got.took("key/1") })
	for range 20 { // the poll is far between by now
		eventually(t, "the relay is idle", func() bool { return time.Since(relay.Health().LastRead) > 100*time.Millisecond })
		version := len(got.names()) + 1
		write(t, outbox, "topic", "key", version)
		eventually(t, "the next is delivered", func() bool { return got.took(fmt.Sprint("key/", version)) })
	}
	cancel()
	if err := <-notifying; err != nil {
		t.Error(err)
	}
}

func TestEventsReachTheSubscribersOfAnEmbeddedBroker(t *testing.T) {
	t.Parallel()
	outbox := outboxOn(t, onSQLite(t))
	broker, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { broker.Close() })
	messages, err := broker.Subscriber("stock").Subscribe(t.Context(), "topic")
	if err != nil {
		t.Fatal(err)
	}
	run(t, relayFor(t, outbox, broker, relay.Config{}))
	const events = 100
	arrived := make(chan string, events)
	go func() {
		for msg := range messages {
			e, err := transport.Parse("topic", msg)
			if err != nil {
				t.Error(err)
			}
			arrived <- fmt.Sprintf("%s/%d", e.Key, e.Version)
			msg.Ack()
		}
	}()
	for i := range events {
		write(t, outbox, "topic", fmt.Sprint("key", i%5), 1+i/5)
	}
	var names []string
	for range events {
		select {
		case name := <-arrived:
			names = append(names, name)
		case <-time.After(relayPatience):
			t.Fatalf("%d of %d arrived", len(names), events)
		}
	}
	inOrder(t, names)
}
