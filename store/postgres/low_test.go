package postgres

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/outbox"
)

// keepLow has "relay" own all shards and keep a low-water mark of each.
func (p *planned) keepLow(seq int64) (leases []outbox.Lease) {
	p.Helper()
	shards, epochs := p.own()
	lows := make([]outbox.Low, len(shards))
	for i := range shards {
		lows[i] = outbox.Low{Lease: outbox.Lease{Shard: int(shards[i]), Epoch: epochs[i]}, Seq: seq}
		leases = append(leases, lows[i].Lease)
	}
	if err := p.KeepLow(p.Context(), "relay", lows, "history"); err != nil {
		p.Fatal(err)
	}
	return leases
}

// A snapshot that somebody holds keeps what was delivered in the index, and each read from the
// beginning steps over it.
func TestTakeoverBesideAHeldSnapshotReadsLittle(t *testing.T) {
	t.Parallel()
	p := newPlanned(t)
	const gone = 300_000
	p.run(`INSERT INTO boxpair.outbox_queue (shard, id) SELECT i % 64, i FROM generate_series(1, $1::int) i`, gone)
	holder, err := p.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(t.Context())
	if _, err := holder.Exec(t.Context(), `SELECT count(*) FROM boxpair.outbox_shards`); err != nil {
		t.Fatal(err)
	}
	p.run(`DELETE FROM boxpair.outbox_queue`)
	p.run(`SELECT setval(pg_get_serial_sequence('boxpair.outbox_events', 'id'), $1)`, gone)
	p.fill(64)
	leases := p.keepLow(gone)
	if err := p.Release(t.Context(), "relay", leases, false); err != nil {
		t.Fatal(err)
	}
	grants, err := p.Acquire(t.Context(), "next", time.Hour, idgen.Shards)
	if err != nil || len(grants) != idgen.Shards {
		t.Fatalf("%d grants, %v", len(grants), err)
	}
	blocks := func(from func(i int) int64) int {
		shards, after, through, most := make([]int16, idgen.Shards), make([]int64, idgen.Shards), make([]int64, idgen.Shards), make([]int64, idgen.Shards)
		for i := range shards {
			shards[i], after[i], through[i], most[i] = int16(i), from(i), 1<<62, 16
		}
		plan := p.explain(fetch, shards, after, through, most, []int64{})
		return plan.Hit + plan.Read
	}
	kept, beginning := blocks(func(i int) int64 { return grants[i].Low }), blocks(func(int) int64 { return 0 })
	t.Logf("%d blocks from what is kept, %d from the beginning", kept, beginning)
	if kept*20 > beginning {
		t.Errorf("%d blocks from what is kept, %d from the beginning", kept, beginning)
	}
}

// What an owner of an earlier release does may put events below what is kept.
func TestWhatIsKeptDoesNotCountAfterAnOwnerThatDoesNotKnowOfIt(t *testing.T) {
	t.Parallel()
	p := newPlanned(t)
	p.fill(64)
	p.keepLow(10)
	p.run(`UPDATE boxpair.outbox_shards SET owner = 'old', epoch = epoch + 1, lease_until = clock_timestamp()`)
	for range 2 {
		grants, err := p.Acquire(t.Context(), "relay", time.Microsecond, idgen.Shards)
		if err != nil || len(grants) == 0 {
			t.Fatalf("%d grants, %v", len(grants), err)
		}
		for _, g := range grants {
			if g.Low != 0 {
				t.Errorf("shard %d is granted with %d", g.Shard, g.Low)
			}
		}
	}
}
