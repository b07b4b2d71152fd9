package producer

import (
	"context"
	"slices"
	"testing"
	"time"
)

// Identity implements [Identifier].
func (f *fakeStore) Identity(context.Context) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.identity, nil
}

// A standby that is promoted may lack the last marks: what was delivered is queued there,
// far below what the relay has read.
func TestWhatAFailOverBroughtBackIsSentAgainAtOnce(t *testing.T) {
	t.Parallel()
	for identity, within := range map[string]bool{"1/00000002": true, "1/00000001": false, "": false} {
		r := newRig(t)
		r.store.identity = "1/00000001"
		var seqs []int64
		for range 10 {
			seqs = append(seqs, r.store.add("topic", "key"))
		}
		rel := r.start(RelayConfig{})
		r.run(2 * time.Second)
		if got := r.sent(); !slices.Equal(got, seqs) {
			t.Fatalf("sent %v, want %v", got, seqs)
		}
		lost := seqs[4]
		r.store.queue[r.store.log[lost].Shard][lost] = 0
		r.store.identity = identity
		r.run(rel.core.cfg.LeaseTTL)
		again := len(r.sent()) == 11
		if again != within {
			t.Errorf("with the identity %q: sent %v", identity, r.sent())
		}
		if failed := !rel.core.state(time.Time{}).FailedOverAt.IsZero(); failed != within {
			t.Errorf("with the identity %q: health tells of a fail-over: %v", identity, failed)
		}
		if within {
			r.drained()
		}
	}
}
