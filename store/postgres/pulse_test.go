package postgres_test

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
)

func TestPulseIsARenewalAndAHeartbeat(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.write(event("key", "payload"))
	leases := slices.Collect(maps.Values(r.acquire("a", time.Minute)))
	lost := leases[0]
	r.exec("UPDATE "+r.names.Table("outbox_shards")+" SET epoch = epoch + 1 WHERE shard = $1", lost.Shard)
	r.exec("UPDATE "+r.names.Table("outbox_shards")+" SET rewind_to = 7, rewind_ticket = 9 WHERE shard = $1", leases[1].Shard)
	_, err := r.Heartbeat(r.ctx(), "b", time.Hour)
	r.ok(err)
	p, err := r.Pulse(r.ctx(), "a", time.Hour, leases, 1, nil)
	r.ok(err)
	name, err := r.Identity(r.ctx())
	r.ok(err)
	if p.Live != 2 || p.Identity != name || p.Sequence != nil || len(p.Renewals) != len(leases)-1 {
		t.Errorf("%d relays, identity %q instead of %q, sequence %v, %d renewals", p.Live, p.Identity, name, p.Sequence, len(p.Renewals))
	}
	for _, renewal := range p.Renewals {
		if renewal.Lease == lost || renewal.Rewind != (renewal.Lease == leases[1]) {
			t.Errorf("renewed %+v", renewal)
		}
	}
	if n := value[int](r, "SELECT count(*) FROM "+r.names.Table("outbox_shards")+" WHERE lease_until > clock_timestamp() + interval '50 minutes'"); n != len(p.Renewals) {
		t.Errorf("%d leases last for an hour", n)
	}
	read := &outbox.Poll{}
	for _, lease := range leases {
		read.Ranges, read.Look = append(read.Ranges, outbox.Range{Shard: lease.Shard, Limit: 2}), append(read.Look, lease.Shard)
	}
	p, err = r.Pulse(r.ctx(), "a", time.Hour, leases, 1, read)
	if err != nil || len(p.Rows) != 1 || string(p.Rows[0].Payload) != "payload" || p.Next != -1 {
		t.Errorf("poll: %d events, the next is due in %v: %v", len(p.Rows), p.Next, err)
	}
	later := event("key", "later")
	later.DeliverAt = time.Now().Add(time.Hour)
	r.write(later)
	p, err = r.Pulse(r.ctx(), "a", time.Hour, leases, 1, read)
	if err != nil || len(p.Rows) != 1 || p.Next < 59*time.Minute || p.Next > time.Hour {
		t.Errorf("poll: %d events, the next is due in %v: %v", len(p.Rows), p.Next, err)
	}
	p, err = r.Pulse(r.ctx(), "a", time.Hour, leases, 3, nil)
	if behind, ok := errors.AsType[*outbox.SequenceError](p.Sequence); err != nil || !ok || behind.Last != 2 || behind.Highest != 3 || p.Rows != nil {
		t.Errorf("below an event that was read: %v, %v", p.Sequence, err)
	}
}

// TestPulseOfADatabaseThatHidesItsIdentityChangesNothing: a relay then asks for the parts one by one.
func TestPulseOfADatabaseThatHidesItsIdentityChangesNothing(t *testing.T) {
	t.Parallel()
	p := newParts(t, newPool(t, nil))
	cfg := postgres.Config{Schema: testenv.Name(t)}
	p.migrated(t, cfg)
	store := storeOf(t, p.relay, cfg)
	leases, err := store.Acquire(t.Context(), "a", time.Minute, 1)
	if err != nil || len(leases) != 1 {
		t.Fatalf("%d leases, %v", len(leases), err)
	}
	if _, err := store.Pulse(t.Context(), "a", time.Minute, []outbox.Lease{leases[0].Lease}, 0, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := p.owner.Exec(t.Context(), "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := store.Pulse(t.Context(), "b", time.Minute, []outbox.Lease{leases[0].Lease}, 0, nil); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("error is %v", err)
		}
	}
	if live, err := store.Heartbeat(t.Context(), "a", time.Minute); err != nil || live != 1 {
		t.Errorf("%d relays, %v", live, err)
	}
}

func TestDueMessagesComeWithTheIdentity(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	park := func(in time.Duration) {
		m := &inbox.Message{ID: uuid.New(), Topic: "topic"}
		_, err := r.ParkMessage(r.ctx(), inbox.Parking{Consumer: r.consumer, Message: m, State: inbox.Retrying, RetryIn: in})
		r.ok(err)
	}
	name, err := r.Identity(r.ctx())
	r.ok(err)
	for _, in := range []time.Duration{time.Hour, 0, 0} {
		park(in)
		want, wantNext, err := r.DueMessages(r.ctx(), r.consumer, 1)
		r.ok(err)
		seqs, next, identity, err := r.DueAndIdentity(r.ctx(), r.consumer, 1)
		if err != nil || !slices.Equal(seqs, want) || (next-wantNext).Abs() > time.Minute || identity != name {
			t.Errorf("due are %v, the next in %v, identity %q, %v; want %v, %v, %q", seqs, next, identity, err, want, wantNext, name)
		}
	}
}
