package chain

import (
	"context"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	servers "github.com/boxpair/boxpair/internal/testenv/service"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/memory"
)

// whoeverTakesWrites returns an address at which a client finds the writable one of two servers.
func whoeverTakesWrites(t *testing.T, first, second *servers.Postgres) string {
	t.Helper()
	address, err := url.Parse(first.URL())
	ok(t, err)
	other, err := url.Parse(second.URL())
	ok(t, err)
	address.Host += "," + other.Host
	q := address.Query()
	q.Set("target_session_attrs", "read-write")
	address.RawQuery = q.Encode()
	return address.String()
}

// identity returns the identity that a store reads from its database.
func identity[TX any](t *testing.T, db *database[TX]) string {
	t.Helper()
	name, err := db.store.(outbox.Identifier).Identity(t.Context())
	ok(t, err)
	return name
}

// TestServicesNoticeAFailOverThatLosesCommits promotes a standby that has the events, but neither
// their marks, claims and effects nor the last event. Relay and consumer survive the fail-over,
// with the addresses of both servers.
func TestServicesNoticeAFailOverThatLosesCommits(t *testing.T) {
	t.Parallel()
	const each = 5
	primary := testenv.PrivatePostgres(t)
	setUpPostgres(t, primary.URL())
	db := openPostgres(t, primary.URL())
	placeAll(t, db, outboxOf(t, db), "placed", each, "a", "b")
	standby, err := primary.Standby(t.Context())
	ok(t, err)
	t.Cleanup(func() { _ = standby.Close() })

	db = openPostgres(t, whoeverTakesWrites(t, primary, standby))
	outbox := outboxOf(t, db)
	broker, err := memory.New(memory.Config{})
	ok(t, err)
	t.Cleanup(func() { _ = broker.Close() })
	s := apply(t, db, broker.Subscriber("stock"), "placed", "stock", consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}})
	gate := make(chan struct{})
	var sending sync.WaitGroup
	relay, stop := startRelay(t, outbox, &sender{Sender: broker, send: func(ctx context.Context, topic string, msg *message.Message, done func(transport.Result)) {
		sending.Go(func() {
			<-gate
			broker.Send(ctx, topic, msg, done)
		})
	}}, relay.Config{LeaseTTL: 6 * time.Second})
	eventually(t, "a relay that sends", func() bool { return relay.Health().InFlight > 0 })
	replayed(t, db, standby) // so that the relay keeps its leases there
	standby.Stop()
	close(gate)
	placeAll(t, db, outbox, "placed", 1, "lost")
	db.wantEffects(t, "stock", 2*each+1)
	db.wantDrained(t)
	before := identity(t, db)

	primary.Crash()
	ok(t, standby.Start(t.Context()))
	execute(t, standby.URL(), "SELECT pg_promote()")
	promoted := openPostgres(t, standby.URL())
	promoted.wantEffects(t, "stock", 2*each)
	promoted.wantDrained(t)
	// The event is written again; the consumer has applied it in the lost database.
	placeAll(t, promoted, outboxOf(t, promoted), "placed", 1, "lost")
	promoted.wantEffects(t, "stock", 2*each+1)
	for key, n := range map[string]int{"a": each, "b": each, "lost": 1} {
		promoted.wantOrder(t, "stock", key, n)
	}
	if after := identity(t, promoted); after == before || before == "" || after == "" {
		t.Errorf("identity is %q, and was %q before", after, before)
	}
	eventually(t, "a relay that has noticed", func() bool { return !relay.Health().FailedOverAt.IsZero() })
	if c := s.handler.Counters(); c.Applied != 2*(2*each+1) {
		t.Errorf("counters: %+v", c)
	}
	stop()
	sending.Wait()
}

// replayed waits until a standby has replayed all commits of db.
func replayed(t *testing.T, db *database[pgx.Tx], standby *servers.Postgres) {
	t.Helper()
	here := db.list(`SELECT pg_current_wal_flush_lsn()::text`)[0]
	conn, err := pgx.Connect(t.Context(), standby.URL())
	ok(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	eventually(t, "a standby that follows", func() (there bool) {
		ok(t, conn.QueryRow(t.Context(), `SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn`, here).Scan(&there))
		return there
	})
}
