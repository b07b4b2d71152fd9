package audit_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/boxpair/boxpair/audit"
)

// TestMemoryHasABoundWhateverTheSize compares 200,000 events within the time that the window waits
// for claims; every fifth event was lost. After every fifth page the test measures the memory. It
// runs alone, since the memory of other tests would be counted too.
func TestMemoryHasABoundWhateverTheSize(t *testing.T) {
	const (
		rows    = 200_000
		ceiling = 14 << 20 // one side in full would take more
	)
	p := newPair(t, databases["postgres"])
	// Both sides use one time: otherwise the window would hold all events that were written while
	// the first statement ran.
	begin := time.Now().Add(-50 * time.Minute)
	p.out.run(`INSERT INTO {outbox_events} (dispatch_id, digest, shard, topic, payload, created_at)
		SELECT md5('e' || i)::uuid, decode(md5('c' || i), 'hex'), 0, 'order.placed', '', $2::timestamptz + i * interval '200 us'
		FROM generate_series(1, $1::int) i`, rows, begin)
	p.in.run(`INSERT INTO {inbox} (stamp, applied_at, dispatch_id, consumer, digest)
		SELECT $2::timestamptz + i * interval '200 us', now(), md5('e' || i)::uuid, 1, decode(md5('c' || i), 'hex')
		FROM generate_series(1, $1::int) i WHERE i % 5 > 0`, rows, begin)

	var peak uint64
	var stats runtime.MemStats
	used := func() uint64 {
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	before := used()
	report := p.audit(func(c *audit.Config) {
		c.PageSize = 0
		pages := 0
		c.Progress = func(audit.Progress) {
			if pages++; pages%5 == 0 {
				peak = max(peak, used())
			}
		}
	})
	p.want(report, map[audit.Kind]int{audit.NotApplied: rows / 5})
	if report.Outboxes[0].Events != rows+delivered {
		t.Errorf("%d events", report.Outboxes[0].Events)
	}
	if peak > before+ceiling {
		t.Errorf("%d MB in memory, more than %d MB", (peak-before)>>20, ceiling>>20)
	}
	t.Logf("%.1f MB in memory at most", float64(peak-before)/(1<<20))
}
